"""For which learners a round waits."""

import pytest

from outerloop.swarm.gather import learner_patience
from outerloop.swarm.gather.learner_patience import LearnerPatience


def after(*rounds: tuple[str, str]) -> LearnerPatience:
    """Return the state after rounds in which these letters asked, and of these the second ones arrived."""
    patience = LearnerPatience()
    for asked, arrived in rounds:
        patience.observe(set(asked), set())
        patience.observe(set(asked), set(arrived))
        patience.begin_round()
    return patience


@pytest.mark.parametrize(
    ("missed", "waiting"),
    [(0, 64), (1, 32), (2, 16), (3, 8), (6, 1), (7, 1), (1000, 1)],
)
def test_of_64_rounds_half_as_many_wait_after_each_missed_one(missed: int, waiting: int) -> None:
    patience = after(*[("z", "")] * missed)
    assert sum(patience.awaited({"z"}, number) == {"z"} for number in range(100, 164)) == waiting


def test_a_payload_that_arrives_ends_the_doubt() -> None:
    assert after(("z", ""), ("z", "")).awaited({"z", "y"}, 5) == {"y"}
    assert after(("z", ""), ("z", ""), ("z", "z")).awaited({"z"}, 5) == {"z"}


def test_rounds_in_which_it_does_not_ask_change_nothing() -> None:
    assert after(("z", ""), ("", ""), ("", "")).awaited({"z"}, 5) == set()


def test_roster_peers_whose_payloads_arrive_are_not_counted() -> None:
    assert after(("", "a")).awaited({"a"}, 5) == {"a"}


def test_only_so_many_learners_are_remembered_and_the_last_ones_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learner_patience, "MAX_PEERS", 2)
    patience = after(("x", ""), ("y", ""), ("x", ""), ("z", ""))
    assert patience.awaited({"x", "y", "z"}, 5) == {"y"}
