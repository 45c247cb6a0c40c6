"""Three peers and one round: every world that orders, losses, repeats, a timeout and a crash can bring about.

A view begins when two of the three want it, so one of them does from the beginning. Visited (consensus_state_space.py
says what a world is): 1,180 with one timeout of another one anywhere; by name 3,211 with any two from no wish at all,
46,194 with a crash anywhere as well, 60,661 when a payload comes late, 28,701 with three timeouts. From every end, all
get to the commit once nothing is lost any more.

The same of three honest peers beside a liar that leads view 0: 1,898 worlds in which it shows each either of two
commits and passes on what is decided; by name 120,588, in which the next view begins as well, and it hides there what
it accepted or tells of either.
"""

import pytest

from tests.support.swarm.consensus_state_space import LiarSpace, Space


def explored(space: Space, *, at_least: int) -> None:
    space.explore(at_most=40 * at_least)
    assert len(space.worlds) >= at_least
    for end in space.ends:
        assert space.decided(space.go_on(end)) == len(space.names)


@pytest.mark.parametrize("late", [False, True])
def test_a_timeout_of_two_at_any_point(late: bool) -> None:
    explored(Space(timeouts=1, crashes=0, late=late, wished=True), at_least=1_000)


@pytest.mark.slow
@pytest.mark.parametrize("late", [False, True])
def test_any_two_timeouts_at_any_point(late: bool) -> None:
    explored(Space(timeouts=2, crashes=0, late=late), at_least=3_000)


@pytest.mark.slow
@pytest.mark.parametrize("late", [False, True])
def test_a_timeout_of_two_and_a_crash_at_any_point(late: bool) -> None:
    explored(Space(timeouts=1, crashes=1, late=late, wished=True), at_least=40_000)


@pytest.mark.slow
def test_three_timeouts_at_any_point() -> None:
    explored(Space(timeouts=3, crashes=0), at_least=20_000)


def test_a_liar_that_leads_view_0_and_says_everything_to_everybody() -> None:
    explored(LiarSpace(timeouts=0, crashes=0), at_least=1_500)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_liar_that_leads_view_0_and_goes_on_lying_in_view_1() -> None:
    explored(LiarSpace(timeouts=1, crashes=0, wished=True), at_least=100_000)
