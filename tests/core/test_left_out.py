"""A round that counts without a peer is free for it: slow weights move as everybody's, progress and residual stay."""

import copy
from dataclasses import replace

import pytest
import torch

from outerloop.compress.index.rice import Rice
from outerloop.compress.topk import TopK
from outerloop.compress.two_bit import TwoBit
from outerloop.exchange.inprocess import InProcess
from outerloop.feedback.ef import ErrorFeedback
from outerloop.feedback.local_error import LocalError
from outerloop.feedback.loco import LoCo
from outerloop.methods.sign import Sign
from outerloop.schedule.every_h import EveryH
from outerloop.schedule.streaming import Streaming
from outerloop.types import Contribution, ReplicasDiverged, Round, UserError
from tests.support import forged_payloads, toy
from tests.support.late_peer import LATE, Behind, Log, Told, WithoutLate, fused
from tests.support.tensors import same_tensors
from tests.support.toy_pipelines import FUSED


def topk():
    return TopK(chunk=16, k=3, values=TwoBit(chunk=None), index=Rice())


def streaming():
    return fused("momentum") | {"schedule": Streaming(sync_every=4, fragments=2, delay=1)}


CASES = {
    "dense": lambda: {"method": toy.sgd(0.7, 0.9, True)},
    "local": lambda: {"compress": topk(), "feedback": LocalError(beta=0.9)},
    "loco": lambda: {"compress": topk(), "feedback": LoCo(beta=0.8, reset_every=100)},
    "ef8": lambda: {"compress": topk(), "feedback": ErrorFeedback(beta=0.9, bits=8)},
    "sign": lambda: {"method": Sign(lr=0.01), "compress": topk(), "feedback": ErrorFeedback(beta=0.9)},
    "delay": lambda: {"feedback": ErrorFeedback(beta=0.9), "schedule": EveryH(sync_every=4, delay=2)},
    "carried": lambda: fused("sparseloco") | {"schedule": EveryH(sync_every=4, delay=2), "merge_local": "carry"},
    "merged": lambda: {"merge_local": 0.5},
    "float64": lambda: {"state_dtype": "float64"},
    "streaming": streaming,
    **{recipe: lambda recipe=recipe: fused(recipe) for recipe in FUSED},
}
GOES_FUSED = {*FUSED, "streaming", "carried"}


def delta_of(loop):
    return {name: loop.slow[name] - p.detach() for name, p in loop.island.params.items()}


@pytest.mark.parametrize("case", CASES)
def test_a_round_without_this_peer_changes_nothing_that_is_its_own(case):
    def work(exchange):
        parts = {"schedule": EveryH(sync_every=2)} | CASES[case]()
        loop = toy.outer(toy.model(), WithoutLate(exchange, {1, 2}), **parts)
        assert bool(loop.pipeline.split(loop.slow)[0]) == (case in GOES_FUSED)
        inner = torch.optim.SGD(loop.model.parameters(), lr=0.1)
        hashes, samples = [], 0
        for step in range(4 * loop.schedule.sync_every + loop.schedule.delay):
            toy.inner_step(loop.model, inner, exchange.rank, step)
            delta, kept = delta_of(loop), copy.deepcopy(loop.feedback.state_dict())
            reports, samples = loop.after_inner_step(4), samples + 4
            hashes += [report.slow_hash for report in reports]
            for report in reports:
                assert not report.failed
                left_out = exchange.peer == LATE and exchange.peer not in report.peers
                assert left_out == (exchange.rank == 1 and report.round.number in (1, 2))
                if left_out:
                    same_to_rounding(delta_of(loop), delta)
                    assert same(loop.feedback.state_dict(), kept) and loop.samples == samples
                else:
                    samples = loop.samples
        return hashes, loop.slow

    (one, slow), (two, others) = toy.run_workers(2, work)
    assert one == two and len(one) >= 4 and same_tensors(slow, others)


def same_to_rounding(now, before):
    """Of weights of size 1 in float32."""
    for name, x in before.items():
        assert torch.allclose(now[name], x, atol=3e-7, rtol=0), name
    assert max(float(x.abs().max()) for x in before.values()) > 1e-3


def same(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return all(map(same, a, b)) if isinstance(a, list | tuple) else a == b


def train(exchange, *, steps, case="sparseloco", schedule=None, ends=None):
    parts = {"schedule": schedule or EveryH(sync_every=2)} | CASES[case]()
    loop = toy.outer(toy.model(), exchange, **(ends or {}), **parts)
    inner = torch.optim.SGD(loop.model.parameters(), lr=0.1)
    reports = []
    for step in range(steps):
        toy.inner_step(loop.model, inner, exchange.rank, step)
        reports += loop.after_inner_step(4)
    return loop, reports


def recorded(**options):
    """What a lone worker does, and the log of it."""

    def work(exchange):
        log = Log(exchange)
        return train(log, **options)[0], log.rounds

    return toy.run_workers(1, work)[0]


@pytest.mark.parametrize("case", ["sparseloco", "dense", "streaming"])
def test_a_peer_that_was_away_lands_missed_rounds_and_launches_the_open_one(case):
    alone, log = recorded(steps=9, case=case)
    missed = sorted(log)
    [(loop, reports)] = toy.run_workers(1, lambda e: train(Behind(e, dict(log)), steps=2, case=case))
    landed = [report.round for report in reports]
    assert landed[: len(missed)] == missed and all(report.payload_bytes == 0 for report in reports[: len(missed)])
    assert reports[len(missed) - 1].slow_hash == alone.slow_hash
    open_round = Round(0, 0) if not missed else next_of(missed[-1], loop.schedule.fragments)
    assert open_round in loop.schedule.due(loop.inner_step).launch
    if not loop.schedule.delay:
        assert landed[-1] == open_round and reports[-1].peers == (LATE,) and loop.samples == 0
    else:
        assert [*loop.in_flight] == [open_round] and loop.in_flight[open_round].samples == 8


def next_of(round, fragments):
    return Round(round.number, round.fragment + 1) if round.fragment + 1 < fragments else Round(round.number + 1)


@pytest.mark.parametrize("limit", ["rounds", "steps"])
@pytest.mark.parametrize("delay", [0, 1])
def test_nobody_skips_beyond_the_last_round(delay, limit):
    ends = {limit: {"rounds": 3, "steps": 6 + delay}[limit]}
    schedule = EveryH(sync_every=2, delay=delay)
    _, log = recorded(steps=6 + delay, schedule=schedule, case="float64")
    assert sorted(log) == [Round(0), Round(1), Round(2)]
    [(loop, reports)] = toy.run_workers(
        1, lambda e: train(Behind(e, log), steps=2 + delay, ends=ends, schedule=schedule, case="float64")
    )
    assert len(reports) == 3 and loop.inner_step == 6 + delay and not loop.in_flight and len(log) == 3


def test_a_message_of_an_earlier_life_is_nobody_s_own():
    """A restarted peer finds a payload of its own in a round that it launches anew: that one does not count for it."""

    class Earlier(toy.Around):
        def start(self, blob, round):
            first = self.__dict__.setdefault("first", blob)
            return Told([Contribution("000", round, first)])

    [(loop, [report])] = toy.run_workers(1, lambda e: train(Earlier(e), steps=2))
    assert report.peers == ("000",) and loop.samples == 0
    earlier = recorded(steps=2)[1][Round(0)]

    class Other(toy.Around):
        def start(self, blob, round):
            assert blob != earlier[0].blob
            return Told(earlier)

    def work(exchange):
        loop = toy.outer(toy.model(), Other(exchange), **CASES["sparseloco"](), schedule=EveryH(sync_every=1))
        toy.inner_step(loop.model, torch.optim.SGD(loop.model.parameters(), lr=0.1), 3, 7)
        loop.after_inner_step(4)
        assert loop.samples == 4 and not loop.feedback.state_dict()["residual"]

    toy.run_workers(1, work)


def test_a_follower_with_other_slow_weights_is_told():
    _, log = recorded(steps=4)

    def work(exchange):
        loop = toy.outer(
            toy.model(seed=5), Behind(exchange, log), **CASES["sparseloco"](), schedule=EveryH(sync_every=2)
        )
        loop.after_inner_step(1)
        with pytest.raises(ReplicasDiverged, match=LATE):
            loop.after_inner_step(1)

    toy.run_workers(1, work)


class Forging(toy.Around):
    """An exchange in which the last peer's message is well-formed and wrong."""

    info = replace(InProcess.info, waits_for_all=False)

    def __init__(self, inner, change):
        super().__init__(inner)
        self.change = change

    def start(self, blob, round):
        def forge(messages):
            *rest, last = messages
            draft = forged_payloads.apart(last.blob)
            self.change(draft)
            return [*rest, Contribution(last.peer, last.round, draft.assembled())]

        return toy.Changed(self.inner.start(blob, round), forge)


def not_finite(draft):
    for section in draft.sections():
        if draft.names[section.name] != b"index":
            section.data = bytes([0xFF] * len(section.data))


def another_model(draft):
    draft.numbers[4] += 1


def beyond_the_end(draft):
    for section in draft.sections():
        if draft.names[section.name] == b"index":
            section.data = bytes([0xFF] * len(section.data))


def of_round_before(draft):
    draft.numbers[1] -= 1


def of_another_peer(draft):
    draft.peer = b"000"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (not_finite, "finite"),
        (another_model, "has another model: its schema"),
        (beyond_the_end, "tensor"),
        (of_round_before, "sent a message for"),
        (of_another_peer, "sent a message for"),
    ],
)
def test_a_payload_that_cannot_be_landed_is_left_out_by_name_and_training_goes_on(change, why):
    def work(exchange):
        loop = toy.outer(toy.model(), Forging(exchange, change), **CASES["sparseloco"](), h=1)
        inner, hashes = torch.optim.SGD(loop.model.parameters(), lr=0.1), []
        for step in range(3):
            toy.inner_step(loop.model, inner, exchange.rank, step)
            [report] = loop.after_inner_step(4)
            assert not report.failed and report.peers == ("000", "001")
            [refused] = report.refused
            assert refused.startswith("002: ") and why in refused and len(refused) < 500, refused
            hashes.append(report.slow_hash)
        assert all(torch.isfinite(x).all() for x in loop.slow.values())
        return hashes

    one, two, three = toy.run_workers(3, work)
    assert one == two == three and len(set(one)) == 3


def test_eager_updates_need_that_every_payload_counts():
    with pytest.raises(UserError, match=r"set eager=false schedule\.delay=0"):
        exchange = WithoutLate(InProcess(hub=toy.Hub(2), rank=0), {})
        toy.outer(toy.model(), exchange, eager=True, schedule=EveryH(sync_every=3, delay=3))
