"""Two decided commits of one round: whoever lied is named by the two alone, and all go on with the same one."""

from __future__ import annotations

from itertools import permutations

import pytest
from accused import SITTING, sign, signatures_of
from hypothesis import given, settings
from hypothesis import strategies as st

from outerloop.swarm.ballots import Decided, Link, Pledge
from outerloop.swarm.commits import Commit, Participant, genesis
from outerloop.swarm.evidence import guilty
from outerloop.swarm.forks import is_better, lies, parting
from outerloop.swarm.memory import leader
from outerloop.swarm.statements import accept, promise

ROSTER = ("000-a", "001-b", "002-c", "003-d", "004-e")
GENESIS = genesis(SITTING, ROSTER)
ANYBODY = signatures_of("z")


def commit(letter: str, *, after: Commit = GENESIS, view: int = 0) -> Commit:
    payload = Participant.of("000-a", letter.encode())
    return Commit(after.number + 1, after.digest, view, (payload,), ROSTER)


def decided(
    of: Commit, by: str, *, view: int = 0, promised: dict[str, tuple[int, bytes] | None] | None = None
) -> Decided:
    """By these letters; in a view after the first with the promises that made it possible: letter -> what it told."""
    names = [name for name in ROSTER if name[-1] in by]
    accepts = tuple((name, sign(name, accept(of.number, view, of.digest)).signature) for name in names)
    return Decided(of, view, accepts, _links(of, view, promised or {}) if view else ())


def _links(of: Commit, view: int, promised: dict[str, tuple[int, bytes] | None]) -> tuple[Link, ...]:
    first = leader(SITTING, of.number, view, ROSTER)
    pledges = []
    for name in [name for name in ROSTER if name[-1] in promised]:
        told = promised[name[-1]]
        pledges.append(Pledge(name, told, sign(name, promise(of.number, of.parent, view, told)).signature))
    return (Link(view, tuple(pledges), sign(first, accept(of.number, view, of.digest)).signature),)


def liars(one: Decided, other: Decided) -> set[str]:
    found = lies(one, other, sitting=SITTING, roster=ROSTER, signatures=ANYBODY)
    assert all(guilty(evidence, ANYBODY) == evidence.peer for evidence in found)
    return {evidence.peer for evidence in found}


X, Y = commit("X"), commit("Y")


def test_who_accepted_both_in_one_view_is_named() -> None:
    assert liars(decided(X, "abc"), decided(Y, "cde")) == {"002-c"}
    assert liars(decided(X, "abcd"), decided(Y, "bcde")) == {"001-b", "002-c", "003-d"}


def test_who_promised_without_telling_what_it_had_accepted_is_named() -> None:
    first = decided(X, "abc")
    later = commit("Y", view=1)
    assert liars(first, decided(later, "cde", view=1, promised={"c": None, "d": None, "e": None})) == {"002-c"}


def test_a_commit_that_was_proposed_again_names_nobody() -> None:
    again = decided(X, "cde", view=1, promised={"c": (0, X.digest), "d": None, "e": None})
    assert liars(decided(X, "abc"), again) == set()
    assert liars(again, again) == set()


def test_signatures_that_are_not_theirs_name_nobody() -> None:
    """A forged statement of a peer does not hide a true one either."""
    one, other = decided(X, "abc"), decided(Y, "cde")
    forged = Decided(Y, 0, tuple((name, bytes(64)) for name in ROSTER))
    assert liars(one, forged) == set()
    mixed = Decided(Y, 0, (("001-b", bytes(64)), *other.accepts))
    assert liars(one, mixed) == {"002-c"}


@settings(max_examples=60, deadline=None)
@given(st.sets(st.sampled_from("abcde"), min_size=3), st.sets(st.sampled_from("abcde"), min_size=3), st.booleans())
def test_two_majorities_always_name_a_liar_and_none_but_liars(one: set[str], other: set[str], later: bool) -> None:
    """Whoever is in both lied: an honest one votes once, and tells of it."""
    first = decided(X, "".join(one))
    if later:
        told = dict.fromkeys(other)
        second = decided(commit("Y", view=1), "".join(other), view=1, promised=told)
    else:
        second = decided(Y, "".join(other))
    named = {name[-1] for name in liars(first, second)}
    assert named and named == one & other


def test_all_prefer_the_same_of_any_number() -> None:
    found = [
        decided(X, "abc"),
        decided(Y, "cde"),
        decided(commit("Z", view=2), "abc", view=2),
        decided(X, "abc", view=1),
    ]
    for some in permutations(found, 3):
        best = [one for one in some if all(is_better(one, other) for other in some if other is not one)]
        assert len(best) == 1
    assert is_better(found[0], found[2]) and is_better(found[1], found[2]), "the lower view"
    assert is_better(*sorted(found[:2], key=lambda one: one.commit.digest)), "then the smaller digest"
    assert not is_better(found[0], found[0])


def chain(letters: str, *, after: list[Decided]) -> list[Decided]:
    out = list(after)
    for letter in letters:
        out.append(decided(commit(letter, after=out[-1].commit), "abc"))
    return out


START = [Decided(GENESIS, 0, ())]


def test_chains_part_where_they_first_differ() -> None:
    trunk = chain("AB", after=START)
    left, right = chain("CDE", after=trunk), chain("FG", after=trunk)
    found = parting(left, right)
    assert found is not None and (found[0], found[1], found[2]) == (left[3], right[3], ROSTER)
    assert parting(right, left) == (right[3], left[3], ROSTER)
    assert parting(left, right[::-1]) == found, "in whatever order they are told"


@pytest.mark.parametrize(("ours", "theirs"), [("CDE", "CD"), ("CD", "CDE"), ("", "C"), ("", "")])
def test_a_chain_that_is_longer_is_the_same(ours: str, theirs: str) -> None:
    trunk = chain("AB", after=START)
    assert parting(chain(ours, after=trunk), chain(theirs, after=trunk)) is None


def test_logs_that_do_not_reach_back_to_the_fork_show_nothing() -> None:
    trunk = chain("AB", after=START)
    left, right = chain("CDE", after=trunk), chain("FGH", after=trunk)
    assert parting(left, right[4:]) is None and parting(left[4:], right) is None
    assert parting(left[2:], right[3:]) is not None, "the last commit that both have is enough"
