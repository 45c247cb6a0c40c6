"""What replicas hold alike, handed over: equal bytes everywhere, equal rounds from there on, own progress kept."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import toy
from torch import nn

from outerloop import wire
from outerloop.compress.index.rice import Rice
from outerloop.compress.topk import TopK
from outerloop.compress.two_bit import TwoBit
from outerloop.course import launch_step
from outerloop.feedback.ef import ErrorFeedback
from outerloop.judge import RECENT
from outerloop.payload import schema_of
from outerloop.schedule.every_h import EveryH
from outerloop.schedule.streaming import Streaming
from outerloop.types import Contribution, Outrun, ReplicasDiverged, Round, UserError


class Decided:
    """An exchange in which every round was decided elsewhere: `told` holds its contributions."""

    agrees, size, rank, peer, moving_s, bytes_sent = True, 2, 0, "000", 0.0, 0
    concurrent = waits_for_all = False

    def __init__(self):
        self.told = {}

    def start(self, blob, round):
        contributions = self.told.get(round, [])

        class Pending:
            def wait(self, timeout_s):
                return contributions

        return Pending()

    def decided(self, round):
        return False

    def landed(self, round, state):
        pass

    def once(self, round, read):
        return read({})


def loop_of(kind, schedule=None, **options):
    parts = {"schedule": schedule} if schedule else {}
    parts |= {"method": toy.sgd(0.7, 0.9, True)} if "momentum" in kind else {}
    if "sparse" in kind:
        codec = TopK(chunk=16, k=4, values=TwoBit(chunk=None), index=Rice())
        parts |= {"compress": codec, "feedback": ErrorFeedback(beta=0.9)}
    return toy.outer(toy.model(**options), Decided(), **parts)


def train(loop, rounds, seed=0):
    """This many rounds of one's own, landed as if decided by the two of them."""
    draw = torch.Generator().manual_seed(seed)
    for number in rounds:
        with torch.no_grad():
            for p in loop.model.parameters():
                p += 0.1 * torch.randn(p.shape, generator=draw)
        flight = loop.launch(Round(number))
        flight.pending.wait(0).append(Contribution("000", Round(number), flight.blob))
        loop.in_flight[Round(number)] = flight
        loop.exchange.told[Round(number)] = flight.pending.wait(0)
        assert not loop.land(Round(number)).failed


KINDS = ["plain", "momentum", "sparse", "sparse momentum"]


@pytest.mark.parametrize("kind", KINDS)
def test_who_takes_a_state_over_lands_the_next_rounds_as_its_giver(kind):
    giver, late = loop_of(kind), loop_of(kind, seed=5)
    train(giver, range(3))
    content = giver.inheritance.pack()
    assert len(content) < giver.inheritance.most_bytes
    late.take_over(Round(2), content)
    assert late.inheritance.pack() == content and late.slow_hash == giver.slow_hash and late.inner_step == 9
    for name, p in late.model.named_parameters():
        torch.testing.assert_close(p.detach(), giver.slow[name], atol=1e-6, rtol=0)
    train(giver, [3, 4], seed=1)
    for number in (3, 4):
        late.exchange.told = giver.exchange.told
        late.in_flight[Round(number)] = late.left_out(Round(number))
        late.land(Round(number))
    assert late.inheritance.pack() == giver.inheritance.pack() != content


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_learned_alone_and_the_residual_are_kept(kind):
    giver, away = loop_of(kind), loop_of(kind)
    train(giver, range(5))
    train(away, range(2), seed=1)
    with torch.no_grad():
        for p in away.model.parameters():
            p += 0.3
    delta = {name: away.slow[name] - p.detach() for name, p in away.model.named_parameters()}
    feedback = {name: x.clone() for name, x in away.feedback.state_dict().get("residual", {}).items()}
    assert feedback or "sparse" not in kind
    away.waiting, away.in_flight = [7], {Round(2): away.launch(Round(2))}
    away.take_over(Round(4), giver.inheritance.pack())
    for name, p in away.model.named_parameters():
        torch.testing.assert_close(away.slow[name] - p.detach(), delta[name], atol=1e-5, rtol=1e-5)
    assert all(torch.equal(away.feedback.state_dict()["residual"][name], x) for name, x in feedback.items())
    assert away.slow_hash == giver.slow_hash and not away.in_flight and away.waiting == [7]


def headers(hashes):
    """Messages of peers that hold these slow weights."""
    return [SimpleNamespace(header=SimpleNamespace(peer=peer, slow=slow)) for peer, slow in hashes.items()]


def test_most_replicas_go_on_and_the_others_take_over_their_state():
    loop = loop_of("plain")
    own, at = loop.slow_hash, (loop.slow_hash, Round(3))
    loop.exchange.recovery = lambda at_most: None
    assert loop.judge.diverged(headers({"000": own, "001": own}), *at) == ()
    assert loop.judge.diverged(headers({"000": own, "001": own, "002": 7}), *at) == ("002",)
    assert loop.judge.diverged(headers({"001": own, "002": 7}), *at) == ("002",), "its own counts, taking part or not"
    with pytest.raises(Outrun) as outrun:
        loop.judge.diverged(headers({"000": own, "001": 7, "002": 7}), *at)
    assert outrun.value.state is loop.exchange.recovery
    for even in ({"000": own, "001": 7}, {"001": 7, "002": 8}, {"000": own, "001": 7, "002": own, "003": 7}):
        with pytest.raises(ReplicasDiverged, match="before round 3"):
            loop.judge.diverged(headers(even), *at)
    loop.exchange.recovery = None
    with pytest.raises(ReplicasDiverged):
        loop.judge.diverged(headers({"000": own, "001": own, "002": 7}), *at)


def seen_in(loop, **rounds):
    """A judge that has landed rounds with these peers in them: name -> the last one."""
    for peer, number in rounds.items():
        loop.judge.landed(headers({peer.removeprefix("p"): 0}), Round(number))


@pytest.mark.parametrize("odd", ["000", "001"], ids=["own", "the other"])
def test_a_round_of_two_says_nothing_about_who_is_right(odd):
    """A leader that lies proposes itself and its victim: the victim goes on, and the next round of three tells."""
    loop = loop_of("plain")
    own, at = loop.slow_hash, (loop.slow_hash, Round(3))
    loop.exchange.recovery, loop.exchange.size = lambda at_most: None, 4
    seen_in(loop, p000=2, p001=2, p002=2, p003=2)
    two = headers({"000": own, "001": 7})
    assert loop.judge.diverged(two, *at) == ()
    assert "001: other weights than here; 2 of 4 peers are too few" in loop.judge.in_doubt(two, *at)
    three = headers({"000": own, "001": 7, "002": own if odd == "001" else 7})
    assert not loop.judge.in_doubt(three, *at)
    if odd == "001":
        assert loop.judge.diverged(three, *at) == ("001",)
    else:
        with pytest.raises(Outrun):
            loop.judge.diverged(three, *at)


def test_two_that_are_left_stop_and_so_do_all_when_all_have_shown_their_hashes():
    loop = loop_of("plain")
    own = loop.slow_hash
    loop.exchange.recovery, loop.exchange.size = lambda at_most: None, 4
    seen_in(loop, p000=20, p001=20, p002=20 - RECENT, p003=3)
    two = headers({"000": own, "001": 7})
    assert loop.judge.diverged(two, own, Round(20)) == (), "002 may still tell"
    with pytest.raises(ReplicasDiverged, match="before round 21, and nobody can know whose are right"):
        loop.judge.diverged(two, own, Round(21))
    with pytest.raises(ReplicasDiverged):
        loop.judge.diverged(headers({"000": own, "001": 7, "002": 8, "003": 9}), own, Round(20))


def test_a_round_that_nobody_can_judge_lands_and_is_noted():
    """The victim of a round of two lands it like every other; alone with the other one it stops, with its message."""
    for size, stops in [(4, False), (2, True)]:
        giver, victim = loop_of("plain"), loop_of("plain", seed=5)
        train(giver, range(1))
        [told] = giver.exchange.told[Round(0)]
        victim.exchange.peer, victim.exchange.size = "001", size
        victim.exchange.told = {Round(0): [told]}
        victim.exchange.recovery = lambda at_most: None
        if stops:
            before = victim.slow_hash
            with pytest.raises(ReplicasDiverged):
                [victim.after_inner_step(1) for _ in range(3)]
            assert victim.slow_hash == before and list(victim.in_flight) == [Round(0)], "to be saved, and landed again"
        else:
            [report] = [report for _ in range(3) for report in victim.after_inner_step(1)]
            assert not report.failed and "too few to know whose are right" in report.notes[0]


def test_a_replica_that_differs_heals_at_its_next_landing():
    giver, odd = loop_of("sparse"), loop_of("sparse", seed=5)
    train(giver, range(1))
    [told] = giver.exchange.told[Round(0)]
    message = wire.unpack(told.blob, schema_of(giver.slow))
    other = Contribution("001", Round(0), wire.pack(replace(message.header, peer="001"), message.parts))
    odd.exchange.peer, odd.exchange.told = "002", {Round(0): [told, other]}
    odd.exchange.recovery = lambda at_most: (Round(0), giver.inheritance.pack())
    assert [odd.after_inner_step(1) for _ in range(3)] == [[], [], []]
    assert odd.inner_step == 3 and odd.slow_hash == giver.slow_hash


def test_rounds_that_landed_before_the_take_over_are_told():
    giver, away = loop_of("plain"), loop_of("plain")
    train(giver, range(5))
    away.exchange.told = giver.exchange.told
    away.exchange.recovery = lambda at_most: (Round(4), giver.inheritance.pack())

    def decided(round):
        if round > Round(1):
            raise Outrun(away.exchange.recovery)
        return True

    away.exchange.decided = decided
    reports = [report for _ in range(3) for report in away.after_inner_step(1)]
    assert [report.round for report in reports] == [Round(0), Round(1)] and not any(r.failed for r in reports)
    assert away.inner_step == 15 and away.slow_hash == giver.slow_hash


@pytest.mark.parametrize("delay", [0, 2])
def test_the_step_that_a_round_leaves_after(delay):
    schedule = EveryH(sync_every=5, delay=delay)
    assert [launch_step(schedule, Round(number)) for number in range(3)] == [5, 10, 15]


def test_the_step_that_a_fragment_leaves_after():
    schedule = Streaming(sync_every=6, fragments=2, delay=1)
    assert [launch_step(schedule, Round(number, p)) for number in range(2) for p in range(2)] == [3, 6, 9, 12]


def test_the_state_of_another_model_is_refused_and_changes_nothing():
    loop = loop_of("plain")
    before = loop.inheritance.pack()
    broken = loop_of("plain")
    next(iter(broken.slow.values())).fill_(torch.nan)
    others = {
        "only one side has": toy.outer(nn.Sequential(nn.Linear(7, 7)), Decided()).inheritance.pack(),
        r"is torch.float32 \(8,": loop_of("plain", width=8).inheritance.pack(),
        "is torch.float64": toy.outer(toy.model(), Decided(), state_dtype="float64").inheritance.pack(),
        "is not finite": broken.inheritance.pack(),
        "not a snapshot": before[:-1],
    }
    for said, content in others.items():
        with pytest.raises(UserError, match=f"the others' state does not fit: .*{said}"):
            loop.inheritance.take(content)
    assert loop.inheritance.pack() == before
