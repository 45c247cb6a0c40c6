"""A notification wakes all tasks that wait, once."""

import asyncio

from outerloop.swarm.notifier import Notifier
from tests.support.swarm.virtual_clock import virtual


@virtual
async def test_a_notification_wakes_all_that_wait_and_none_that_come_later() -> None:
    notifier = Notifier()
    early = [asyncio.create_task(notifier.wait()) for _ in range(2)]
    await asyncio.sleep(1.0)
    assert not any(task.done() for task in early)
    notifier.notify()
    late = asyncio.create_task(notifier.wait())
    await asyncio.gather(*early)
    await asyncio.sleep(1.0)
    assert not late.done()
    notifier.notify()
    await late
