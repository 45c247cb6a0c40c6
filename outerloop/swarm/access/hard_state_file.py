"""The agreement's memory on disk, beside the payloads of its rounds and the identity that it is of.

    <identity>.rounds/agreement     the memory
    <identity>.rounds/generation    the count of the last process (identity.py, Life) that has made sure of it

A peer that has voted must not forget it: it might vote twice in a round, whatever history it is told meanwhile. So both
files are safe before the identity notes that this process has memory, and that is safe before the memory is said to
be. After a crash in between, the memory is newer than the identity requires, which is harmless. In the opposite case
(memory missing, damaged, or of an earlier process than the identity requires) the identity is retired:

    with an allow-list   the run ends at once, and says what to remove, and how the list is changed
    without one          it gets a new key; the old file is kept aside

A disk that is set back to a moment at which the last process of the peer had voted already passes here; that shows in
what the others tell (rollback.py). Memory counts whichever sitting it is of: a run that is resumed as a whole forms a
new one, in which nobody has voted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgpack

from outerloop.swarm.access.identity import Identity, Life, ensure_identity, set_aside
from outerloop.swarm.access.signatures import Signatures
from outerloop.swarm.consensus.hard_state import HardState
from outerloop.swarm.resource_exhaustion import EXHAUSTION
from outerloop.swarm.storage import Disk
from outerloop.swarm.validation import MalformedMessage, id_of
from outerloop.types import UserError

NAME = "agreement"
GENERATION = "generation"


class HardStateFile:
    """Of one peer, `own`. `life`: this process of it; None: of an identity that is forgotten."""

    def __init__(self, disk: Disk, *, own: str, life: Life | None = None) -> None:
        self._disk = disk
        self._own = own
        self._life = life

    def read(self, *, run: str) -> HardState | None:
        """What was written last in this run, if anything. Raises MalformedMessage when it is damaged or of another
        run.
        """
        if NAME not in self._disk.names():
            return None
        return HardState.from_bytes(bytes(self._disk.read(NAME)), run=run, peer=self._own)

    async def write(self, memory: HardState) -> None:
        """Returns when it is safe. Raises UserError when this peer has voted there under another name."""
        if self._life is None:
            await self._disk.write(NAME, memory.to_bytes())
            return
        self._refuse_another_name(memory.run)
        await self._disk.write(GENERATION, str(self._life.count).encode())
        await self._disk.write(NAME, memory.to_bytes())
        await EXHAUSTION.wait_out(partial(asyncio.to_thread, self._life.has_memory), where=str(self._life.path.parent))
        self._life = None  # noted, once for all that this process writes

    def _refuse_another_name(self, run: str) -> None:
        """A peer is the same by whichever index of a worker it goes."""
        there = _whole(self._disk)
        if there is not None and there.run == run and there.peer != self._own and id_of(there.peer) == id_of(self._own):
            raise UserError(
                f"this peer has voted in the run as {there.peer}, and is {self._own} now: start it as worker "
                f"{int(there.peer.partition('-')[0])} of its machine again"
            )


def folder_of(identity: Path) -> Path:
    """Return where the memory that belongs to an identity file lies."""
    return identity.with_suffix(".rounds")


def fit_to_vote(path: Path, disk: Callable[[Path], Disk], *, listed: bool, tell: Callable[[str], None]) -> Path:
    """Return the identity file at `path`, another one in its place where it has lost its memory and the run is open.

    Args:
        disk: opens the folder of its memory.
        listed: the run has an allow-list.
        tell: told, in one line, which plan was taken.

    Raises:
        UserError: it has lost its memory and a new one would not be on the list; or as Identity.read does.
    """
    identity = Identity.read(path)
    if identity.starts is None:
        tell(f"{path} is of an earlier version and is taken over; whether it has lost a memory of votes is not known")
    if not identity.voted:
        return path
    there = disk(folder_of(path))
    if generation_of(there) >= identity.voted:
        return path
    peer_id = Signatures(identity.key).peer_id
    lost = (
        f"the peer {peer_id} has voted, and what it has voted for is gone, damaged or older"
        f" than the peer ({folder_of(path)}): it might vote twice, so it is not used any more"
    )
    if listed:
        raise UserError(
            f"{lost}. Type rm {path}, then outerloop doctor --run-dir to see the new id, and replace the old id with it"
            " in exchange.allow of every peer"
        )
    aside = set_aside(path, peer_id=peer_id)
    for name in (NAME, GENERATION):
        there.remove(name)
    tell(f"{lost}; it joins as a new peer with a new key, and the old one is kept in {aside}")
    return ensure_identity(path)


def generation_of(disk: Disk) -> int:
    """Return the count of the process that has last made sure of the memory in here; 0 where none can be read."""
    if _whole(disk) is None or GENERATION not in disk.names():
        return 0
    told = bytes(disk.read(GENERATION))
    return int(told) if told.isdigit() else 0


def _whole(disk: Disk) -> HardState | None:
    """The memory in here, of whatever run and peer; None where none can be read."""
    if NAME not in disk.names():
        return None
    content = bytes(disk.read(NAME))
    try:
        told = msgpack.unpackb(content)
        return HardState.from_bytes(content, run=told["run"], peer=told["peer"])
    except (MalformedMessage, ValueError, TypeError, KeyError):
        return None
