"""The end of a run: most peers' hash decides, and one that lies ends nobody's run and keeps no model back."""

import json

import pytest

from outerloop.core.final_check import FinalCheck
from outerloop.core.initial_state import StartPosition
from outerloop.launcher.supervisor import Supervisor, WorkerCrashed
from outerloop.launcher.worker_pool import error_event
from outerloop.types import Contribution, Outvoted, ReplicasDiverged, Round
from tests.support import toy
from tests.support.toy_workers import outcomes, worker_of

A, B, C = "a" * 16, "b" * 16, "c" * 16


@pytest.mark.parametrize(
    ("shown", "outvoted", "diverged", "odd"),
    [
        ({"0": A, "1": A, "2": A}, False, False, []),
        ({"0": A, "1": A, "2": A, "3": B}, False, False, ["3"]),
        ({"0": A, "1": A, "2": ""}, False, False, ["2"]),
        ({"0": A, "1": "", "2": ""}, False, False, ["1", "2"]),
        ({"0": A, "1": B, "2": B}, True, False, ["0"]),
        ({"0": A, "1": B}, False, True, []),
        ({"0": A, "1": A, "2": B, "3": B}, False, True, []),
        ({"0": A, "1": B, "2": C}, False, True, []),
        ({"0": A}, False, False, []),
    ],
)
def test_most_peers_decide(shown, outvoted, diverged, odd):
    ending = FinalCheck("0", shown, peers=len(shown))
    assert (bool(ending.outvoted_error), bool(ending.divergence_error)) == (outvoted, diverged)
    assert [line.partition(" ")[0] for line in ending.minority_lines] == odd
    assert "\n" not in ending.outvoted_error + ending.divergence_error + "".join(ending.minority_lines)


@pytest.mark.parametrize(
    ("shown", "peers", "outvoted", "diverged"),
    [
        ({"0": A, "1": B, "2": B}, 5, False, True),
        ({"0": A, "1": B, "2": B, "3": B}, 5, True, False),
        ({"0": A, "1": B, "2": B}, 4, False, True),
        ({"0": A, "1": A, "2": B}, 5, False, False),
        ({"0": A}, 5, False, False),
        ({"0": A, "1": A}, 5, False, False),
    ],
)
def test_those_that_do_not_come_are_peers_too(shown, peers, outvoted, diverged):
    """Two liars of five that meet one honest peer: it hands in its model. Before, it was outvoted by two."""
    ending = FinalCheck("0", shown, peers=peers)
    assert (bool(ending.outvoted_error), bool(ending.divergence_error)) == (outvoted, diverged)


class Meeting(toy.Around):
    """The other peers show this at the end."""

    def __init__(self, inner, shown):
        super().__init__(inner)
        self.shown = shown

    def all_gather(self, blob, number, timeout_s):
        others = [Contribution(peer, Round(number), one(blob)) for peer, one in self.shown.items()]
        return [*self.inner.all_gather(blob, number, timeout_s), *others]


def same(blob):
    return blob


def another_hash(blob):
    return json.dumps(json.loads(blob) | {"slow": B}).encode()


LIES = {
    "another hash": another_hash,
    "nothing": lambda blob: b"",
    "no map": lambda blob: b"[1, 2]",
    "deep": lambda blob: b"[" * 60_000,
    "infinite": lambda blob: json.dumps(json.loads(blob) | {"step": float("inf")}).encode(),
    "a terminal's codes": lambda blob: json.dumps(json.loads(blob) | {"slow": "\x1b[2J"}).encode(),
}


def ended(shown):
    """What comes of a worker that meets these at its end: what it raised, what it told, the worker."""

    def work(exchange):
        told, error = [], None
        worker = worker_of(Meeting(exchange, shown), told)
        try:
            worker.finish()
        except ReplicasDiverged as caught:
            error = caught
        return error, [event["text"] for event in told], worker

    return toy.run_workers(1, work)[0]


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_one_liar_of_four_ends_nobodys_run(lie):
    """Before: ReplicasDiverged or UserError on all, before the model was handed in, and again after every resume."""
    error, told, worker = ended({"001": same, "002": same, "003": lie})
    assert error is None and not worker.divergence
    worker.raise_if_diverged()
    assert len(told) == 1 and told[0].startswith("003 reports ") and told[0].isprintable()


def test_the_minority_says_so_and_hands_in_nothing():
    error, _, _ = ended({"001": another_hash, "002": another_hash})
    assert isinstance(error, Outvoted) and f"most peers with {B}" in str(error)


def test_two_liars_keep_no_model_back_where_the_others_do_not_come():
    def work(exchange):
        worker = worker_of(Meeting(exchange, {"003": another_hash, "004": another_hash}))
        worker.trainer.outer.verifier.last_seen = {f"{index:03d}": 7 for index in range(5)}
        worker.trainer.outer.verifier.first_round = 0
        worker.finish()
        return worker.divergence

    assert "no hash was reported by most of the 5 peers" in toy.run_workers(1, work)[0]


def test_where_nobody_can_know_the_model_is_handed_in_before_it_is_told():
    error, _, worker = ended({"001": another_hash})
    assert error is None
    with pytest.raises(ReplicasDiverged, match="so the right weights are unknown"):
        worker.raise_if_diverged()


def test_two_of_one_program_that_differ_both_get_to_hand_in():
    def work(exchange):
        worker = worker_of(exchange)
        if exchange.rank:
            worker.trainer.outer.replica.assign({name: x + 1 for name, x in worker.trainer.outer.slow.items()})
        worker.finish()
        worker.raise_if_diverged()

    assert [type(outcome) for outcome in outcomes(work)] == [ReplicasDiverged] * 2


class Team:
    """What its workers say, one after the other."""

    def __init__(self, *events):
        self.said = list(events)


def supervised(monkeypatch, *events):
    """A supervisor of two workers that follows these events, and what it wrote."""
    supervisor = object.__new__(Supervisor)
    supervisor.active, supervisor.died, supervisor.done_s, supervisor.outvoted = {0, 1}, set(), None, ""
    supervisor.ready, written = {0, 1}, []
    monkeypatch.setattr(Supervisor, "write", lambda self, row: written.append(row["event"]))
    monkeypatch.setattr(Supervisor, "next_events", lambda self, team: [team.said.pop(0)])
    supervisor.validation = type("None", (), {"add": lambda self, event: []})()
    supervisor.process_events(Team(*events))
    return supervisor, written


def test_an_outvoted_worker_does_not_stop_its_machine(monkeypatch):
    lost = error_event(0, Outvoted("most peers hold others"))
    done, left = ({"event": kind, "worker": 1, "step": 4} for kind in ("done", "left"))
    supervisor, written = supervised(monkeypatch, lost, done, left)
    assert written == ["died", "done", "left"] and supervisor.died == {0}


def test_a_machine_whose_workers_are_all_outvoted_ends_with_that_line(monkeypatch):
    lost = [error_event(index, Outvoted("most peers hold others")) for index in range(2)]
    with pytest.raises(WorkerCrashed, match=r"^most peers hold others$"):
        supervised(monkeypatch, *lost)


def test_a_peer_reports_its_own_state():
    [slow] = toy.run_workers(1, lambda exchange: StartPosition.of(worker_of(exchange).trainer.outer).slow)
    assert len(slow) == 16 and int(slow, 16) >= 0
