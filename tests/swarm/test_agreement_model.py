"""The agreement under seeded schedules of drops, delays, duplicates, partitions, late payloads and crashes.

agreement_monitor.py says what must hold at every step, agreement_schedule.py what must be reached once all heals.
A failure names its seed: Schedule(seed).run() repeats it.
"""

from collections.abc import Iterable

import pytest
from agreement_schedule import Schedule

QUICK, SLOW, BLOCKS = 200, 10_000, 10


def run(seeds: Iterable[int]) -> int:
    """Returns how many commits were applied in all."""
    applied = 0
    for seed in seeds:
        schedule = Schedule(seed)
        try:
            schedule.run()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error
        applied += schedule.world.monitor.applied
    return applied


@pytest.mark.parametrize("block", range(2))
def test_no_two_commits_of_a_round_and_progress_once_all_heals(block: int) -> None:
    assert run(range(block * QUICK // 2, (block + 1) * QUICK // 2)) > 5 * QUICK


@pytest.mark.slow
@pytest.mark.parametrize("block", range(BLOCKS))
def test_the_same_of_many_more_schedules(block: int) -> None:
    run(range(QUICK + block * SLOW // BLOCKS, QUICK + (block + 1) * SLOW // BLOCKS))
