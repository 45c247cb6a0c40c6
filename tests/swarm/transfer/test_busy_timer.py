"""For how long something was under way: what overlaps counts once."""

import asyncio

import pytest

from outerloop.swarm.transfer.download_slots import BusyTimer
from tests.support.swarm.virtual_clock import virtual


@virtual
async def test_things_that_overlap_count_once() -> None:
    busy = BusyTimer()

    async def after(seconds: float) -> float:
        await asyncio.sleep(seconds)
        return busy.total_s()

    assert await after(1) == 0
    with busy.during():
        assert await after(1) == 1
        with busy.during():
            assert await after(1) == 2
        assert await after(1) == 3
    assert await after(5) == 3
    with pytest.raises(OSError), busy.during():
        await asyncio.sleep(1)
        raise OSError
    assert await after(5) == 4
