"""One worker's run beside others: they begin at the same point, end with equal weights, and give up in time."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from outerloop.inner import global_evaluation
from outerloop.inner import worker as worker_module
from outerloop.inner.trainer import StepReport
from outerloop.launcher.run_worker import run_once
from outerloop.launcher.validation_merge import ValidationMerge
from outerloop.types import ReplicasDiverged, RoundFailed, Stopped, UserError
from tests.support import toy
from tests.support.toy_workers import PLAN, outcomes, report, worker_of


def test_peers_that_resume_at_different_steps_are_told_at_which():
    def work(exchange):
        worker = worker_of(exchange)
        worker.trainer.outer.loop.inner_step = 300 if exchange.rank else 150
        worker.agree_on_start()

    for error in outcomes(work):
        assert isinstance(error, UserError)
        assert "from inner steps" in str(error) and "150" in str(error) and "300" in str(error)
        assert "Load checkpoints of the same step on all machines, or remove the later ones" in str(error)


def test_different_weights_where_a_run_goes_on_are_not_passed_over():
    def work(exchange):
        worker = worker_of(exchange)
        worker.trainer.outer.loop.inner_step = 1
        if exchange.rank:
            worker.trainer.outer.replica.assign({name: x + 1 for name, x in worker.trainer.outer.slow.items()})
        worker.agree_on_start()

    assert [type(outcome) for outcome in outcomes(work)] == [UserError, UserError]


def test_different_weights_at_the_start_become_those_of_the_first_and_that_is_told():
    def work(exchange):
        worker = worker_of(exchange, told := [])
        worker.trainer.outer.replica.assign({name: x + exchange.rank for name, x in worker.trainer.outer.slow.items()})
        worker.save = lambda: told.append({"text": "saved"})
        worker.agree_on_start()
        assert toy.same_weights(worker.trainer.outer.model, toy.model())
        return [event["text"] for event in told]

    said = "1 of 2 peers begin with other weights than 000: all use its weights"
    assert outcomes(work) == [[said], [said, "saved"]]


def test_weights_in_another_order_of_memory_which_round_otherwise_are_refused():
    def work(exchange):
        worker = worker_of(exchange)
        if exchange.rank:
            p = next(p for p in worker.trainer.outer.island.params.values() if p.ndim == 2)
            p.data = p.data.t().contiguous().t()
        worker.agree_on_start()

    for error in outcomes(work):
        assert isinstance(error, UserError) and "stores its weights in another memory layout" in str(error)


@pytest.mark.parametrize("call", ["agree_on_start", "finish"])
def test_equal_peers_go_on(call):
    assert outcomes(lambda exchange: getattr(worker_of(exchange), call)()) == [None, None]


def test_too_many_failed_rounds_in_a_row_end_the_run_and_a_good_one_forgives():
    def work(exchange):
        events = []
        worker = worker_of(exchange, events)
        worker.settings = replace(PLAN, rounds=100)
        for number, failed in enumerate(["gone", "gone", "", "gone", "gone"]):
            worker.after_round(report(number, failed))
        with pytest.raises(RoundFailed, match="3 rounds in a row did not complete; the last one: at last"):
            worker.after_round(report(5, "at last"))
        counters = worker.totals.counters()
        assert counters["rounds_failed"] == 5 and counters["wait_s"] == 3.0
        assert [event["failed"] for event in events] == ["gone", "gone", "", "gone", "gone", "at last"]

    toy.run_workers(1, work)


def test_a_worker_saves_and_restores_its_totals_and_the_seconds_since_the_last_round(monkeypatch):
    file = {}
    monkeypatch.setattr(worker_module, "save", lambda trainer, rest, **_: file.update(rest))
    monkeypatch.setattr(worker_module, "load", lambda trainer, **_: file)

    def work(exchange):
        events = []
        worker, resumed = worker_of(exchange), worker_of(exchange, events)
        resumed.trainer.stream.notes = ["the position is in other text"]
        worker.totals.add_round(report(0, "gone"))
        worker.totals.step_time.add(StepReport(loss=1.0, tokens=1, lr=None, rounds=[], compute_s=2.0, outer_s=1.0))
        worker.save()
        resumed.resume(0)
        assert resumed.totals.counters() == worker.totals.counters()
        assert resumed.totals.step_time == worker.totals.step_time
        assert [event["text"] for event in events] == ["note: the position is in other text"]

    toy.run_workers(1, work)


def test_a_failed_round_is_not_saved():
    def work(exchange):
        events = []
        worker = worker_of(exchange, events)
        worker.settings = replace(PLAN, checkpoint_every=1)
        worker.save = lambda: events.append({"event": "saved"})
        worker.after_round(report(0, "gone"))
        worker.after_round(report(1, ""))
        assert [event["event"] for event in events] == ["round", "round", "saved"]

    toy.run_workers(1, work)


def test_only_the_last_of_rounds_that_land_together_is_evaluated_and_saved():
    def work(exchange):
        events = []
        worker = worker_of(exchange, events)
        worker.settings = replace(PLAN, checkpoint_every=1, eval_every=1)
        worker.save = lambda: events.append({"event": "saved"})
        worker.evaluation.evaluate = lambda round_number: events.append({"event": f"eval {round_number}"})
        for number in range(3):
            worker.after_round(report(number, ""), newest=number == 2)
        assert [event["event"] for event in events] == ["round", "round", "round", "eval 3", "saved"]

    toy.run_workers(1, work)


def test_a_replica_that_is_left_out_at_the_end_is_named_and_no_round_is_blamed(monkeypatch):
    class Blames(toy.Around):
        def refused(self, round, refusals):
            raise AssertionError(f"{round} was not landed")

    def work(exchange):
        worker = worker_of(Blames(exchange), events := [])
        slow = {name: x.clone() for name, x in worker.trainer.outer.slow.items()}
        found = SimpleNamespace(
            mean=slow, peers=("000",), refused={"001": "001: its weights"}, shortened={}, spread=0.0
        )
        monkeypatch.setattr(global_evaluation, "average", lambda *_: found)
        monkeypatch.setattr(worker.evaluation, "emit_result", lambda *_, **__: None)
        worker.evaluation.adopt_mean()
        assert next(event["text"] for event in events) == "left out, 001: its weights"

    toy.run_workers(1, work)


def share(worker, round, nats):
    return {"event": "eval", "worker": worker, "step": 9, "round": round, "nats": nats, "predicted": 2, "tokens": 5,
            "spread": None}  # fmt: skip


def test_an_evaluation_is_whole_without_those_who_cannot_give_their_share():
    shares = ValidationMerge(range(3))
    assert shares.add(share(0, 4, 2.0)) == shares.add(share(1, 4, 4.0)) == []
    assert shares.add({"event": "round", "worker": 2, "round": 4}) == []
    [row] = shares.add({"event": "round", "worker": 2, "round": 5})
    assert row == {"event": "validation", "step": 9, "round": 4, "tokens": 10, "val_loss": 1.5}
    assert shares.add(share(0, 8, 2.0)) == shares.add(share(2, 8, 2.0)) == []
    [row] = shares.add({"event": "died", "worker": 1})
    assert row["val_loss"] == 1.0
    assert shares.add(share(0, 9, 1.0)) == [] and len(shares.add(share(2, 9, 1.0))) == 1


def test_one_of_several_does_it_and_another_one_when_it_failed(tmp_path):
    with pytest.raises(OSError), run_once(tmp_path / "done", "a") as mine:
        assert mine
        raise OSError
    for what, expected in [("a", True), ("a", False), ("b", True), ("b", False)]:
        with run_once(tmp_path / "done", what) as mine:
            assert mine == expected


def test_a_worker_that_differs_from_the_others_is_saved_before_it_stops():
    def work(exchange):
        events = []
        worker = worker_of(exchange, events)

        def step():
            raise ReplicasDiverged("it cannot be known whose are right")

        worker.trainer.step, worker.save = step, lambda: events.append("saved")
        with pytest.raises(ReplicasDiverged):
            worker.inner_step()
        assert events == ["saved"]

    toy.run_workers(1, work)


def test_an_interrupted_worker_keeps_a_checkpoint_of_this_step(monkeypatch):
    """It may be sealed, and an abort while it is written again would damage it."""
    steps = []
    monkeypatch.setattr(worker_module, "save", lambda *_, step, **__: steps.append(step))

    def work(exchange):
        worker = worker_of(exchange)
        worker.stop_point.request()
        worker.stop_point.set_target(0)
        for _ in range(2):
            with pytest.raises(Stopped):
                worker.save_at_stop_point()
        assert steps == [0]

    toy.run_workers(1, work)


@pytest.mark.parametrize(("index", "said"), [(0, ["joined: …A, round 2"]), (1, [])])
def test_worker_0_of_a_machine_says_who_joins(index, said):
    def work(exchange):
        exchange.roster_news = lambda: ["joined: …A, round 2"]
        worker = worker_of(exchange, events := [])
        worker.settings = replace(PLAN, index=index)
        worker.emit_roster_news()
        return [event["text"] for event in events]

    assert outcomes(work) == [said, said]
