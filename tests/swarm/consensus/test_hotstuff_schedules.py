"""HotStuff-2 beside liars under seeded schedules of drops, delays, duplicates, partitions, late payloads and crashes.

hotstuff_world.py says what must hold at every step, hotstuff_liar.py how f = (n - 1) // 3 of n peers lie, to the end;
hotstuff_schedule.py what must be reached once messages arrive in time. A failure names its seed:
HotStuffSchedule(seed).run() repeats it.
"""

import os
from collections.abc import Iterable

import pytest

from tests.support.swarm.consensus_schedule import runs
from tests.support.swarm.hotstuff_schedule import HotStuffSchedule

QUICK, BLOCKS = 100, 10
SLOW = int(os.environ.get("OUTERLOOP_HOTSTUFF_SCHEDULES", "50000"))
"""Number of schedules of the slow test."""


def applied(seeds: Iterable[int]) -> tuple[int, int]:
    """Return how many commits were applied in all, and in how many schedules rounds had to continue at the end."""
    ended = [(schedule.monitor.applied, schedule.asked) for schedule in runs(HotStuffSchedule, seeds)]
    return sum(commits for commits, _ in ended), sum(asked for _, asked in ended)


def test_no_two_commits_of_a_round_and_progress_once_messages_arrive_in_time() -> None:
    commits, asked = applied(range(QUICK))
    assert commits > 5 * QUICK and asked > QUICK // 2


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("block", range(BLOCKS))
def test_the_same_of_many_more_schedules(block: int) -> None:
    _, asked = applied(range(QUICK + block * SLOW // BLOCKS, QUICK + (block + 1) * SLOW // BLOCKS))
    assert asked > SLOW // BLOCKS // 2
