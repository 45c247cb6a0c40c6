"""A worker that joins late or falls behind, and downloads the state of the others."""

from dataclasses import replace

import pytest

from outerloop.exchange.inprocess import InProcess
from outerloop.inner.trainer import StepReport
from outerloop.launcher.validation_merge import ValidationMerge
from outerloop.report.summary import summarize
from outerloop.types import Round, StateTransferRequired
from tests.support import toy
from tests.support.toy_workers import PLAN, report, worker_of


class Behind(toy.Around):
    """The exchange of a peer that must download the state of round 0, in which the run ends."""

    info = replace(InProcess.info, replicated=True)
    shares_rank, alive = False, 1
    first_commit = landed_commit = b""
    content = b""

    def __init__(self, inner, *, late):
        super().__init__(inner)
        self.late_joiner = late

    def decided(self, round):
        raise StateTransferRequired(self.recover)

    def recover(self, max_bytes):
        self.landed_commit = b"\xab" * 32
        return Round(0), self.content

    def landed(self, round, state):
        pass


def worker_behind(exchange, events, *, late):
    behind = Behind(exchange, late=late)
    behind.content = worker_of(exchange).trainer.outer.shared_state.serialize()
    worker = worker_of(behind, events)
    worker.settings = replace(PLAN, rounds=1)
    worker.trainer.step = lambda: StepReport(
        loss=1.0, tokens=1, lr=None, rounds=worker.outer.after_inner_step(1), compute_s=0.1, outer_s=0.0
    )
    worker.agree_on_start = worker.save_when_due = lambda: None
    return worker


def test_a_late_joiner_is_not_asked_for_its_first_step():
    class Late(toy.Around):
        info = replace(InProcess.info, replicated=True)
        late_joiner = True
        alive = 1

        def decided(self, round):
            return False

    def work(exchange):
        worker = worker_of(Late(exchange))
        worker.settings = replace(PLAN, rounds=0)
        worker.run()
        there = worker_of(exchange)
        there.agree_on_start()
        met, begun = (one.trainer.outer.all_gather.count for one in (worker, there))
        assert met == begun + 1, "it has met at the end"

    toy.run_workers(1, work)


@pytest.mark.parametrize("late", [True, False])
def test_the_commit_of_a_downloaded_state_is_recorded(late):
    """At the start of a late joiner, and in the middle of a run; commits of landed rounds are in their own rows."""

    def work(exchange):
        worker = worker_behind(exchange, events := [], late=late)
        worker.run()
        worker.exchange.landed_commit = b"\xcd" * 32
        worker.emit_downloaded_state([replace(report(1, failed=""), commit="cd" * 32)])
        worker.emit_downloaded_state()
        return [event["commit"] for event in events if event["event"] == "state"]

    assert toy.run_workers(1, work) == [["ab" * 32]]


@pytest.mark.parametrize(("late", "evaluated"), [(True, [1]), (False, [0, 1])])
def test_a_downloaded_final_model_is_evaluated_once_so_that_the_run_has_a_summary(late, evaluated):
    """A late joiner takes no inner step; a worker that has fallen behind takes some, but lands no round."""

    def work(exchange):
        worker = worker_behind(exchange, events := [], late=late)
        worker.run()
        merged = ValidationMerge([0])
        rows = [row | {"wall_s": 1.0} for event in events for row in (event, *merged.add(event))]
        assert [row["round"] for row in rows if row["event"] == "validation"] == evaluated
        summary = summarize(rows, recipe="diloco", workers=2, rounds=1, params=9)
        assert summary["val_loss"] == 2.0 and summary["tokens"] == 0

    toy.run_workers(1, work)
