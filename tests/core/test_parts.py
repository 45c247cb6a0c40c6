"""Aggregates, feedback storage, streaming fragments, Muon, and which parts go together."""

import math

import pytest
import torch

from outerloop.aggregate.exact_norms import sum_of_squares
from outerloop.aggregate.mean import Mean
from outerloop.aggregate.median_clip import MedianClip
from outerloop.aggregate.rda import RDA
from outerloop.aggregate.weighted import Weighted
from outerloop.compress.cast import Cast
from outerloop.compress.identity import Identity
from outerloop.compress.index.rice import Rice
from outerloop.compress.topk import TopK
from outerloop.compress.two_bit import TwoBit
from outerloop.exchange.inprocess import Hub, InProcess
from outerloop.exchange.inprocess_gossip import InProcessGossip
from outerloop.feedback.ef import ErrorFeedback
from outerloop.feedback.local_error import LocalError
from outerloop.feedback.loco import LoCo
from outerloop.feedback.residual_storage import EightBit
from outerloop.inner.muon import MuonWithAdamW
from outerloop.methods.average import Average
from outerloop.methods.noloco import NoLoCo
from outerloop.methods.sign import Sign
from outerloop.schedule.every_h import EveryH
from outerloop.schedule.streaming import Streaming
from outerloop.types import Round, UserError
from tests.support import toy
from tests.support.tensors import same_tensors

A, B = torch.tensor([3.0, 4.0]), torch.tensor([-3.0, 4.0])


def test_weighted_by_hand():
    assert Weighted()([A, B], [3, 1], []).tolist() == [1.5, 4.0]
    assert Weighted()([A, B], [0, 0], []).tolist() == [0.0, 4.0]


def test_rda_keeps_the_length_of_one_step():
    """|A| = |B| = 5, mean (0, 4): stretched to (0, 5). Opposite contributions give zero, not NaN."""
    assert RDA()([A, B], [1, 1], []).tolist() == pytest.approx([0.0, 5.0])
    assert RDA()([A, -A], [1, 1], []).tolist() == [0.0, 0.0]


def test_median_clip_by_hand():
    """Norms 5, 5, 5000: the third is scaled by 1/1000."""
    clipped = MedianClip(of=Mean())([A, B, 1000 * A], [1, 1, 1], [5.0, 5.0, 5000.0])
    assert clipped.tolist() == pytest.approx([1.0, 4.0])


@pytest.mark.parametrize("scale", [1e-40, 1e-20, 1.0, 1e3, 1e19, 1e37])
@pytest.mark.parametrize("count", [1, 2, 1000, (1 << 20) + 1])
def test_a_sum_of_squares_is_right_and_the_same_in_any_order(count, scale):
    x = torch.randn(count, generator=torch.Generator().manual_seed(count)) * scale
    shuffled = x[torch.randperm(count)]
    padded = torch.cat([x, torch.zeros(7)]).view(-1, 1)
    found = sum_of_squares(x, of=count)
    assert found == sum_of_squares(shuffled, of=count) == sum_of_squares(padded, of=count)
    assert found == pytest.approx(float(x.double().square().sum()), rel=1e-5)


def test_sums_of_squares_at_the_edges():
    assert sum_of_squares(torch.zeros(0), of=5) == sum_of_squares(torch.zeros(3), of=3) == 0.0
    assert sum_of_squares(torch.tensor([3.0, -4.0]), of=1 << 40) == 25.0
    largest = torch.tensor([torch.finfo(torch.float32).max])
    assert sum_of_squares(largest, of=1) == float(largest.double().square())
    assert sum_of_squares(torch.tensor([1e300], dtype=torch.float64), of=1) == math.inf
    assert sum_of_squares(torch.tensor([5e-324], dtype=torch.float64), of=1) == 0.0


def test_median_clip_in_the_loop_tames_one_bad_peer():
    def work(exchange):
        net = toy.model()
        loop = toy.outer(net, exchange, h=1, aggregate=MedianClip(of=Mean()))
        before = {name: x.clone() for name, x in loop.slow.items()}
        lr = 1e4 if exchange.rank == 2 else 0.01
        toy.inner_step(net, torch.optim.SGD(net.parameters(), lr=lr), exchange.rank, 0)
        loop.after_inner_step(1)
        return sum(float((loop.slow[n] - x).norm() ** 2) for n, x in before.items()) ** 0.5

    moved = toy.run_workers(3, work)
    assert moved[0] == moved[1] == moved[2] < 1.0


@pytest.mark.parametrize("count", [0, 1, 255, 256, 257, 1000])
def test_eight_bit_storage_is_off_by_at_most_half_a_step(count):
    storage, x = EightBit(), torch.randn(count)
    storage.put("w", x)
    if count == 0:
        assert storage.get("w").shape == (0,)
        return
    back = storage.get("w")
    for start in range(0, count, 256):
        block = slice(start, start + 256)
        assert (back[block] - x[block]).abs().max() <= x[block].abs().max() / 127 / 2 * 1.001
    again = EightBit()
    again.load_state_dict(storage.state_dict())
    assert torch.equal(again.get("w"), back)


def test_eight_bit_storage_of_zeros_and_its_memory():
    storage = EightBit()
    storage.put("w", torch.zeros(2, 3000))
    assert torch.equal(storage.get("w"), torch.zeros(2, 3000))
    code, scale, _ = storage.held["w"]
    assert code.numel() * code.element_size() + scale.numel() * 4 < 6000 * 1.05


@pytest.mark.parametrize("feedback", [LoCo(beta=0.0, reset_every=99, bits=32), ErrorFeedback(beta=1.0)])
def test_loco_without_averaging_conserves_exactly(feedback):
    """β = 0: x + e_old = deq(Q(x + e_old)) + e_new, in values that float32 adds exactly."""
    held = torch.zeros(64)
    for _ in range(5):
        delta = torch.randint(-512, 512, (64,)) / 256
        x = feedback.add("w", delta)
        sent = x.round()
        feedback.keep("w", x, sent)
        error = feedback.state_dict()["error" if "error" in feedback.state_dict() else "residual"]["w"]
        assert torch.equal(delta + held, sent + error)
        held = error


NAMES = ["embed.weight", *(f"layers.{i}.{part}" for i in range(5) for part in ("w", "b")), "norm.weight", "head.weight"]


@pytest.mark.parametrize("fragments", [1, 2, 3, 5])
def test_fragments_are_strided_and_cover_everything_once(fragments):
    schedule = Streaming(sync_every=10, fragments=fragments, delay=0)
    parts = [schedule.fragment(p, NAMES) for p in range(fragments)]
    assert sorted(name for part in parts for name in part) == sorted(NAMES)
    assert "embed.weight" in parts[0] and "head.weight" in parts[-1]
    assert all(f"layers.{i}.w" in parts[i % fragments] for i in range(5))


@pytest.mark.parametrize(
    ("numbers", "fragments", "homes"),
    [
        ((0, 2), 2, [0, 1]),
        ((0, 2, 4, 6), 2, [0, 1, 0, 1]),
        ((0, 2, 4, 6), 4, [0, 1, 2, 3]),
        ((3, 10, 4), 3, [0, 2, 1]),
    ],
)
def test_layers_are_dealt_by_their_order_whatever_their_numbers(numbers, fragments, homes):
    """nn.Sequential counts activations too: its layers with weights are 0, 2, 4, ..."""
    names = [f"{number}.{part}" for number in numbers for part in ("weight", "bias")]
    schedule = Streaming(sync_every=8, fragments=fragments, delay=0)
    parts = [schedule.fragment(p, names) for p in range(fragments)]
    assert all(f"{number}.bias" in parts[home] for number, home in zip(numbers, homes, strict=True))
    assert sorted(name for part in parts for name in part) == sorted(names)


def stacked(activation):
    """Two layers with weights, numbered 0 and 2."""
    return torch.nn.Sequential(torch.nn.Linear(7, 7), activation, torch.nn.Linear(7, 3))


def test_a_sequential_with_activations_streams():
    """Both fragments land, each with one of the two layers."""

    def work(exchange):
        torch.manual_seed(0)
        net = stacked(torch.nn.Tanh())
        loop = toy.outer(net, exchange, schedule=Streaming(sync_every=4, fragments=2, delay=0))
        optimizer, landed = torch.optim.SGD(net.parameters(), lr=0.1), []
        for step in range(4):
            toy.inner_step(net, optimizer, exchange.rank, step)
            landed += [report.round.fragment for report in loop.after_inner_step(1) if not report.failed]
        return landed, loop.slow_hash

    (landed, slow), other = toy.run_workers(2, work)
    assert landed == [0, 1] and (landed, slow) == other


@pytest.mark.parametrize(("fragments", "most"), [(3, 2), (2, 1), (4, 0)])
def test_more_fragments_than_layers_are_refused_before_the_first_step(fragments, most):
    """Of two layers, of one, of a model without numbered layers; nothing has been trained yet."""
    layer = torch.nn.Linear(7, 7)
    net = {2: stacked(torch.nn.Tanh()), 1: torch.nn.Sequential(layer), 0: layer}[most]
    said = f"fragments={fragments} is more than the model's {most} layers: set schedule.fragments={max(1, most)}$"
    with pytest.raises(UserError, match=said):
        toy.outer(net, toy.alone(), schedule=Streaming(sync_every=12, fragments=fragments, delay=0))


def test_streaming_steps_by_hand():
    """H 6, P 2, delay 1: fragment 0 leaves at 3, 9, ..., fragment 1 at 6, 12, ...; each lands a step later."""
    schedule = Streaming(sync_every=6, fragments=2, delay=1)
    launches = {t: schedule.due(t).launch for t in range(1, 14) if schedule.due(t).launch}
    assert launches == {3: (Round(0, 0),), 6: (Round(0, 1),), 9: (Round(1, 0),), 12: (Round(1, 1),)}
    assert {t - 1: schedule.due(t).land for t in range(1, 14) if schedule.due(t).land} == launches
    assert schedule.inner_steps(2) == 13


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Streaming(sync_every=6, fragments=2, delay=3), "below sync_every / fragments = 3"),
        (lambda: Streaming(sync_every=2, fragments=3, delay=0), "fragments=3 must be 1 .. sync_every=2"),
        (lambda: Streaming(sync_every=30, fragments=7, delay=0).fragment(0, NAMES), "more than the model's 5 layers"),
        (lambda: EveryH(sync_every=4, delay=5), "delay=5 must be 0 .. sync_every=4"),
        (lambda: ErrorFeedback(beta=0.5, bits=4), "not one of 8, 32"),
        (lambda: LoCo(beta=1.0, reset_every=1), "below 1"),
        (lambda: LoCo(beta=0.5, reset_every=0), "reset_every=0"),
        (lambda: Sign(lr=1.0, reads="tea"), "weights, gradients"),
        (lambda: toy.sgd(reads="tea"), "weights, gradients"),
    ],
)
def test_bad_settings_are_refused(make, said):
    with pytest.raises(UserError, match=said):
        make()


def test_bucketed_equals_whole():
    """One round of two fragments that leave at the same state moves what one whole round moves."""

    def work(exchange, **parts):
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(7, 7), torch.nn.Linear(7, 3))
        loop = toy.outer(net, exchange, h=4, **parts)
        toy.inner_step(net, torch.optim.SGD(net.parameters(), lr=0.1), exchange.rank, 0)
        for _ in range(5):
            loop.after_inner_step(1)
        return {name: p.detach().clone() for name, p in net.named_parameters()}

    whole = toy.run_workers(2, work)
    bucketed = toy.run_workers(2, lambda e: work(e, schedule=Streaming(sync_every=4, fragments=2, delay=1)))
    assert same_tensors(whole[0], bucketed[0])


def test_sparta_ends_with_the_mean_where_it_was_sent_and_keeps_the_rest():
    class Half(Identity):
        def encode(self, x, moment):
            kept = x.clone().reshape(-1)
            kept[1::2] = 0
            return {"value": kept}

    def work(exchange):
        net = toy.model(seed=exchange.rank)
        loop = toy.outer(net, exchange, h=1, method=Average(), compress=Half())
        before = {name: p.detach().clone() for name, p in net.named_parameters()}
        loop.after_inner_step(1)
        return before, {name: p.detach() for name, p in net.named_parameters()}

    (a, after_a), (b, after_b) = toy.run_workers(2, work)
    for name in a:
        mean = ((a[name] + b[name]) / 2).view(-1)
        assert torch.allclose(after_a[name].view(-1)[::2], mean[::2], atol=1e-6)
        assert torch.equal(after_a[name].view(-1)[1::2], a[name].view(-1)[1::2])
        assert torch.equal(after_b[name].view(-1)[1::2], b[name].view(-1)[1::2])


def test_a_lone_trainer_loses_no_step_to_a_delayed_landing():
    """Carried: φ becomes what θ was, and θ stays what it is; replaced, the steps since the launch are gone."""

    def work(exchange, **parts):
        net = toy.model()
        loop = toy.outer(net, exchange, **parts)
        inner = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(14):
            toy.inner_step(net, inner, 0, step)
            loop.after_inner_step(1)
        return [p.detach() for p in net.parameters()]

    late = {"schedule": EveryH(sync_every=4, delay=2)}
    [never] = toy.run_workers(1, lambda e: work(e, h=100))
    [carried] = toy.run_workers(1, lambda e: work(e, merge_local="carry", **late))
    [replaced] = toy.run_workers(1, lambda e: work(e, **late))
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(carried, never, strict=True))
    assert not any(torch.allclose(a, b, atol=1e-4) for a, b in zip(replaced, never, strict=True))


@pytest.mark.parametrize("merge_local", [0.5, "carry"])
def test_a_delayed_round_survives_a_restart(merge_local):
    """Saved between launch and landing: the message and what was offered are saved, and it lands bit for bit."""

    def parts():
        compress = TopK(chunk=16, k=4, values=TwoBit(chunk=None), index=Rice())
        late = {"schedule": EveryH(sync_every=3, delay=2), "merge_local": merge_local}
        return late | {"compress": compress, "feedback": ErrorFeedback(beta=0.9)}

    _, half, _ = toy.restarted(parts, steps=11, stop_at=4)
    assert len(half[0][1]["in_flight"]) == 1


def test_muon_takes_the_matrices_of_the_layers_and_adamw_the_rest():
    net = torch.nn.ModuleDict(
        {"embed": torch.nn.Embedding(5, 8), "layers": torch.nn.ModuleList([torch.nn.Linear(8, 8)])}
    )
    options = {"lr": 0.01, "adamw_lr": 0.02, "momentum": 0.9, "betas": (0.9, 0.95), "weight_decay": 0.0, "fused": True}
    optimizer = MuonWithAdamW(list(net.named_parameters()), **options)
    muon, adamw = optimizer.parts
    assert [p.shape for p in muon.param_groups[0]["params"]] == [(8, 8)]
    assert [p.shape for p in adamw.param_groups[0]["params"]] == [(5, 8), (8,)]
    assert [group["lr"] for group in optimizer.param_groups] == [0.01, 0.02]
    for p in net.parameters():
        p.grad = torch.randn_like(p)
    before = [p.detach().clone() for p in net.parameters()]
    optimizer.step()
    assert all(not torch.equal(p, x) for p, x in zip(net.parameters(), before, strict=True))
    again = MuonWithAdamW(list(net.named_parameters()), **options)
    again.load_state_dict(optimizer.state_dict())
    assert torch.equal(again.parts[0].state_dict()["state"][0]["momentum_buffer"],
                       muon.state_dict()["state"][0]["momentum_buffer"])  # fmt: skip


def joined(**parts):
    """Construct an outer loop of these parts, for its checks."""
    return toy.outer(toy.model(), InProcess(hub=Hub(2), rank=0), **parts)


GOSSIP = InProcessGossip(hub=Hub(2), rank=0, group=2, seed=0)
NOLOCO = NoLoCo(alpha=0.5, beta=0.7, gamma=None, consensus="inside")
SPARSE = TopK(chunk=64, k=4, values=TwoBit(chunk=None), index=Rice())


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"method": NOLOCO, "compress": SPARSE}, "set feedback=none compress=cast"),
        ({"method": NOLOCO, "feedback": ErrorFeedback(beta=0.9)}, "neither be sparse|neither sparse nor remembered"),
        ({"eager": True}, "set eager=true schedule.delay=3"),
        ({"eager": True, "merge_local": "carry"}, "set merge_local=0.0"),
        ({"schedule": EveryH(sync_every=3, delay=3)}, "set eager=true schedule.delay=3"),
        ({"method": toy.sgd(reads="gradients")}, "set schedule=every_h schedule.sync_every=1"),
    ],
)
def test_parts_that_cannot_work_together_are_refused(parts, said):
    with pytest.raises(UserError, match=said):
        joined(**parts)


def test_gossip_needs_a_method_for_unequal_replicas():
    with pytest.raises(UserError, match="set method=noloco"):
        toy.outer(toy.model(), GOSSIP)
    toy.outer(toy.model(), GOSSIP, method=NOLOCO, compress=Cast(dtype="bfloat16"))


def test_doubtful_settings_are_told():
    assert joined().warnings == []
    assert joined(compress=SPARSE, feedback=ErrorFeedback(beta=0.9)).warnings == []
    assert "feedback=ef" in joined(compress=SPARSE).warnings[0]
    assert "momentum" in joined(method=toy.sgd(0.7, 0.9, True), h=99).warnings[0]
    assert joined(method=toy.sgd(0.7, 0.9, True), h=100).warnings == []


def test_local_error_sends_what_error_feedback_would_for_equal_inner_steps():
    """The same x in every round where the inner steps add the same, and no residual to store."""
    held_aside, in_weights = ErrorFeedback(beta=0.5), LocalError(beta=0.5)
    slow, fast = torch.zeros(64), torch.zeros(64)
    for _ in range(5):
        progress = torch.randint(-512, 512, (64,)) / 256
        x = in_weights.add("w", slow - (fast + progress))
        assert torch.equal(x, held_aside.add("w", -progress))
        sent = x.round()
        for feedback in (held_aside, in_weights):
            feedback.keep("w", x, sent)
        slow = slow - sent
        fast = in_weights.begin("w", slow)
    assert in_weights.begin("w", slow) is slow and not in_weights.state_dict()
