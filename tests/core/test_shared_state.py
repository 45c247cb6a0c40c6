"""What replicas hold alike, handed over: equal bytes everywhere, equal rounds from there on, own progress kept."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from outerloop import wire
from outerloop.compress.dct import Dct
from outerloop.compress.identity import Identity
from outerloop.compress.scalecom import ScaleCom
from outerloop.core.codec import schema_of
from outerloop.core.round_scheduler import RoundScheduler
from outerloop.core.verify import RECENT
from outerloop.feedback.ef import ErrorFeedback
from outerloop.inner.muon import MuonWithAdamW
from outerloop.methods.outer_optimizer import OuterOptimizer
from outerloop.methods.sign import Sign
from outerloop.methods.state_check import MOST_ROUNDS, check_counts
from outerloop.schedule.adaptive import Adaptive
from outerloop.schedule.every_h import EveryH
from outerloop.schedule.streaming import Streaming
from outerloop.state import canonical
from outerloop.types import Contribution, QuorumLost, ReplicasDiverged, Round, StateTransferRequired, UserError
from tests.support import toy
from tests.support.decided_rounds import Decided, Pending, loop_of


class Static(Decided):
    """The same without a majority that could hand over its state."""

    info = replace(Decided.info, replicated=False)


def landed(loop, round):
    """The report of a round that is landed now."""
    loop.loop.land(round)
    return loop.loop.reports.pop()


def train(loop, rounds, seed=0):
    """This many rounds of one's own, landed as if decided by the two of them."""
    draw = torch.Generator().manual_seed(seed)
    for number in rounds:
        with torch.no_grad():
            for p in loop.model.parameters():
                p += 0.1 * torch.randn(p.shape, generator=draw)
        flight = loop.launcher.launch_blocking(Round(number))
        flight.pending.wait(0).append(Contribution("000", Round(number), flight.blob))
        loop.in_flight[Round(number)] = flight
        loop.exchange.told[Round(number)] = flight.pending.wait(0)
        assert not landed(loop, Round(number)).failed


KINDS = ["plain", "momentum", "sparse", "sparse momentum"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_peer_lands_the_next_rounds_as_the_donor_of_its_state(kind):
    giver, late = loop_of(kind), loop_of(kind, seed=5)
    train(giver, range(3))
    content = giver.shared_state.serialize()
    assert len(content) < giver.shared_state.max_bytes
    late.loop.take_over(Round(2), content)
    assert late.shared_state.serialize() == content and late.slow_hash == giver.slow_hash and late.inner_step == 9
    for name, p in late.model.named_parameters():
        torch.testing.assert_close(p.detach(), giver.slow[name], atol=1e-6, rtol=0)
    train(giver, [3, 4], seed=1)
    for number in (3, 4):
        late.exchange.told = giver.exchange.told
        late.launcher.join_decided_round(Round(number))
        landed(late, Round(number))
    assert late.shared_state.serialize() == giver.shared_state.serialize() != content


def with_frozen(seed):
    """A loop whose first layer is frozen, drawn from this seed."""
    net = toy.model()
    net[0].requires_grad_(False)
    torch.nn.init.normal_(net[0].weight, generator=torch.Generator().manual_seed(seed))
    return toy.outer(net, Decided())


def test_a_late_joiner_with_other_frozen_weights_is_refused():
    content = with_frozen(0).shared_state.serialize()
    with_frozen(0).shared_state.restore(content)
    other = with_frozen(1)
    before = other.slow_hash
    with pytest.raises(UserError, match=r"frozen weights differ from those of the other peers .load the same base"):
        other.shared_state.restore(content)
    assert other.slow_hash == before
    assert b"frozen" in content and b"frozen" not in loop_of("plain").shared_state.serialize()


@pytest.mark.parametrize("kind", KINDS)
def test_own_progress_and_the_residual_are_kept(kind):
    giver, away = loop_of(kind), loop_of(kind)
    train(giver, range(5))
    train(away, range(2), seed=1)
    with torch.no_grad():
        for p in away.model.parameters():
            p += 0.3
    delta = {name: away.slow[name] - p.detach() for name, p in away.model.named_parameters()}
    feedback = {name: x.clone() for name, x in away.feedback.state_dict().get("residual", {}).items()}
    assert feedback or "sparse" not in kind
    away.launcher.add_samples(7)
    away.launcher.start_round(Round(2))
    away.loop.take_over(Round(4), giver.shared_state.serialize())
    for name, p in away.model.named_parameters():
        torch.testing.assert_close(away.slow[name] - p.detach(), delta[name], atol=1e-5, rtol=1e-5)
    assert all(torch.equal(away.feedback.state_dict()["residual"][name], x) for name, x in feedback.items())
    assert away.slow_hash == giver.slow_hash and not away.in_flight and away.samples == 7


def test_an_announcement_of_a_compressor_that_makes_none_is_refused_and_never_stored():
    """Otherwise, the shared state would contain it, and all peers that load this state would refuse it."""
    giver = loop_of("sparse")
    train(giver, [0])
    flight = giver.launcher.launch_blocking(Round(1))
    message = wire.unpack(flight.blob, schema_of(flight.update))
    parts = {name: {**held, "next": torch.zeros(4, dtype=torch.uint8)} for name, held in message.parts.items()}
    forged = replace(message, parts=parts)
    for name, like in giver.slow.items():
        with pytest.raises(wire.InvalidMessage, match="next"):
            giver.codec.decode(forged, name, like)
    giver.codec.landed([forged], giver.slow)
    assert giver.codec.state_dict() == {"agreed": {}}


def headers(hashes):
    """Messages of peers that hold these slow weights."""
    return [SimpleNamespace(header=SimpleNamespace(peer=peer, slow=slow)) for peer, slow in hashes.items()]


def test_most_replicas_go_on_and_the_others_take_over_their_state():
    loop = loop_of("plain")
    own, at = loop.slow_hash, (loop.slow_hash, Round(3))
    assert loop.verifier.check_replicas(headers({"000": own, "001": own}), *at) == ((), "")
    assert loop.verifier.check_replicas(headers({"000": own, "001": own, "002": 7}), *at) == (("002",), "")
    assert loop.verifier.check_replicas(headers({"001": own, "002": 7}), *at) == (("002",), ""), (
        "its own counts, taking part or not"
    )
    with pytest.raises(StateTransferRequired) as outrun:
        loop.verifier.check_replicas(headers({"000": own, "001": 7, "002": 7}), *at)
    assert outrun.value.state == loop.exchange.recover
    for even in ({"000": own, "001": 7}, {"001": 7, "002": 8}, {"000": own, "001": 7, "002": own, "003": 7}):
        with pytest.raises(ReplicasDiverged, match="before round 4"):
            loop.verifier.check_replicas(headers(even), *at)
    static = loop_of("plain", exchange=Static())
    with pytest.raises(ReplicasDiverged):
        static.verifier.check_replicas(headers({"000": own, "001": own, "002": 7}), *at)


def seen_in(loop, **rounds):
    """A judge that has landed rounds with these peers in them: name -> the last one."""
    for peer, number in rounds.items():
        loop.verifier.record_peers(headers({peer.removeprefix("p"): 0}), Round(number))


@pytest.mark.parametrize("odd", ["000", "001"], ids=["own", "the other"])
def test_a_round_of_two_says_nothing_about_who_is_right(odd):
    """A leader that lies proposes itself and its victim: the victim goes on, and the next round of three tells."""
    loop = loop_of("plain")
    own, at = loop.slow_hash, (loop.slow_hash, Round(3))
    loop.exchange.size = 4
    seen_in(loop, p000=2, p001=2, p002=2, p003=2)
    two = headers({"000": own, "001": 7})
    diverged, note = loop.verifier.check_replicas(two, *at)
    assert diverged == () and "the hashes of 2 of 4 peers are too few to decide" in note
    three = headers({"000": own, "001": 7, "002": own if odd == "001" else 7})
    if odd == "001":
        assert loop.verifier.check_replicas(three, *at) == (("001",), "")
    else:
        with pytest.raises(StateTransferRequired):
            loop.verifier.check_replicas(three, *at)


@pytest.mark.parametrize("seen", [True, False], ids=["seen", "at the start"])
def test_a_round_that_two_liars_of_five_fill_says_nothing_about_who_is_right(seen):
    """A majority of the round is none of the run. Before: the honest one took over a state, in every such round."""
    loop = loop_of("plain")
    own, at = loop.slow_hash, (loop.slow_hash, Round(3))
    loop.exchange.size = 5
    if seen:
        seen_in(loop, p000=2, p001=2, p002=2, p003=2, p004=2)
    filled = headers({"000": own, "003": 7, "004": 7})
    diverged, note = loop.verifier.check_replicas(filled, *at)
    assert diverged == () and "3 of 5 peers are too few" in note
    assert loop.verifier.check_replicas(headers({"000": own, "001": own, "002": own}), *at) == ((), ""), "they agree"
    assert loop.verifier.check_replicas(headers({"000": own, "001": own, "002": own, "004": 7}), *at) == (("004",), "")
    with pytest.raises(StateTransferRequired):
        loop.verifier.check_replicas(headers({"000": own, "001": 7, "002": 7, "003": 7}), *at)


def test_two_that_are_left_stop_and_so_do_all_when_all_have_shown_their_hashes():
    loop = loop_of("plain")
    own = loop.slow_hash
    loop.exchange.size = 4
    seen_in(loop, p000=20, p001=20, p002=20 - RECENT, p003=3)
    two = headers({"000": own, "001": 7})
    assert loop.verifier.check_replicas(two, own, Round(20))[0] == (), "002 may still tell"
    with pytest.raises(ReplicasDiverged, match="before round 22, and it cannot be known whose are right"):
        loop.verifier.check_replicas(two, own, Round(21))
    with pytest.raises(ReplicasDiverged):
        loop.verifier.check_replicas(headers({"000": own, "001": 7, "002": 8, "003": 9}), own, Round(20))


def test_a_round_that_nobody_can_judge_lands_and_is_noted():
    """The victim of a round of two lands it like every other; alone with the other one it stops, with its message."""
    for size, stops in [(4, False), (2, True)]:
        giver, victim = loop_of("plain"), loop_of("plain", seed=5)
        train(giver, range(1))
        [told] = giver.exchange.told[Round(0)]
        victim.exchange.peer, victim.exchange.size = "001", size
        victim.exchange.told = {Round(0): [told]}
        if stops:
            before = victim.slow_hash
            with pytest.raises(ReplicasDiverged):
                [victim.after_inner_step(1) for _ in range(3)]
            assert victim.slow_hash == before and not victim.in_flight, "free, as a failed one"
        else:
            [report] = [report for _ in range(3) for report in victim.after_inner_step(1)]
            assert not report.failed and "too few to decide whose" in report.notes[0]


def test_the_update_of_a_round_that_ended_a_run_leaves_with_the_first_round_after_the_resume():
    """Before: saved as in flight, due never again, its samples taken off every later message."""
    giver, victim = loop_of("plain"), loop_of("plain", seed=5)
    train(giver, range(1))
    [told] = giver.exchange.told[Round(0)]
    victim.exchange.peer, victim.exchange.told = "001", {Round(0): [told]}
    with pytest.raises(ReplicasDiverged):
        [victim.after_inner_step(2) for _ in range(3)]
    resumed = loop_of("plain", seed=5)
    resumed.load_state_dict(victim.evolved())
    own = []
    resumed.exchange.start = lambda blob, round: own.append((round, wire.read(blob)[0].samples)) or Pending([])
    for _ in range(3):
        resumed.after_inner_step(2)
    assert own == [(Round(1), 12)] and not resumed.in_flight


def test_the_update_of_a_round_that_was_not_decided_in_time_leaves_with_the_first_round_after_the_resume():
    """The round itself is not saved as in flight: its landing would never be due again."""

    class Undecided(Pending):
        def wait(self, timeout_s):
            raise QuorumLost("no round was decided for 600 s")

    alone = loop_of("sparse")
    alone.exchange.start = lambda blob, round: Undecided([])
    before = alone.slow_hash
    with pytest.raises(QuorumLost):
        [alone.after_inner_step(2) for _ in range(3)]
    assert alone.slow_hash == before and not alone.in_flight and not alone.feedback.state_dict()["residual"]
    resumed, own = loop_of("sparse", seed=5), []
    resumed.load_state_dict(alone.evolved())
    resumed.exchange.start = lambda blob, round: own.append((round, wire.read(blob)[0].samples)) or Pending([])
    for _ in range(3):
        resumed.after_inner_step(2)
    assert own == [(Round(1), 12)]


def test_a_replica_that_differs_heals_at_its_next_landing():
    giver, odd = loop_of("sparse"), loop_of("sparse", seed=5)
    train(giver, range(1))
    [told] = giver.exchange.told[Round(0)]
    message = wire.unpack(told.blob, schema_of(giver.slow))
    other = Contribution("001", Round(0), wire.pack(replace(message.header, peer="001"), message.parts))
    odd.exchange.peer, odd.exchange.told = "002", {Round(0): [told, other]}
    odd.exchange.recover = lambda at_most: (Round(0), giver.shared_state.serialize())
    assert [odd.after_inner_step(1) for _ in range(3)] == [[], [], []]
    assert odd.inner_step == 3 and odd.slow_hash == giver.slow_hash


def test_rounds_that_landed_before_the_take_over_are_told():
    giver, away = loop_of("plain"), loop_of("plain")
    train(giver, range(5))
    away.exchange.told = giver.exchange.told
    away.exchange.recover = lambda at_most: (Round(4), giver.shared_state.serialize())

    def decided(round):
        if round > Round(1):
            raise StateTransferRequired(away.exchange.recover)
        return True

    away.exchange.decided = decided
    reports = [report for _ in range(3) for report in away.after_inner_step(1)]
    assert [report.round for report in reports] == [Round(0), Round(1)] and not any(r.failed for r in reports)
    assert away.inner_step == 15 and away.slow_hash == giver.slow_hash


@pytest.mark.parametrize("delay", [0, 2])
def test_the_step_that_a_round_leaves_after(delay):
    launch_step = RoundScheduler(EveryH(sync_every=5, delay=delay), rounds=None).launch_step
    assert [launch_step(Round(number)) for number in range(3)] == [5, 10, 15]


def test_the_step_that_a_fragment_leaves_after():
    launch_step = RoundScheduler(Streaming(sync_every=6, fragments=2, delay=1), rounds=None).launch_step
    assert [launch_step(Round(number, p)) for number in range(2) for p in range(2)] == [3, 6, 9, 12]


def test_the_state_of_another_model_is_refused_and_changes_nothing():
    loop = loop_of("plain")
    before = loop.shared_state.serialize()
    broken = loop_of("plain")
    next(iter(broken.slow.values())).fill_(torch.nan)
    others = {
        "only one has": toy.outer(nn.Sequential(nn.Linear(7, 7)), Decided()).shared_state.serialize(),
        r"is torch.float32 \(8,": loop_of("plain", width=8).shared_state.serialize(),
        "is torch.float64": toy.outer(toy.model(), Decided(), state_dtype="float64").shared_state.serialize(),
        "is not finite": broken.shared_state.serialize(),
        "not an encoded state": before[:-1],
    }
    for said, content in others.items():
        with pytest.raises(UserError, match=f"the other peers does not match this configuration: .*{said}"):
            loop.shared_state.restore(content)
    assert loop.shared_state.serialize() == before


def adamw():
    return OuterOptimizer(optimizer=lambda params: torch.optim.AdamW(params, lr=0.1), lr_factor=lambda number: 1.0)


def muon(params):
    return MuonWithAdamW(params, lr=0.1, adamw_lr=0.1, momentum=0.9, betas=(0.9, 0.95), weight_decay=0.0, fused=False)


PARTS = {
    "sgd": lambda: {"method": toy.sgd(0.7, 0.9, True)},
    "adamw": lambda: {"method": adamw()},
    "adagrad": lambda: {"method": OuterOptimizer(optimizer=lambda params: torch.optim.Adagrad(params, lr=0.1))},
    "muon": lambda: {"method": OuterOptimizer(optimizer=muon)},
    "sign": lambda: {"method": Sign(lr=0.1)},
    "adaptive": lambda: {"schedule": Adaptive(sync_every=3, sync_min=2, sync_max=9, low=0.2, high=0.5)},
    "scalecom": lambda: {
        "compress": ScaleCom(chunk=16, k=4, values=Identity()),
        "feedback": ErrorFeedback(beta=0.9),
    },
    "scalecom behind dct": lambda: {
        "compress": Dct(chunk=16, of=ScaleCom(chunk=16, k=4, values=Identity())),
        "feedback": ErrorFeedback(beta=0.9),
    },
}


def loop_with(kind, seed=0):
    return toy.outer(toy.model(seed=seed), Decided(), **PARTS[kind]())


@pytest.mark.parametrize("kind", PARTS)
def test_the_state_of_every_part_is_restored(kind):
    giver, late = loop_with(kind), loop_with(kind, seed=5)
    for rounds in (range(0), range(3)):
        train(giver, rounds)
        late.shared_state.restore(giver.shared_state.serialize())
        assert late.shared_state.serialize() == giver.shared_state.serialize()


def kept(place, key):
    return lambda state: (state["method"]["optimizer"]["state"][place], key)


def group(key):
    return lambda state: (state["method"]["optimizer"]["param_groups"][0], key)


def part(*path):
    def found(state):
        for key in path[:-1]:
            state = state[key]
        return state, path[-1]

    return found


HUGE, SLOW = torch.full((7, 7), torch.nan), "0.weight"
STEP, ONES, NO_POSITIONS = {"step": torch.ones(())}, [3, torch.ones(2)], [3, torch.full((7,), 255, dtype=torch.uint8)]
AGREED = part("agreed", "agreed", SLOW)
BUFFER = kept(0, "momentum_buffer")
BROKEN = {
    "momentum that is not finite": ("sgd", BUFFER, HUGE, r"momentum_buffer of 0.weight is not f"),
    "infinite momentum": ("sgd", BUFFER, HUGE.nan_to_num(torch.inf), r"momentum_buffer of 0.weight is not f"),
    "infinite slow weights": ("sgd", part("slow", SLOW), HUGE.nan_to_num(torch.inf), f"{SLOW} is not finite"),
    "momentum of another shape": ("sgd", BUFFER, torch.ones(7), r"momentum_buffer.* has the wrong shape \(7"),
    "momentum in float64": ("sgd", kept(1, "momentum_buffer"), torch.ones(7).double(), "is torch.float64, expected"),
    "momentum that is a number": ("sgd", kept(1, "momentum_buffer"), 1.0, "of 0.bias is not a tensor: 1.0"),
    "more than momentum": ("sgd", kept(0, "more"), torch.ones(7, 7), "of 0.weight must be a map of momentum"),
    "momentum of a parameter more": ("sgd", part("method", "optimizer", "state", 99), {}, "for different parameters"),
    "another learning rate": ("sgd", group("lr"), 1e9, "lr is 1000000000.0, expected 0.7"),
    "a rate that is none": ("sgd", group("lr"), float("nan"), "lr is nan, expected"),
    "another setting": ("sgd", group("dampening"), "x", "dampening is 'x', expected 0"),
    "a setting more": ("sgd", group("more"), 1, "not have the same settings as the local one"),
    "parameters in another order": ("sgd", group("params"), [1, 0, 2, 3, 4, 5], "params is .*, expected"),
    "no groups": ("sgd", part("method", "optimizer", "param_groups"), [], "must have 1 parameter groups"),
    "rounds below zero": ("sgd", part("method", "rounds", SLOW), -1, f"round count of {SLOW} must be 0 to"),
    "rounds of no parameter": ("sgd", part("method", "rounds", "x"), 1, "round counts are for different parameters"),
    "a method's part more": ("sgd", part("method", "x"), 1, "must be a map with the keys optimizer, rounds"),
    "no method": ("sgd", part("method"), None, "must be a map with the keys optimizer, rounds"),
    "a scheduled rate that is not finite": ("adamw", group("lr"), float("inf"), "lr is not a finite number"),
    "a scheduled rate that is true": ("adamw", group("lr"), True, "lr is not a finite number"),
    "rounds far too many": ("sgd", part("method", "rounds", SLOW), MOST_ROUNDS + 1, f"count of {SLOW} must be 0 to"),
    "other betas": ("adamw", group("betas"), [0.9, 0.5], r"betas is \[0.9, 0.5\], expected"),
    "a negative v": ("adamw", kept(0, "exp_avg_sq"), -torch.ones(7, 7), "exp_avg_sq of 0.weight is negative"),
    "no v": ("adamw", part("method", "optimizer", "state", 0), STEP, "of 0.* must contain all"),
    "a step that is none": ("adamw", kept(0, "step"), torch.tensor(-3.0), "step of 0.weight is negative"),
    "a complex step": ("adamw", kept(0, "step"), torch.tensor(3.0 + 0j), "is torch.complex64, which is not supported"),
    "a complex sum": ("adagrad", kept(1, "sum"), torch.ones(7) + 0j, "of 0.bias is torch.complex64, which is not"),
    "a step of eight bits": ("adamw", kept(0, "step"), torch.tensor(3.0).to(torch.float8_e4m3fn), "e4m3fn, which is"),
    "a step far too large": ("adamw", kept(0, "step"), torch.tensor(1e20), "step of 0.weight is more than"),
    "more than a parameter": ("adagrad", kept(1, "sum"), torch.ones(100), r"of 0.bias has the wrong shape \(100,"),
    "a sum that is not finite": ("adagrad", kept(0, "sum"), HUGE, "sum of 0.weight is not finite"),
    "muon's momentum": ("muon", BUFFER, HUGE, "of 0.weight is not finite"),
    "muon's rate": ("muon", group("lr"), 7.0, "lr is 7.0, expected 0.1"),
    "one optimizer of two": ("muon", part("method", "optimizer", "param_groups"), [], "must have 2 parameter groups"),
    "rounds that are no number": ("sign", part("method", "rounds", SLOW), "x", f"round count of {SLOW} must be 0 to"),
    "H beyond its limits": ("adaptive", part("schedule", "sync_every"), 10, "sync_every must be 2 to 9, received 10"),
    "H that is no number": ("adaptive", part("schedule", "sync_every"), True, "must be 2 to 9, received True"),
    "a schedule of the year 3000": ("adaptive", part("schedule", "landed"), 1 << 50, "schedule's landed must be -1 to"),
    "no schedule": ("adaptive", part("schedule"), {}, "sync_every"),
    "a schedule where there is none": ("sgd", part("schedule"), {"landed": 1}, "this peer's schedule has none"),
    "agreed where nothing is": ("sgd", part("agreed", "agreed"), {SLOW: ONES}, f"an agreed tensor for {SLOW}"),
    "agreed for no parameter": ("scalecom", part("agreed", "agreed", "x"), ONES, "an agreed tensor for x"),
    "agreed in floats": ("scalecom", AGREED, ONES, f"for {SLOW}: positions are torch.float32"),
    "agreed positions that are none": ("scalecom", AGREED, NO_POSITIONS, "position|bytes|index"),
    "agreed in no round": ("scalecom", AGREED, ["x", torch.ones(2)], "must be a round number and"),
    "a slow weight that is no tensor": ("sgd", part("slow", SLOW), 3, f"{SLOW} is not a tensor, exp"),
    "a buffer more": ("sgd", part("buffers", "x"), torch.ones(1), "only one has x"),
    "norms that are not positive": ("sgd", part("screen"), {"landed": {0: [float("nan")]}}, "not positive and finite"),
    "a norm beyond all floats": ("sgd", part("screen"), {"landed": {0: [10**400]}}, "too large to convert to float"),
    "counts below zero": ("sgd", part("contributions", "peers", "x"), [-1, 8, 0, 1], "must be 4 whole numbers from 0"),
    "samples in part": ("sgd", part("contributions", "peers", "000"), [1, 0.5, 0, 1], "must be 4 whole numbers from 0"),
    "a first round after the last": ("sgd", part("contributions", "peers", "x"), [1, 8, 2, 1], "later than its last"),
    "a count too few": ("sgd", part("contributions", "peers", "x"), [1], "must be 4 whole numbers from 0"),
    "counts of a long name": ("sgd", part("contributions", "peers", "x" * 129), [1] * 4, "4096 peer ids to their"),
    "counts that are none": ("sgd", part("contributions", "peers"), 7, "has no attribute .keys."),
    "a rate beyond all floats": ("adamw", group("lr"), 10**400, "too large to convert to float"),
    "a part more": ("sgd", part("x"), 1, "a state must be a map with the keys"),
}  # fmt: skip


def test_the_largest_round_count_is_accepted():
    check_counts({"w": MOST_ROUNDS}, {"w": torch.zeros(1)})


@pytest.mark.parametrize("broken", BROKEN)
def test_a_state_of_which_one_thing_is_wrong_is_refused_by_name_and_changes_nothing(broken):
    kind, place, value, said = BROKEN[broken]
    giver, late = loop_with(kind), loop_with(kind, seed=5)
    train(giver, range(2))
    before = late.shared_state.serialize()
    state = canonical.unpack(giver.shared_state.serialize())
    holder, key = place(state)
    holder[key] = value
    with pytest.raises(UserError, match=f"the other peers does not match this configuration: .*{said}"):
        late.shared_state.restore(canonical.pack(state))
    assert late.shared_state.serialize() == before
    for name, p in late.model.named_parameters():
        assert torch.equal(p.detach(), late.slow[name])
