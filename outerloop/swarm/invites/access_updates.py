"""Keep the allow-list of a running peer up to date.

It changes because of removals (`outerloop expel`) and withdrawals (`outerloop invite --withdraw`) and, in a run with
exchange.invites=true, because of used invites."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from outerloop.swarm.access.invite_register import InviteRegister
from outerloop.swarm.access.register_files import ADDRESS
from outerloop.swarm.invites.invite_service import InviteService
from outerloop.swarm.p2p.network_thread import BackgroundTasks
from outerloop.swarm.p2p.transport import Transport
from outerloop.swarm.resource_exhaustion import EXHAUSTION
from outerloop.swarm.storage import Disk

logger = logging.getLogger(__name__)
TAKE_S = 5.0
"""Pause between two checks for statements by `outerloop expel` and `outerloop invite --withdraw`."""


class AccessUpdates:
    """The register of a run with an allow-list and, if `invites`, the service that accepts invites.

    `on_removed` is called with the reason when this peer itself may no longer take part. `now_s`: clock, Unix time.
    """

    def __init__(
        self,
        transport: Transport,
        disk: Disk,
        *,
        run: str,
        invites: bool,
        on_removed: Callable[[str], None],
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._disk = disk
        self.register = InviteRegister(
            disk, transport.trust, run=run, invites=invites, on_removed=on_removed, now_s=now_s
        )
        self.service = InviteService(transport, self.register, run=run) if invites else None
        self._tasks = BackgroundTasks()

    async def serve(self, addresses: Sequence[str]) -> None:
        """Apply the statements that commands wrote while this peer was off, and start the service and the checks.

        `addresses`: this peer's addresses, which are stored for `outerloop invite`.
        """
        await EXHAUSTION.wait_out(self._take_waiting)
        await self._disk.write(ADDRESS, "\n".join(addresses).encode())
        if self.service is not None:
            await self.service.serve()
            self._tasks.start(_logged(self.service.keep_up()))
        self._tasks.start(_logged(self._keep_taking()))

    async def _keep_taking(self) -> None:
        while True:
            await asyncio.sleep(TAKE_S)
            await EXHAUSTION.wait_out(self._take_waiting)
            self.register.forget_outdated()

    async def _take_waiting(self) -> None:
        new = await self.register.take_waiting()
        if self.service is not None:
            self.service.tell(new)


async def _logged(loop: Coroutine[Any, Any, None]) -> None:
    """Run a loop that does not return, and log the error that ends it."""
    try:
        await loop
    except Exception:
        logger.exception("the list of invited and removed peers is no longer kept up to date: restart this peer")
