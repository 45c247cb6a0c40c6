"""The outer loop: what it must reduce to, what a failed round may change, what replicas must agree on."""

import copy
import threading
from dataclasses import replace

import pytest
import torch

from outerloop import wire
from outerloop.aggregate.mean import Mean
from outerloop.aggregate.senders import Senders
from outerloop.compress.identity import Identity
from outerloop.compress.index.rice import Rice
from outerloop.compress.topk import TopK
from outerloop.compress.two_bit import TwoBit
from outerloop.config import instantiate, load
from outerloop.exchange.inprocess import Hub, InProcess
from outerloop.feedback.ef import ErrorFeedback
from outerloop.methods.average import Average
from outerloop.replica.island import Island
from outerloop.state.part_states import on_device
from outerloop.types import Contribution, ReplicasDiverged, Round, Stopped, UserError
from tests.support import toy
from tests.support.failing_exchange import Failing, NeverComes
from tests.support.tensors import same_tensors


def sparse():
    return {
        "compress": TopK(chunk=16, k=4, values=TwoBit(chunk=4), index=Rice()),
        "feedback": ErrorFeedback(beta=0.95),
        "aggregate": Senders(),
    }


def train(exchange, *, rounds=4, h=3, optimizer=torch.optim.AdamW, **parts):
    """A toy worker to the end; returns model and outer loop."""
    net = toy.model()
    loop = toy.outer(net, exchange, h=h, **parts)
    inner = optimizer(net.parameters(), lr=0.01)
    for step in range(rounds * h):
        toy.inner_step(net, inner, exchange.rank, step)
        loop.after_inner_step(4)
    return net, loop


def weights(net):
    return {name: p.detach().clone() for name, p in net.named_parameters()}


def test_one_worker_lr_1_is_plain_training_bit_for_bit():
    """Slow weights in float64 keep every bit of slow - fast, so slow - (slow - fast) is fast."""
    [(net, _)] = toy.run_workers(1, lambda e: train(e, rounds=20, state_dtype="float64"))
    plain = toy.model()
    inner = torch.optim.AdamW(plain.parameters(), lr=0.01)
    for step in range(60):
        toy.inner_step(plain, inner, 0, step)
    assert same_tensors(weights(net), weights(plain))


def test_one_worker_in_float32_is_plain_training_to_rounding():
    [(net, _)] = toy.run_workers(1, train)
    plain = toy.model()
    inner = torch.optim.AdamW(plain.parameters(), lr=0.01)
    for step in range(12):
        toy.inner_step(plain, inner, 0, step)
    for name, p in plain.named_parameters():
        assert torch.allclose(net.get_parameter(name), p, atol=1e-6, rtol=0)


def test_h_1_lr_1_averages_the_parameters():
    """Compared with two models stepped alone and averaged in float64."""
    results = toy.run_workers(2, lambda e: train(e, rounds=1, h=1, state_dtype="float64"))
    alone = []
    for worker in range(2):
        net = toy.model()
        toy.inner_step(net, torch.optim.AdamW(net.parameters(), lr=0.01), worker, 0)
        alone.append(weights(net))
    for name, p in results[0][0].named_parameters():
        expected = ((alone[0][name].double() + alone[1][name].double()) / 2).float()
        assert torch.equal(p, expected)


def test_nesterov_by_hand():
    """One weight, constant pseudo-gradient 1, lr .7, mu .9: b = 1, 1.9, 2.71; step .7 (1 + .9 b)."""
    method = toy.sgd(lr=0.7, momentum=0.9, nesterov=True)
    slow = {"w": torch.tensor([0.0])}
    method.init(slow)
    expected, b = 0.0, 0.0
    for _ in range(3):
        b = 0.9 * b + 1.0
        expected -= 0.7 * (1.0 + 0.9 * b)
        method.update(slow, {"w": torch.tensor([1.0])}, {})
        assert float(slow["w"]) == pytest.approx(expected, abs=1e-6)


def test_outer_lr_factor_and_clip():
    method = toy.sgd(lr=1.0, lr_factor=lambda update: 0.5**update, clip_norm=1.0)
    slow = {"w": torch.tensor([0.0])}
    method.init(slow)
    for _ in range(3):
        method.update(slow, {"w": torch.tensor([8.0])}, {})
    assert float(slow["w"]) == pytest.approx(-1.75)  # 8 clipped to 1, times 1, .5, .25


def test_keeping_everything_unquantized_equals_uncompressed():
    everything = TopK(chunk=16, k=16, values=Identity(), index=Rice())
    plain = toy.run_workers(2, train)
    kept = toy.run_workers(2, lambda e: train(e, compress=everything))
    assert same_tensors(weights(plain[0][0]), weights(kept[0][0]))


def test_gradients_and_an_outer_adamw_are_data_parallel_training():
    """AdamW on the mean of both workers' gradients, three steps, to the roundings that torch's own step saves.

    torch adds products with one rounding where the machine can; the replicas round each (methods/exact_adamw.py).
    """
    method = {"method": toy.OuterOptimizer(optimizer=lambda p: torch.optim.AdamW(p, lr=0.01), reads="gradients")}

    def work(exchange):
        net = toy.model()
        loop = toy.outer(net, exchange, h=1, **copy.deepcopy(method))
        for step in range(3):
            toy.inner_step(net, torch.optim.SGD(net.parameters(), lr=0.0), exchange.rank, step)
            loop.after_inner_step(4)
        return net

    replicas = toy.run_workers(2, work)
    net = toy.model()
    adamw = torch.optim.AdamW(net.parameters(), lr=0.01)
    for step in range(3):
        grads = []
        for worker in range(2):
            toy.inner_step(net, torch.optim.SGD(net.parameters(), lr=0.0), worker, step)
            grads.append([p.grad.clone() for p in net.parameters()])
        for p, a, b in zip(net.parameters(), *grads, strict=True):
            p.grad = (a + b) / 2
        adamw.step()
    assert same_tensors(weights(replicas[0]), weights(replicas[1]))
    for name, p in net.named_parameters():
        assert torch.allclose(replicas[0].get_parameter(name), p, atol=1.2e-7, rtol=0), name


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("parts", [dict, sparse], ids=["dense", "sparse"])
def test_replicas_agree_bit_for_bit(size, parts):
    results = toy.run_workers(size, lambda e: train(e, **parts()))
    assert len({loop.slow_hash for _, loop in results}) == 1
    assert all(same_tensors(loop.slow, results[0][1].slow) for _, loop in results)


def test_the_same_run_twice_is_the_same_bit_for_bit():
    first, second = (toy.run_workers(3, lambda e: train(e, **sparse())) for _ in range(2))
    assert first[0][1].slow_hash == second[0][1].slow_hash


def same_state(a, b):
    """Nested states, tensors bit for bit."""
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same_state(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same_state, a, b))
    return a == b


@pytest.mark.parametrize("parts", [dict, sparse], ids=["dense", "sparse"])
def test_a_failed_round_changes_nothing(parts):
    """Slow weights, residual, optimizer, samples and the fast weights stay bit for bit what they were."""

    def work(exchange):
        net = toy.model()
        loop = toy.outer(net, Failing(exchange, {2}), h=3, method=toy.sgd(0.7, 0.9, True), **parts())
        inner = torch.optim.AdamW(net.parameters(), lr=0.01)
        reports = []
        for step in range(9):
            toy.inner_step(net, inner, exchange.rank, step)
            before, fast = copy.deepcopy(loop.evolved()), weights(net)
            reports += loop.after_inner_step(4)
        after = loop.evolved()
        assert reports[2].failed and after["inner_step"] == 9 and after["samples"] == [12]
        assert same_tensors(after["slow"], before["slow"]) and same_tensors(weights(net), fast)
        assert same_state(after["feedback"], before["feedback"])
        assert same_state(after["method"], before["method"])

    toy.run_workers(2, work)


def test_a_failed_round_is_made_up_for_by_the_next():
    """Uncompressed, lr 1, one worker: whatever rounds fail, after a good one slow equals fast."""

    def work(exchange):
        net = toy.model()
        loop = toy.outer(net, Failing(exchange, {0, 1, 3}), h=2)
        inner = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(10):
            toy.inner_step(net, inner, 0, step)
            loop.after_inner_step(1)
        assert all(torch.allclose(loop.slow[n], p, atol=1e-6) for n, p in net.named_parameters())

    toy.run_workers(1, work)


class Garbled(toy.Around):
    """An exchange that changes one byte of a peer's message."""

    def start(self, blob, round):
        return toy.Changed(self.inner.start(blob, round), one_byte_changed)


def one_byte_changed(messages):
    *rest, last = messages
    broken = bytearray(last.blob)
    broken[len(broken) // 2] ^= 1
    return [*rest, Contribution(last.peer, last.round, bytes(broken))]


def test_a_garbled_payload_fails_the_round_whole():
    def work(exchange):
        net = toy.model()
        loop = toy.outer(net, Garbled(exchange), h=1, **sparse())
        before = loop.slow_hash
        toy.inner_step(net, torch.optim.SGD(net.parameters(), lr=0.1), exchange.rank, 0)
        [report] = loop.after_inner_step(1)
        assert "checksum" in report.failed and loop.slow_hash == before and not loop.feedback.state_dict()["residual"]

    toy.run_workers(2, work)


class WaitsForNobody(Garbled):
    """... and whose rounds count without it."""

    info = replace(InProcess.info, waits_for_all=False)


def test_a_garbled_payload_is_left_out_by_name_where_a_round_can_do_without():
    def work(exchange):
        net = toy.model()
        loop = toy.outer(net, WaitsForNobody(exchange), h=1, **sparse())
        toy.inner_step(net, torch.optim.SGD(net.parameters(), lr=0.1), exchange.rank, 0)
        [report] = loop.after_inner_step(1)
        assert not report.failed and report.peers == ("000", "001")
        [refused] = report.refused
        assert refused.startswith("002: ") and "checksum" in refused
        kept = any(bool(x.any()) for x in loop.feedback.state_dict()["residual"].values())
        assert loop.samples == 0 and kept == (exchange.rank < 2)
        return loop.slow_hash

    assert len(set(toy.run_workers(3, work))) == 1


def test_different_slow_weights_are_told_not_trained_on():
    def work(exchange):
        net = toy.model(seed=exchange.rank)
        loop = toy.outer(net, exchange, h=1)
        toy.inner_step(net, torch.optim.SGD(net.parameters(), lr=0.1), 0, 0)
        with pytest.raises(ReplicasDiverged, match=r"000.*001"):
            loop.after_inner_step(1)

    toy.run_workers(2, work)


def test_a_gradient_that_is_not_finite_is_named():
    def work(exchange):
        net = toy.model()
        loop = toy.outer(net, exchange, h=1)
        with torch.no_grad():
            net[1].bias[0] = torch.nan
        with pytest.raises(FloatingPointError, match=r"1\.bias"):
            loop.after_inner_step(1)

    toy.run_workers(1, work)


def test_a_resumed_loop_goes_on_bit_for_bit():
    def work(exchange, stop_at=None):
        net = toy.model()
        parts = {"method": toy.sgd(0.7, 0.9, True), **sparse()}
        loop = toy.outer(net, exchange, h=2, **parts)
        inner = torch.optim.AdamW(net.parameters(), lr=0.01)
        for step in range(12):
            if step == stop_at:
                saved = copy.deepcopy([net.state_dict(), inner.state_dict(), loop.state_dict()])
                net = toy.model(seed=9)
                loop = toy.outer(net, exchange, h=2, method=toy.sgd(0.7, 0.9, True), **sparse())
                inner = torch.optim.AdamW(net.parameters(), lr=0.01)
                for part, state in zip([net, inner, loop], saved, strict=True):
                    part.load_state_dict(state)
            toy.inner_step(net, inner, exchange.rank, step)
            loop.after_inner_step(1)
        return loop.slow_hash

    whole = toy.run_workers(2, work)
    assert toy.run_workers(2, lambda e: work(e, stop_at=5)) == whole
    assert toy.run_workers(2, lambda e: work(e, stop_at=6)) == whole


def test_a_state_can_be_loaded_again():
    """Its tensors do not change when the loop that was resumed from it lands rounds."""
    exchange, net = toy.alone(), toy.model()
    loop = toy.outer(net, exchange, h=1, method=toy.sgd(0.7, 0.9, True))

    def train(loop, net):
        inner = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(3):
            toy.inner_step(net, inner, 0, step)
            loop.after_inner_step(1)
        return loop.slow_hash

    train(loop, net)
    weights, saved, hashes = copy.deepcopy(net.state_dict()), copy.deepcopy(loop.state_dict()), []
    for _ in range(2):
        net = toy.model()
        net.load_state_dict(weights)
        loop = toy.outer(net, exchange, h=1, method=toy.sgd(0.7, 0.9, True))
        loop.load_state_dict(saved)
        hashes.append(train(loop, net))
    assert hashes[0] == hashes[1]


@pytest.mark.parametrize("merge_local", [0.0, 0.5, 1.0])
def test_merge_local_is_the_weight_of_the_local_value(merge_local):
    net = toy.model()
    island, slow = Island(net), {"0.bias": torch.full((7,), 2.0)}
    with torch.no_grad():
        net[0].bias.fill_(4.0)
    island.write(slow, merge_local=merge_local)
    assert net[0].bias.tolist() == [2.0 + 2.0 * merge_local] * 7


def test_other_weights_come_and_go():
    [(net, loop)] = toy.run_workers(1, lambda e: train(e, rounds=1))
    toy.inner_step(net, torch.optim.SGD(net.parameters(), lr=0.5), 0, 7)
    local = weights(net)
    with loop.island.temporary_weights(loop.slow):
        assert same_tensors(weights(net), loop.slow)
    assert same_tensors(weights(net), local) and not same_tensors(local, loop.slow)


def test_a_model_that_cannot_train_is_refused():
    net = toy.model().requires_grad_(False)
    with pytest.raises(UserError, match="no trainable parameter"):
        Island(net)


def test_frozen_parameters_stay_home():
    net = toy.model()
    net[0].requires_grad_(False)
    assert set(Island(net).params) == {"1.weight", "1.bias", "2.weight", "2.bias"}


def test_senders_divides_by_who_sent():
    a, b = torch.tensor([2.0, 0.0, 0.0, 4.0]), torch.tensor([4.0, 6.0, 0.0, 0.0])
    assert Senders()([a, b], [1, 1], []).tolist() == [3.0, 6.0, 0.0, 4.0]
    assert Mean()([a, b], [1, 1], []).tolist() == [3.0, 3.0, 0.0, 2.0]


def test_a_waiting_worker_leaves_when_the_run_stops():
    hub = Hub(2)
    lonely = InProcess(hub=hub, rank=0)
    lonely.join()
    threading.Timer(0.05, hub.stop, ["enough"]).start()
    with pytest.raises(Stopped, match="enough"):
        lonely.start(b"x", Round(1)).wait(60)


def test_workers_that_take_long_do_not_split_the_rest():
    """The first to arrive waits for the others' inner steps, whatever the time limit of a round."""
    results = toy.run_workers(3, lambda e: train(e, timeout_s=0.0))
    assert len({loop.slow_hash for _, loop in results}) == 1


@pytest.mark.parametrize("name", load.groups()["compress"])
def test_float64_slow_weights_work_with_every_compressor(name):
    def work(exchange):
        codec = instantiate.make(load.compose_config([f"compress={name}"]).compress)
        return train(exchange, rounds=2, compress=codec, feedback=ErrorFeedback(beta=0.9), state_dtype="float64")

    results = toy.run_workers(2, work)
    assert len({loop.slow_hash for _, loop in results}) == 1


@pytest.mark.parametrize("method", [toy.sgd, Average], ids=["differences", "weights"])
def test_a_float64_model_sends_what_a_float32_model_sends(method):
    """Peers whose models have other dtypes must accept its messages."""

    def work(exchange):
        net = toy.model().double() if exchange.rank else toy.model()
        loop = toy.outer(net, exchange, h=1, method=method())
        return loop.after_inner_step(1)

    [[single], [double]] = toy.run_workers(2, work)
    assert single.payload_bytes == double.payload_bytes
    assert len(single.peers) == len(double.peers) == 2 and not single.refused and not single.failed


def test_a_loaded_state_moves_to_the_slow_weights_device():
    state = {"a": [torch.zeros(2), {"b": (torch.zeros(1), 3, "x")}]}
    moved = on_device(state, torch.device("meta"))
    assert moved["a"][0].is_meta and moved["a"][1]["b"][0].is_meta and moved["a"][1]["b"][1:] == (3, "x")


class Replayed(toy.Around):
    """An exchange that hands out last round's messages again, or one peer's under another's name."""

    def __init__(self, inner, change):
        super().__init__(inner)
        self.change, self.seen = change, []

    def start(self, blob, round):
        return toy.Changed(self.inner.start(blob, round), self.changed)

    def changed(self, messages):
        self.seen.append(messages)
        return self.change(self.seen)


def replay(seen):
    return seen[-1] if len(seen) == 1 else [Contribution(c.peer, seen[-1][0].round, c.blob) for c in seen[0]]


def impersonate(seen):
    first, second = seen[-1]
    return [first, Contribution(second.peer, second.round, first.blob)]


@pytest.mark.parametrize(("change", "fails"), [(replay, [False, True]), (impersonate, [True, True])])
def test_a_message_of_another_round_or_peer_fails_the_round(change, fails):
    def work(exchange):
        net = toy.model()
        loop = toy.outer(net, Replayed(exchange, change), h=1)
        reports = []
        for step in range(2):
            toy.inner_step(net, torch.optim.SGD(net.parameters(), lr=0.1), exchange.rank, step)
            reports += loop.after_inner_step(1)
        assert [bool(r.failed) for r in reports] == fails

    toy.run_workers(2, work)


def test_every_worker_keeps_its_own_random_state():
    """Two workers with dropout-like draws between rounds get what one alone would get."""

    def work(exchange):
        torch.manual_seed(exchange.rank)
        draws = []
        for number in range(3):
            draws.append(float(torch.rand(())))
            exchange.start(b"", Round(number)).wait(10)
        return draws

    drawn = toy.run_workers(3, work)
    for rank, draws in enumerate(drawn):
        torch.manual_seed(rank)
        assert draws == [float(torch.rand(())) for _ in range(3)]


def test_bytes_are_counted_by_copy():
    def work(exchange):
        exchange.start(b"12345", Round(0)).wait(10)
        return exchange.bytes_sent, exchange.bytes_received

    assert toy.run_workers(4, work) == [(15, 15)] * 4


def test_header_tells_samples_and_hash():
    sent = []

    class Spy:
        peer, rank, size, info = "000", 0, 1, InProcess.info

        def start(self, blob, round):
            sent.append(blob)
            return NeverComes()

    net = toy.model()
    loop = toy.outer(net, Spy(), h=2)
    inner = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(4):
        toy.inner_step(net, inner, 0, step)
        loop.after_inner_step(8)
    header = wire.unpack(sent[1], {n: x.shape for n, x in loop.slow.items()}).header
    assert (header.round, header.samples, header.slow) == (1, 32, wire.joint_hash(loop.replica.hashes.values()))
