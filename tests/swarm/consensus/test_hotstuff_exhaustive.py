"""Three honest peers of four and one round of HotStuff-2: every world beside a liar that leads view 0.

hotstuff_state_space.py says what a world is and what the liar does. From worlds of all kinds all three decide once
nothing is lost any more, through later views that honest peers lead, although the liar says nothing any more.
"""

import pytest

from tests.support.swarm.hotstuff_state_space import HotStuffSpace

SAMPLE = 300


def explored(space: HotStuffSpace, *, at_least: int) -> None:
    space.explore(at_most=40 * at_least)
    assert len(space.worlds) >= at_least
    tried = [*sorted(space.worlds)[:: len(space.worlds) // SAMPLE], *space.ends[:SAMPLE]]
    assert {space.decided(world) for world in tried} == {0, 1, 2, 3}
    for world in tried:
        assert space.decided(space.go_on(world)) == len(space.names)


def test_a_liar_that_leads_view_0_and_shows_either_of_two_commits_to_each() -> None:
    explored(HotStuffSpace(timeouts=0, crashes=0), at_least=2_500)


@pytest.mark.slow
def test_a_crash_at_any_point() -> None:
    explored(HotStuffSpace(timeouts=0, crashes=1), at_least=15_000)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_liar_that_leads_view_0_and_shares_the_wish_for_view_1() -> None:
    """148,238 worlds."""
    explored(HotStuffSpace(timeouts=1, crashes=0, wished=True), at_least=140_000)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_liar_that_leads_view_0_and_reports_and_votes_in_view_1() -> None:
    explored(HotStuffSpace(timeouts=1, crashes=0, wished=True, reports=True), at_least=140_000)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_views_0_to_2() -> None:
    explored(HotStuffSpace(timeouts=3, crashes=0), at_least=60_000)
