"""Peers that begin with different weights: all begin with the first one's, or are told why that cannot be."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import distributed as dist
from torch import nn

import outerloop
from outerloop.config import load, shared_settings
from outerloop.config.peer_check import start_together
from outerloop.core.initial_state import StartPosition, exchange_positions, start_from_same_weights
from outerloop.exchange.distributed import Distributed
from outerloop.exchange.inprocess import InProcess
from outerloop.exchange_protocols import hand_over
from outerloop.kernels import arithmetic_platform
from outerloop.schedule.every_h import EveryH
from outerloop.types import Contribution, Round, UserError
from tests.support import process_group, toy


def net_of(seed, dtype=torch.float32):
    """A network with a norm whose statistics are buffers, all of it drawn from the seed."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(7, 7), nn.BatchNorm1d(7), nn.Linear(7, 3)).to(dtype)
    net[1].running_mean.normal_()
    return net


def begun(exchange, seeds, dtype=torch.float32, **parts):
    """The model and what was told, of a peer that has begun."""
    net, told = net_of(seeds[exchange.rank], dtype), []
    outer = toy.outer(net, exchange, **parts)
    start_from_same_weights(outer, exchange_positions(outer), told.append)
    return SimpleNamespace(net=net, outer=outer, told=told)


def bits(net):
    """Parameters as integers, so that -0 is not 0."""
    return [p.detach().view(torch.int16 if p.dtype == torch.bfloat16 else torch.int32) for p in net.parameters()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "parts", [{}, {"state_dtype": "float64"}, {"eager": True, "schedule": EveryH(sync_every=3, delay=3)}]
)
@pytest.mark.parametrize("seeds", [(0, 1), (0, 1, 0), (0, 1, 2)])
def test_all_begin_with_the_weights_of_the_first_bit_for_bit(seeds, parts, dtype):
    peers = toy.run_workers(len(seeds), lambda exchange: begun(exchange, seeds, dtype, **parts))
    expected = bits(net_of(0, dtype))
    for peer in peers:
        assert all(torch.equal(x, y) for x, y in zip(bits(peer.net), expected, strict=True))
        assert all(torch.equal(x, p) for x, p in zip(peer.outer.slow.values(), peer.net.parameters(), strict=True))
        assert peer.outer.inner_step == 0 and peer.outer.slow_hash == peers[0].outer.slow_hash
        others = sum(seed != 0 for seed in seeds)
        assert peer.told == [f"{others} of {len(seeds)} peers begin with other weights than 000: all use its weights"]


@pytest.mark.parametrize("kind", ["averaged", "local"])
def test_averaged_buffers_are_taken_over_and_local_ones_stay(kind):
    one, other = toy.run_workers(2, lambda exchange: begun(exchange, (0, 1), buffers=kind))
    means = [peer.net[1].running_mean for peer in (one, other)]
    assert torch.equal(means[0], net_of(0)[1].running_mean)
    assert torch.equal(means[1], net_of(0 if kind == "averaged" else 1)[1].running_mean)


def test_peers_that_begin_alike_hand_nothing_over():
    class Watched(toy.Around):
        def hand_over(self, way, state):
            assert way.givers == ["000", "001"] and not way.takers
            content = hand_over(self.inner, way, lambda: pytest.fail("nobody wants it"))
            assert content == b""
            return content

    for peer in toy.run_workers(2, lambda exchange: begun(Watched(exchange), (5, 5))):
        assert peer.told == []


def test_weights_that_differ_later_are_refused():
    def work(exchange):
        outer = toy.outer(net_of(exchange.rank), exchange)
        outer.loop.inner_step = 2
        with pytest.raises(
            UserError, match=r"resumes with different slow weights .* at inner step 2.*load checkpoints"
        ):
            start_from_same_weights(outer, exchange_positions(outer), pytest.fail)

    toy.run_workers(2, work)


def test_where_the_outer_method_goes_by_the_machine_machines_that_differ_are_named(monkeypatch):
    def work(exchange, machines, portable):
        outer = toy.outer(net_of(0), exchange)
        outer.method.portable = portable
        monkeypatch.setattr(arithmetic_platform, "described", lambda: machines[exchange.rank])
        start_from_same_weights(outer, exchange_positions(outer), pytest.fail)

    toy.run_workers(2, lambda exchange: work(exchange, ["AVX2", "AVX2"], False))
    toy.run_workers(2, lambda exchange: work(exchange, ["AVX2", "DEFAULT"], True))
    with pytest.raises(
        UserError,
        match=r"(DEFAULT on 001, AVX2|AVX2 on 000, DEFAULT) here; use identical machines .* or set method\.",
    ):
        toy.run_workers(2, lambda exchange: work(exchange, ["AVX2", "DEFAULT"], False))


def adapter_net(base, dtype=torch.float32):
    """A frozen layer drawn from the seed `base`, and a trainable one that is the same for every `base`."""
    net = nn.Sequential(nn.Linear(7, 7), nn.Linear(7, 3))
    for layer, seed in zip(net, (base, 0), strict=True):
        torch.manual_seed(seed)
        layer.reset_parameters()
    net[0].to(dtype).requires_grad_(False)
    return net


@pytest.mark.parametrize(
    "other", [{"base": 1}, {"base": 0, "dtype": torch.bfloat16}], ids=["another base", "another dtype"]
)
def test_peers_with_other_frozen_weights_do_not_start(other):
    def work(exchange):
        net = adapter_net(**(other if exchange.rank else {"base": 0}))
        with pytest.raises(UserError, match=r"frozen weights differ from those at 00[01] .*: load the same base model"):
            start_together(toy.outer(net, exchange), {})

    toy.run_workers(2, work)


def test_a_peer_with_other_frozen_weights_is_left_out_by_a_majority():
    _, lines = one_of_four(0, {"frozen": "0"}, {}, {}, net=adapter_net(0))
    assert len(lines) == 1 and lines[0].startswith("left out, the frozen weights differ from those at !liar")
    assert one_of_four(0, {"frozen": ""}, {}, {}, net=adapter_net(0))[1] == [], "a version that reports none"


def test_without_frozen_weights_the_position_contains_no_hash_of_them():
    assert "frozen" not in StartPosition.of(toy.outer(net_of(0), toy.alone())).to_map()
    assert "frozen" in StartPosition.of(toy.outer(adapter_net(0), toy.alone())).to_map()


class OneOfFour(toy.Around):
    """The exchange of a peer that goes on without others. `ways`: who handed weights to whom."""

    info = replace(InProcess.info, waits_for_all=False)

    def __init__(self):
        super().__init__(toy.alone())
        self.ways = []

    def hand_over(self, way, state):
        self.ways.append((way.givers, way.takers))
        return b""


def one_of_four(step, *others, net=None):
    """Begin as 000 at this inner step beside peers that stand as it does but for what is given."""
    outer, told = toy.outer(net or net_of(0), OneOfFour()), []
    outer.loop.inner_step = step
    own = StartPosition.of(outer)
    stands = {"000": own} | {
        peer: None if other is None else replace(own, **other)
        for peer, other in zip(("!liar", "001", "002"), others, strict=True)
    }
    start_from_same_weights(outer, stands, told.append)
    return outer.exchange.ways, told


LIES = [
    None,
    {"rounds": [7]},
    {"step": 0},
    {"step": 900, "slow": "0"},
    {"layouts": "0"},
    {"hardware": "another"},
    {"slow": "0"},
]


@pytest.mark.parametrize("lie", LIES, ids=str)
def test_one_of_four_that_tells_another_position_is_left_out_by_name(lie):
    """Whatever it is, and although it is the first by name."""
    ways, told = one_of_four(5, lie, {}, {})
    assert ways == [(["000", "001", "002"], [])] and len(told) == 1
    assert told[0].startswith("left out, ") and "!liar" in told[0]


def test_peers_that_hold_the_same_weights_after_different_steps_begin_together():
    ways, told = one_of_four(5, {"step": 900}, {"step": 1}, {})
    assert ways == [(["!liar", "000", "001", "002"], [])] and told == []


def test_where_replicas_differ_by_design_peers_at_different_steps_do_not_begin():
    outer = toy.outer(net_of(0), OneOfFour())
    outer.shared, outer.loop.inner_step = False, 5
    own = StartPosition.of(outer)
    with pytest.raises(UserError, match="their checkpoints are from inner steps 6 and 5"):
        start_from_same_weights(outer, {"000": own, "001": replace(own, step=6)}, pytest.fail)


@pytest.mark.parametrize("lie", LIES, ids=str)
def test_two_against_two_do_not_begin(lie):
    with pytest.raises(UserError, match="!liar"):
        one_of_four(5, lie, lie, {})


def test_the_weights_that_most_hold_are_those_that_all_begin_with_and_of_equally_many_the_first_ones():
    assert one_of_four(0, {"slow": "0"}, {}, {})[0] == [(["000", "001", "002"], ["!liar"])]
    ways, told = one_of_four(0, {"slow": "0"}, {"slow": "1"}, {})
    assert ways == [(["000", "002"], ["!liar", "001"])]
    assert told == ["2 of 4 peers begin with other weights than 000: all use its weights"]
    with pytest.raises(UserError, match="do not match the hash that !liar announced"):  # which it has not got here
        one_of_four(0, {"slow": "0"}, {"slow": "1"}, {"slow": "2"})


TOLD = {
    "nothing": b"",
    "no map": b"[]",
    "other settings": {"settings": {"seed": 7}},
    "other shapes": {"shapes": {"0.weight": [1]}},
    "another step": {"standing": {"rounds": [9], "step": 9, "slow": "", "layouts": "", "hardware": ""}},
}


@pytest.mark.parametrize("lie", TOLD.values(), ids=TOLD)
def test_an_own_loop_goes_on_without_one_of_four_that_tells_something_else(lie, caplog):
    class Met(OneOfFour):
        def all_gather(self, own, number, timeout_s):
            other = lie if isinstance(lie, bytes) else json.dumps(json.loads(own) | lie).encode()
            blobs = {"!liar": other, "000": own, "001": own, "002": own}
            return [Contribution(peer, Round(number), blob) for peer, blob in blobs.items()]

    outer = toy.outer(net_of(0), Met())
    start_together(outer, {"seed": 0})
    assert outer.exchange.ways == [(["000", "001", "002"], [])]
    [line] = [line for line in caplog.messages if "left out" in line]
    assert "!liar" in line


def test_a_machine_is_described_by_what_decides_its_bits(monkeypatch, tmp_path):
    told = arithmetic_platform.described()
    for part in (torch.backends.cpu.get_cpu_capability(), f"{torch.get_num_threads()} threads", torch.__version__):
        assert part in told
    info = tmp_path / "cpuinfo"
    info.write_text("vendor_id\t: Some\nmodel\t\t: 5\nmodel name\t: Any\n\nvendor_id\t: Other\n")
    monkeypatch.setattr(arithmetic_platform, "CPU_INFO", info)
    monkeypatch.setattr(arithmetic_platform.platform, "machine", lambda: "x86_64")
    assert arithmetic_platform.processor() == "x86_64 Some 5"


@pytest.mark.parametrize("blob", [b"", b"\xff", b"[]", b"{}", b'{"rounds": 3}', b'{"rounds": [0], "step": "x"}'])
def test_a_peer_that_reports_something_else_is_named(blob):
    class Strange(toy.Around):
        def all_gather(self, own, number, timeout_s):
            return self.inner.all_gather(blob if self.inner.rank else own, number, timeout_s)

    def work(exchange):
        outer = toy.outer(net_of(0), Strange(exchange))
        told = exchange_positions(outer)
        assert told == {"000": told["000"], "001": None} and told["000"]
        if exchange.rank == 0:
            with pytest.raises(UserError, match="001 sent no valid position"):
                start_from_same_weights(outer, told, pytest.fail)

    toy.run_workers(2, work)


def test_weights_that_are_not_those_that_were_told_of_are_refused():
    class Other(toy.Around):
        def hand_over(self, way, state):
            return hand_over(self.inner, way, state) and toy.outer(net_of(7), toy.alone()).shared_state.serialize()

    def work(exchange):
        if exchange.rank == 0:
            begun(exchange, (0, 1))
        else:
            with pytest.raises(UserError, match="do not match the hash that 000 announced"):
                begun(Other(exchange), (0, 1))

    toy.run_workers(2, work)


def process(rank):
    """One of three processes; the middle one made its model from another seed. Its hash, after two rounds."""
    net = toy.model(seed=rank % 2)
    outer = outerloop.from_recipe("sparseloco", net, "schedule.sync_every=1", exchange=Distributed())
    assert toy.same_weights(net, toy.model(seed=0)) and outer.exchange.peer == f"00000{rank}"
    for step in range(2):
        toy.inner_step(net, torch.optim.SGD(net.parameters(), lr=0.1), rank, step)
        assert not any(report.failed for report in outer.after_inner_step(1))
    outer.exchange.close()
    return outer.slow_hash


def test_processes_of_torchrun_begin_alike(tmp_path):
    assert len(set(process_group.together(3, process, tmp_path))) == 1


def lost(rank):
    """One of two; the first leaves when the other wants its weights."""
    exchange = Distributed(timeout_s=20)
    if rank == 0:
        exchange.hand_over = lambda way, state: (exchange.abort(), b"")[1]
    try:
        outerloop.from_recipe("sparseloco", toy.model(seed=rank), exchange=exchange)
    except Exception as error:
        return str(error)
    finally:
        dist.barrier()
    return ""


def test_a_process_that_is_lost_meanwhile_fails_the_others(tmp_path):
    _, said = process_group.together(2, lost, tmp_path)
    assert "an exchange between 2 processes failed" in said


@pytest.mark.parametrize("portable", [True, False])
def test_a_late_joiner_on_other_hardware_has_the_same_fingerprint_only_where_hardware_does_not_matter(
    monkeypatch, portable
):
    settings, seen = load.load(["recipe=diloco"]), set()
    monkeypatch.setattr(shared_settings, "make", lambda node: SimpleNamespace(portable=portable))
    for machine in ("AVX2", "DEFAULT"):
        monkeypatch.setattr(arithmetic_platform, "described", lambda machine=machine: machine)
        seen.add(shared_settings.fingerprint(settings))
    assert len(seen) == (1 if portable else 2)
