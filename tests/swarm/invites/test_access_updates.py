"""A running peer takes removals by `outerloop expel`, with and without invites."""

from __future__ import annotations

import asyncio
import errno

import pytest

from outerloop.swarm.access.register_files import ADDRESS, write_waiting
from outerloop.swarm.invites.access_updates import TAKE_S
from outerloop.swarm.invites.invite_client import look
from outerloop.swarm.p2p.transport import Unreachable
from outerloop.swarm.timeouts import EXHAUSTED_S
from tests.support.swarm.dht_scene import id_of, trust
from tests.support.swarm.gather_scene import MemoryDisk
from tests.support.swarm.invite_scene import A, C, Peer, X, removal, token
from tests.support.swarm.memory_network import MemoryNetwork, MemoryTransport
from tests.support.swarm.virtual_clock import run


def test_without_invites_a_listed_peer_is_expelled_and_no_invite_answered() -> None:
    async def scene() -> None:
        network = MemoryNetwork()
        one = Peer(network, A, invites=False)
        await one.updates.serve(["/ip4/192.0.2.1/tcp/1", "/ip4/127.0.0.1/tcp/1"])
        await write_waiting(one.disk, removal(C, by=A))
        await asyncio.sleep(2 * TAKE_S)
        assert id_of(C) not in one.trust.allow
        assert id_of(C) not in Peer(network, A, disk=one.disk, invites=False).trust.allow
        assert one.disk[ADDRESS].split() == [b"/ip4/192.0.2.1/tcp/1", b"/ip4/127.0.0.1/tcp/1"]
        outside = MemoryTransport(network, id_of(X))
        outside.trust = trust(X)
        with pytest.raises(Unreachable):
            await look(outside, id_of(A), token(A), peer="")

    run(scene())


def test_removals_from_while_it_was_off_are_taken_before_it_serves() -> None:
    async def scene() -> None:
        disk = MemoryDisk()
        await write_waiting(disk, removal(C, by=A))
        one = Peer(MemoryNetwork(), A, disk=disk)
        assert id_of(C) in one.trust.allow
        await one.updates.serve([])
        assert id_of(C) not in one.trust.allow

    run(scene())


class Failing(MemoryDisk):
    error: OSError | None = None

    def names(self) -> list[str]:
        if self.error:
            raise self.error
        return super().names()


@pytest.mark.parametrize("at_start", [True, False])
def test_removals_are_taken_once_files_can_be_opened_again(at_start: bool) -> None:
    async def scene() -> None:
        disk = Failing()
        one = Peer(MemoryNetwork(), A, disk=disk)
        serving = asyncio.create_task(one.updates.serve([]))
        if not at_start:
            await serving
        disk.error = OSError(errno.EMFILE, "too many open files")
        await write_waiting(disk, removal(C, by=A))
        await asyncio.sleep(2 * TAKE_S)
        assert id_of(C) in one.trust.allow and serving.done() is not at_start
        disk.error = None
        await asyncio.sleep(2 * EXHAUSTED_S)
        assert id_of(C) not in one.trust.allow and serving.done()

    run(scene())


def test_a_loop_that_ends_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        disk = Failing()
        await Peer(MemoryNetwork(), A, disk=disk).updates.serve([])
        disk.error = OSError("input/output error")
        await asyncio.sleep(2 * TAKE_S)

    run(scene())
    assert "no longer kept up to date: restart this peer" in caplog.text
