"""Where a worker's time goes: every second after a step is in one of the three, and once."""

import pytest

from outerloop.core.replica_average import ALONE
from outerloop.core.round import RoundReport
from outerloop.core.utilization import utilization
from outerloop.inner.run_totals import RunTotals, StepTimeBudget
from outerloop.inner.trainer import StepReport
from outerloop.types import Round
from tests.support import toy


def step(compute_s, outer_s):
    return StepReport(loss=1.0, tokens=1, lr=None, rounds=[], compute_s=compute_s, outer_s=outer_s)


def landed(*, wait_s, transfer_s):
    return RoundReport(
        round=Round(0), samples=1, payload_bytes=1, launch_s=0.0, wait_s=wait_s, transfer_s=transfer_s, delta_norm=0.0,
        slow_hash=0,
    )  # fmt: skip


def test_the_step_time_of_a_round_that_is_waited_for():
    """Ten steps of 1 s; after the last one 5 s, of which 4 of waiting, for 3 of which bytes were moving."""
    spent = StepTimeBudget()
    for _ in range(9):
        spent.add(step(1.0, 0.0))
    spent.add(step(1.0, 5.0))
    row = spent.split(landed(wait_s=4.0, transfer_s=3.0))
    assert row == {"compute_s": 10.0, "communication_s": 4.0, "others_s": 1.0}
    assert utilization(**row) == pytest.approx(10 / 15)


def test_rounds_that_land_after_one_step_share_its_time():
    spent = StepTimeBudget()
    spent.add(step(1.0, 5.0))
    rows = [spent.split(landed(wait_s=2.0, transfer_s=0.0)) for _ in range(2)]
    assert rows[1] == {"compute_s": 0.0, "communication_s": 0.0, "others_s": 0.0}
    assert sum(sum(row.values()) for row in rows) == 6.0
    assert utilization(**rows[1]) == 1.0


def test_a_launch_counts_where_it_happened_however_late_the_round_lands():
    spent = StepTimeBudget()
    for outer_s in (0.5, 0.0, 0.25):
        spent.add(step(1.0, outer_s))
    assert spent.split(landed(wait_s=0.0, transfer_s=0.0))["communication_s"] == 0.75


def totals_after(steps):
    totals = RunTotals(toy.alone(), ALONE)
    for _ in range(steps):
        totals.step_time.add(step(1.0, 0.5))
    return totals


def test_the_seconds_before_an_interrupt_within_a_round_are_in_the_totals_of_the_resumed_run():
    """Of the 30 steps of a round, 20 were before the checkpoint."""
    resumed = totals_after(0)
    resumed.load_state_dict(totals_after(20).state_dict())
    for _ in range(10):
        resumed.step_time.add(step(1.0, 0.5))
    whole = totals_after(30)
    for totals in (resumed, whole):
        totals.add_round(landed(wait_s=4.0, transfer_s=0.0))
    assert resumed.counters() == whole.counters()
    assert (whole.totals["compute_s"], whole.totals["communication_s"], whole.totals["others_s"]) == (30.0, 11.0, 4.0)


def test_totals_continue_from_a_checkpoint_that_has_only_counters():
    resumed = totals_after(0)
    resumed.load_state_dict({"counters": totals_after(0).counters() | {"compute_s": 7.0}})
    resumed.step_time.add(step(1.0, 0.5))
    assert resumed.add_round(landed(wait_s=0.0, transfer_s=0.0))["compute_s"] == 1.0
    assert resumed.totals["compute_s"] == 8.0


class Moves(toy.Around):
    """Between the two looks at its clock so many seconds of moving have passed."""

    def __init__(self, inner, seconds):
        super().__init__(inner)
        self.seconds, self.looks = seconds, 0

    @property
    def transfer_s(self):
        self.looks += 1
        return self.seconds * (self.looks - 1)


@pytest.mark.parametrize(("seconds", "all_of_it"), [(0.0, False), (1000.0, True)])
def test_the_transfer_time_is_at_most_the_waiting_time(seconds, all_of_it):
    """A transfer that began long before the wait is none of the wait's."""

    def work(exchange):
        loop = toy.outer(toy.model(), Moves(exchange, seconds), h=1)
        [report] = loop.after_inner_step(1)
        assert report.wait_s > 0.0
        assert (report.transfer_s, report.peer_wait_s) == ((report.wait_s, 0.0) if all_of_it else (0.0, report.wait_s))

    toy.run_workers(2, work)
