"""schedule=adaptive: H goes by how far payloads agree; all peers take the same H, also who restarts or comes late."""

import itertools

import pytest
import torch

from outerloop.aggregate.mean import Mean
from outerloop.aggregate.similarity import agreement
from outerloop.compress.identity import Identity
from outerloop.compress.index.rice import Rice
from outerloop.compress.topk import TopK
from outerloop.config import build, load, shared_settings
from outerloop.core import compatibility
from outerloop.core.round_scheduler import RoundScheduler, next_round
from outerloop.exchange.inprocess_gossip import InProcessGossip
from outerloop.feedback.ef import ErrorFeedback
from outerloop.feedback.none import NoFeedback
from outerloop.methods.noloco import NoLoCo
from outerloop.schedule.adaptive import Adaptive
from outerloop.schedule.every_h import EveryH
from outerloop.types import Round, UserError
from tests.support import toy
from tests.support.decided_rounds import loop_of
from tests.support.late_peer import WithoutLate, fused


def adaptive(sync_every=4, sync_min=2, sync_max=9, low=0.2, high=0.5, delay=0):
    return Adaptive(sync_every=sync_every, sync_min=sync_min, sync_max=sync_max, low=low, high=high, delay=delay)


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ([[1, 2], [1, 2]], 1.0),
        ([[1, 2], [-1, -2]], -1.0),
        ([[1, 2], [2, -1]], 0.0),
        ([[3, 0], [0, 5]], None),  # nothing that two have sent
        ([[1, 9, 0], [1, 0, 7]], 1.0),  # what one alone has sent is left out
        ([[1, 2], [3, 1]], 2 * (3 + 2) / (1 + 4 + 9 + 1)),
        ([[1], [2], [3]], 2 * (2 + 3 + 6) / (2 * (1 + 4 + 9))),
        ([[5, 5]], None),
        ([[0, 0], [0, 0]], None),
        ([[], []], None),
    ],
)
def test_agreement_by_hand(sent, expected):
    assert agreement([[torch.tensor(x, dtype=torch.float32) for x in sent]]) == (
        expected if expected is None else pytest.approx(expected, abs=1e-6)
    )


@pytest.mark.parametrize("value", [1.0, 1e-45])
def test_agreement_is_at_most_one_despite_rounding(value):
    assert agreement([[torch.full((8,), value)] * 3]) == 1.0


def test_dense_agreement_is_that_of_gradient_diversity_over_all_tensors():
    one, other = [torch.randn(3, 50) for _ in range(4)], [torch.randn(4, 7) + 1 for _ in range(4)]
    flat = [torch.cat([a.flatten(), b.flatten()]).double() for a, b in zip(one, other, strict=True)]
    diversity = sum(float(x.square().sum()) for x in flat) / float(sum(flat).square().sum())
    assert agreement([one, other]) == pytest.approx((1 / diversity - 1) / 3, rel=1e-5)


@pytest.mark.parametrize("recipe", ["sparseloco", "clipped", "local"])
def test_agreement_on_kept_values_is_that_of_dense_tensors(recipe):
    """What the kernels land is never made dense to be compared."""
    told = []

    def work(exchange):
        net = toy.model()
        loop = toy.outer(net, exchange, **fused(recipe))
        loop.verifier.measures, verdict = True, loop.verifier.verify

        def both(received, like, refused):
            one = verdict(received, like, refused)
            decoded = ([loop.codec.decode(m, name, x) for m in one.aggregated.messages] for name, x in like.items())
            told.append((one.agreement, agreement(decoded), len(one.aggregated.kept)))
            return one

        loop.verifier.verify = both
        for step in range(6):
            toy.inner_step(net, torch.optim.AdamW(net.parameters(), lr=0.01), exchange.rank, step)
            loop.after_inner_step(4)

    toy.run_workers(3, work)
    assert told
    for sparse, dense, kept in told:
        assert kept and sparse == pytest.approx(dense, rel=1e-5)


@pytest.mark.parametrize("threads", [2, 3])
def test_agreement_is_the_same_bits_on_any_number_of_threads(threads):
    sent = [[torch.randn(300_007, generator=torch.Generator().manual_seed(p)) for p in range(3)]]
    before = torch.get_num_threads()
    alone = agreement(sent)
    try:
        torch.set_num_threads(threads)
        assert agreement(sent) == alone
    finally:
        torch.set_num_threads(before)


def launches(schedule, until):
    return [(step, round.number) for step in range(1, until + 1) for round in schedule.due(step).launch]


def test_h_by_hand():
    """4 -> 5 -> 6 -> 7 -> 8 -> 9, the most; 9 -> 7 -> 6 -> … -> 2, the least; between the borders it stays."""
    schedule = adaptive()
    seen = []
    for number, rho in enumerate([0.51] * 6 + [0.5, 0.2, None] + [-1.0] * 7):
        schedule.observe(Round(number), rho)
        seen.append(schedule.sync_every)
    assert seen == [5, 6, 7, 8, 9, 9, 9, 9, 9, 7, 6, 5, 4, 3, 2, 2]
    assert adaptive().next_h(0.5) == adaptive().next_h(0.2) == 4, "neither above the upper nor below the lower border"


def test_rounds_leave_h_after_the_last_one():
    schedule = adaptive(delay=1)
    assert launches(schedule, 12) == [(4, 0), (8, 1), (12, 2)] and schedule.inner_steps(3) == 13
    why = schedule.observe(Round(0), 0.75)
    assert why == "schedule: H 4 -> 5 inner steps, because the agreement of the payloads is 0.75, above 0.5"
    assert launches(schedule, 15) == [(4, 0), (9, 1), (14, 2)] and schedule.inner_steps(3) == 15
    assert [step for step in range(1, 16) if schedule.due(step).land] == [5, 10, 15]
    assert schedule.observe(Round(2), 0.3) == ""  # round 1 has failed: it left when it was due
    assert (
        launches(schedule, 20) == [(14, 2), (19, 3)]
        and RoundScheduler(schedule, rounds=None).launch_step(Round(2)) == 14
    )


def test_without_change_it_is_every_h():
    one, other = adaptive(sync_min=4, sync_max=4, delay=2), EveryH(sync_every=4, delay=2)
    for number in range(5):
        one.observe(Round(number), 0.9)
    assert [one.due(step) for step in range(20, 40)] == [other.due(step) for step in range(20, 40)]
    assert one.inner_steps(7) == other.inner_steps(7)


@pytest.mark.parametrize(
    ("options", "typed"),
    [
        ({"sync_min": 5}, "schedule.sync_min=1 schedule.sync_max=4"),
        ({"sync_max": 3}, "schedule.sync_min=1 schedule.sync_max=4"),
        ({"delay": 2}, "schedule.sync_min=3 schedule.sync_max=4"),
        ({"low": 0.6}, "schedule.low=0.2 schedule.high=0.5"),
        ({"high": 1.1}, "schedule.low=0.2 schedule.high=0.5"),
    ],
)
def test_impossible_settings_are_refused_with_the_option_to_set(options, typed):
    with pytest.raises(UserError, match="set " + typed) as error:
        adaptive(**options)
    assert "\n" not in str(error.value)


def test_gossip_and_weights_and_gradients_are_refused():
    def refused(method, exchange=toy.InProcess.info):
        with pytest.raises(UserError) as error:
            compatibility.refuse(
                method=method, compress=Identity(), feedback=NoFeedback(), aggregate=Mean(), exchange=exchange,
                schedule=adaptive(sync_every=1, sync_min=1), eager=False, merge_local=0.0,
            )  # fmt: skip
        assert "\n" not in str(error.value)
        return str(error.value)

    gossip = NoLoCo(alpha=0.5, beta=0.7, gamma=None, consensus="inside")
    assert "set schedule=every_h, or exchange=swarm_gather" in refused(gossip, InProcessGossip.info)
    assert "set schedule=every_h, or method=diloco" in refused(gossip)
    assert "set schedule=every_h schedule.sync_every=1" in refused(toy.sgd(reads="gradients"))


CASES = {
    "dense": lambda: {"method": toy.sgd(0.7, 0.9, True)},
    "sparse": lambda: {
        "compress": TopK(chunk=16, k=6, values=Identity(), index=Rice()),
        "feedback": ErrorFeedback(beta=0.9),
    },
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("delay", [0, 1])
def test_all_peers_take_the_same_h(case, delay):
    """Also one whose messages do not count in some rounds; borders are such that H moves both ways."""

    def work(exchange):
        net, schedule = toy.model(), adaptive(low=0.3, high=0.6, delay=delay)
        loop = toy.outer(net, WithoutLate(exchange, {1, 3}), schedule=schedule, **CASES[case]())
        inner, seen = torch.optim.SGD(net.parameters(), lr=0.1), []
        step = 0
        while len(seen) < 12:
            toy.inner_step(net, inner, exchange.rank, step)
            for report in loop.after_inner_step(1):
                told = [note for note in report.notes if note.startswith("schedule: H ")]
                seen.append((loop.inner_step, schedule.sync_every, report.slow_hash, told))
            step += 1
        return seen

    one, *others = toy.run_workers(3, work)
    hs = [h for _, h, _, _ in one]
    assert len(set(hs)) > 2 and all(other == one for other in others)
    assert [bool(told) for *_, told in one[1:]] == [a != b for a, b in itertools.pairwise(hs)]
    left = [step - delay for step, *_ in one]
    assert [b - a for a, b in itertools.pairwise(left)] == hs[:-1]


def test_a_restart_takes_the_same_h():
    parts = lambda: {"schedule": adaptive(low=-1.0, high=-1.0)}  # noqa: E731
    whole, half, resumed = toy.restarted(parts, steps=30, stop_at=13)
    assert half[0][1]["schedule"] == {"sync_every": 6, "landed": 1, "left_after": 9}
    assert whole[0][1]["schedule"] == resumed[0][1]["schedule"] != half[0][1]["schedule"]
    fresh = build.make_schedule(SETTINGS, lambda: half[0][1])
    assert next_round(fresh, 13) == Round(2) and fresh.sync_every == 6


@pytest.mark.parametrize("schedule", [{"sync_every": 3, "landed": 1, "left_after": 9}, {}])
def test_a_saved_h_outside_the_limits_is_one_line(schedule):
    """sync_min is 5; an earlier schedule without a state is refused too."""
    with pytest.raises(UserError, match="the saved state of schedule does not fit the schedule of this run"):
        build.make_schedule(SETTINGS, lambda: {"schedule": schedule})


SETTINGS = load.compose_config(["schedule=adaptive"])


def test_a_state_transfer_includes_h():
    giver, late = (loop_of("plain", schedule=adaptive()) for _ in range(2))
    for number, rho in enumerate((0.9, 0.9, -1.0)):
        giver.schedule.observe(Round(number), rho)
    late.loop.take_over(Round(2), giver.shared_state.serialize())
    assert late.schedule.state_dict() == giver.schedule.state_dict() == {"sync_every": 5, "landed": 2, "left_after": 15}
    assert late.inner_step == 15 and late.next_round == Round(3)


def test_the_learning_rate_ends_with_the_run():
    schedule = adaptive(sync_max=40)
    factor = build.make_lr_factor(
        load.compose_config(["schedule=adaptive", "rounds=10", "inner.warmup_steps=0"]), schedule
    )
    halfway = factor(20)
    for number in range(4):
        schedule.observe(Round(number), 0.9)
    floor = load.compose_config([]).inner.lr_floor
    assert factor(20) > halfway > floor and factor(schedule.inner_steps(10)) == pytest.approx(floor)


def test_peers_that_weigh_by_samples_still_begin_with_one_h():
    def print_of(*options):
        overrides = [*options, "exchange.peers=2", "aggregate=weighted"]
        return shared_settings.fingerprint(load.compose_config(overrides))

    other = "schedule.sync_every=20"
    assert print_of("schedule=every_h") == print_of("schedule=every_h", other)
    assert print_of("schedule=adaptive") != print_of("schedule=adaptive", other)
    assert print_of("schedule=adaptive") == print_of("schedule=adaptive", "inner.batch=3")
