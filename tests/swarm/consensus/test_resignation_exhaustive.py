"""Two or three peers, two rounds, and a peer that leaves at any time: every world that can come about.

resign_state_space.py says what a world is. From the ends, and from worlds of all kinds, all get to both commits once
nothing is lost any more, whoever has left.
"""

import pytest

from outerloop.swarm.consensus.chain import Chain
from outerloop.swarm.consensus.hotstuff.chain import HotStuffChain
from outerloop.swarm.consensus.paxos.chain import PaxosChain
from tests.support.swarm.resign_state_space import ResignSpace

SAMPLE = 100
PROTOCOLS = pytest.mark.parametrize("protocol", [PaxosChain, HotStuffChain])


def explored(space: ResignSpace, *, at_least: int) -> None:
    space.explore(at_most=40 * at_least)
    assert len(space.worlds) >= at_least
    tried = [*sorted(space.worlds)[:: max(1, len(space.worlds) // SAMPLE)], *space.ends[:SAMPLE]]
    assert {space.decided(world) for world in tried} >= {0, len(space.names)}
    for world in tried:
        assert space.decided(space.go_on(world)) == len(space.names)


@PROTOCOLS
def test_one_of_two_leaves_at_any_point_with_a_timeout(protocol: type[Chain]) -> None:
    explored(ResignSpace("ab", timeouts=1, protocol=protocol), at_least=100)


@PROTOCOLS
def test_one_of_two_leaves_at_any_point_with_a_timeout_and_a_crash(protocol: type[Chain]) -> None:
    explored(ResignSpace("ab", timeouts=1, crashes=1, protocol=protocol), at_least=700)


@PROTOCOLS
def test_one_of_three_leaves_at_any_point(protocol: type[Chain]) -> None:
    explored(ResignSpace("abc", protocol=protocol), at_least=100)


@pytest.mark.slow
@PROTOCOLS
def test_one_of_two_leaves_at_any_point_with_two_timeouts_and_a_crash(protocol: type[Chain]) -> None:
    explored(ResignSpace("ab", timeouts=2, crashes=1, protocol=protocol), at_least=3_500)


@pytest.mark.slow
@PROTOCOLS
def test_two_of_three_leave_at_any_point(protocol: type[Chain]) -> None:
    explored(ResignSpace("abc", leavers=2, protocol=protocol), at_least=500)
