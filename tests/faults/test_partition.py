"""A network that falls apart and heals, with real processes: a majority goes on, nobody else does, and all agree."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from outerloop.swarm.consensus.state import ROUNDS_KEPT
from tests.support.network_hosts import Hosts

Start = Callable[[int, int], Hosts]


@pytest.mark.slow
@pytest.mark.timeout(800)
@pytest.mark.parametrize("missed", [3, ROUNDS_KEPT + 4])
def test_three_of_five_go_on_two_wait_and_say_why_and_all_agree_when_it_heals(hosts: Start, missed: int) -> None:
    """The two land what they missed; when that is more than the others keep, they take over their state."""
    swarm = hosts(3, 2)
    swarm.network.part()
    swarm.look()
    parted_at = max(host.last for host in swarm.all)
    why = re.compile(r"waiting: .*2 of 5 peers are reachable, but a majority is 3")
    swarm.until(lambda: all(any(map(why.search, host.said)) for host in swarm.far), limit_s=90)
    swarm.until(lambda: all(host.last >= parted_at + missed for host in swarm.near), limit_s=150)
    assert all(host.last <= parted_at + 1 for host in swarm.far), swarm.describe()
    swarm.network.heal()
    healed_at = max(host.last for host in swarm.all)
    swarm.until(lambda: swarm.together(healed_at), limit_s=180)
    if missed > ROUNDS_KEPT:
        assert all(
            "out of step with the other peers: downloading the state of the run" in host.said for host in swarm.far
        )
    swarm.agree()


@pytest.mark.slow
@pytest.mark.timeout(800)
def test_two_of_four_wait_on_either_side_and_none_goes_on_alone(hosts: Start) -> None:
    swarm = hosts(2, 2)
    swarm.network.part()
    swarm.look()
    parted_at = max(host.last for host in swarm.all)
    why = re.compile(r"waiting: .*2 of 4 peers are reachable, but a majority is 3")
    swarm.until(lambda: all(any(map(why.search, host.said)) for host in swarm.all), limit_s=90)
    swarm.wait(30)
    assert all(host.last <= parted_at + 1 for host in swarm.all), swarm.describe()
    swarm.network.heal()
    swarm.until(lambda: swarm.together(parted_at + 1), limit_s=180)
    swarm.agree()
