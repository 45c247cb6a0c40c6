"""The agreement under seeded schedules of drops, delays, duplicates, partitions, late payloads and crashes.

consensus_monitor.py says what must hold at every step, consensus_schedule.py what must be reached once all heals.
A failure names its seed: Schedule(seed).run() repeats it.
"""

from collections.abc import Iterable

import pytest

from tests.support.swarm.consensus_schedule import Schedule, runs

QUICK, SLOW, BLOCKS = 200, 10_000, 10


def applied(seeds: Iterable[int]) -> int:
    """Return how many commits were applied in all."""
    return sum(schedule.world.monitor.applied for schedule in runs(Schedule, seeds))


@pytest.mark.parametrize("block", range(2))
def test_no_two_commits_of_a_round_and_progress_once_all_heals(block: int) -> None:
    assert applied(range(block * QUICK // 2, (block + 1) * QUICK // 2)) > 5 * QUICK


@pytest.mark.slow
@pytest.mark.parametrize("block", range(BLOCKS))
def test_the_same_of_many_more_schedules(block: int) -> None:
    applied(range(QUICK + block * SLOW // BLOCKS, QUICK + (block + 1) * SLOW // BLOCKS))
