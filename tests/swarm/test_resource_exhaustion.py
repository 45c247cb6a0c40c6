"""A full disk or no more files to open end nothing: what failed is tried again, and the user is told what to do."""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
from pathlib import Path
from typing import Any

import pytest

from outerloop.swarm.gather.round_store import RoundStore
from outerloop.swarm.p2p.framing import BrokenStream
from outerloop.swarm.p2p.network_thread import NetworkThread
from outerloop.swarm.p2p.node import Node
from outerloop.swarm.p2p.transport import Unreachable
from outerloop.swarm.resource_exhaustion import MAX_FILES, REMEDIES, ResourceExhaustion, raise_file_limit
from outerloop.swarm.storage import Folder
from outerloop.swarm.timeouts import EXHAUSTED_S, OPEN_S
from tests.support.swarm.gather_scene import MemoryDisk, Swarm
from tests.support.swarm.memory_network import stream_pair
from tests.support.swarm.virtual_clock import now_s, run, virtual

SOMEBODY = "12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp"


def full(code: int = errno.ENOSPC) -> OSError:
    return OSError(code, "injected")


@pytest.mark.parametrize("code", REMEDIES)
def test_it_is_waited_out_and_told_once_in_half_a_minute(code: int, caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        left = [full(code)] * 40

        async def attempt() -> str:
            if left:
                raise left.pop()
            return "done"

        exhaustion = ResourceExhaustion(now_s=now_s)
        assert await exhaustion.wait_out(attempt, where="/somewhere") == "done"
        assert now_s() == pytest.approx(40 * EXHAUSTED_S)

    with caplog.at_level(logging.WARNING):
        run(scene())
    assert len(caplog.messages) == 2 and all(
        REMEDIES[code] in line and "/somewhere" in line for line in caplog.messages
    )


@pytest.mark.parametrize("error", [OSError(errno.EIO, "x"), TimeoutError(), ConnectionResetError(), ValueError()])
def test_other_errors_are_raised_at_once(error: Exception) -> None:
    async def attempt() -> None:
        raise error

    with pytest.raises(type(error)):
        run(ResourceExhaustion().wait_out(attempt))


def test_a_write_to_a_full_disk_ends_when_there_is_room_and_leaves_no_scrap(tmp_path: Path) -> None:
    """/dev/full, which the first attempt writes to by a link, is full indeed."""
    (tmp_path / ".x").symlink_to("/dev/full")
    run(Folder(tmp_path).write("x", b"content"))
    assert (tmp_path / "x").read_bytes() == b"content" and [file.name for file in tmp_path.iterdir()] == ["x"]


def test_a_partly_written_file_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []

    def sync(descriptor: int) -> None:
        if len(seen) < 2:
            raise full()

    async def sleep(seconds: float) -> None:
        seen.append([file.name for file in tmp_path.iterdir()])

    folder = Folder(tmp_path)
    monkeypatch.setattr("outerloop.swarm.storage.os.fsync", sync)
    monkeypatch.setattr("outerloop.swarm.resource_exhaustion.asyncio.sleep", sleep)
    asyncio.run(folder.write("x", bytes(1000)))
    assert seen == [[], []]


def test_a_machine_whose_disk_is_full_for_a_while_goes_on_and_so_do_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Payloads and the memory of the agreement of b cannot be written for most of a minute."""
    write = Folder._write  # noqa: SLF001

    def written(self: Folder, name: str, content: Any) -> None:
        if self._path.name == "b" and 25 < now_s() < 80:
            raise full()
        write(self, name, content)

    async def scene() -> None:
        swarm = Swarm("abc")
        for letter, node in swarm.nodes.items():
            node.disk = Folder(tmp_path / letter, synced=False)  # type: ignore[assignment]
        await swarm.start()
        await swarm.until("ac", 5)
        assert 25 < now_s() < 80 and swarm["b"].done < 4
        await swarm.until("abc", 12)
        swarm.agree()

    monkeypatch.setattr(Folder, "_write", written)
    run(scene())


@virtual
async def test_the_agreement_does_not_end_with_its_disk() -> None:
    """Whatever disk it has."""

    class Full(MemoryDisk):
        async def write(self, name: str, content: bytes) -> None:
            if name == "agreement" and 25 < now_s() < 60:
                raise full()
            await super().write(name, content)

    swarm = Swarm("abc")
    swarm["b"].disk = Full()
    await swarm.start()
    await swarm.until("abc", 8)
    swarm.agree()


def test_a_round_lands_although_its_payloads_could_not_be_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoFiles(MemoryDisk):
        def read(self, name: str) -> bytes:
            if name.endswith(".payload") and 5 < now_s() < 40:
                raise full(errno.EMFILE)
            return super().read(name)

    async def scene() -> None:
        swarm = Swarm("abc")
        swarm["b"].disk = NoFiles()
        await swarm.start()
        await swarm.until("abc", 5)
        swarm.agree()

    monkeypatch.setattr(RoundStore, "_keep", lambda self, number, one, content: None)
    run(scene())


class FakeP2P:
    """Opens a stream after `failures` attempts without a file to open."""

    def __init__(self, failures: float) -> None:
        self.failures = failures

    async def call_binary_stream_handler(self, peer: Any, protocol: str) -> tuple[None, Any, Any]:
        if self.failures > 0:
            self.failures -= 1
            raise full(errno.EMFILE)
        _, _, there, back = stream_pair()
        return None, back.reader, there


def peer_over(p2p: FakeP2P) -> Node:
    peer = object.__new__(Node)
    peer._p2p = p2p  # type: ignore[assignment]
    return peer


@virtual
async def test_a_stream_is_opened_as_soon_as_there_is_a_file_for_it() -> None:
    async with peer_over(FakeP2P(3)).open_stream(SOMEBODY, "x"):
        assert now_s() == pytest.approx(3 * EXHAUSTED_S)


@virtual
async def test_a_peer_is_not_taken_for_gone_because_this_one_has_no_files() -> None:
    with pytest.raises(BrokenStream, match="could not open a stream"):
        async with peer_over(FakeP2P(float("inf"))).open_stream(SOMEBODY, "x"):
            pass
    assert now_s() == pytest.approx(OPEN_S)


@virtual
async def test_a_peer_named_by_an_invalid_id_is_unreachable() -> None:
    for name in ("0", "l", "x" * 128, "a_b"):
        with pytest.raises(Unreachable):
            async with peer_over(FakeP2P(0)).open_stream(name, "x"):
                pytest.fail("opened")


def test_connections_that_cannot_be_accepted_are_one_line_of_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "outerloop.swarm.p2p.network_thread.EXHAUSTION", ResourceExhaustion()
    )  # which has told nothing yet
    thread, told = NetworkThread("test"), {"message": "socket.accept() out of system resource"}

    async def fail(errors: list[Exception]) -> None:
        for error in errors:
            asyncio.get_running_loop().call_exception_handler(told | {"exception": error})

    with caplog.at_level(logging.WARNING):
        thread.call(fail([full(errno.EMFILE)] * 100), timeout_s=60)
        assert len(caplog.messages) == 1
        thread.call(fail([ValueError("shown")]), timeout_s=60)
        assert "out of system resource" in caplog.text
    thread.stop(timeout_s=60)


@pytest.mark.parametrize(
    ("soft", "hard", "becomes"),
    [
        (1024, 4096, 4096),
        (1024, 1 << 20, MAX_FILES),
        (1024, resource.RLIM_INFINITY, MAX_FILES),
        (MAX_FILES + 1, 1 << 20, None),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, None),
        (4096, 4096, None),
    ],
)
def test_the_limit_on_open_files_is_raised_as_far_as_it_may_be(
    soft: int, hard: int, becomes: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda of: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda of, new: limits.append(new))
    raise_file_limit()
    assert limits == ([] if becomes is None else [(becomes, hard)])
