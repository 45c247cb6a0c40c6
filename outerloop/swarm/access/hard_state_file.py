"""Store a peer's hard state (its consensus votes) on disk, next to its identity file.

    <identity>.rounds/agreement     the hard state
    <identity>.rounds/generation    the start count (identity.py, Life) of the last process that synced the hard state

A peer that forgets a vote might vote twice in a round. So before the first vote of a process, its files are synced in
this order: both files above, then the identity file with the number of this start (`voted`). After a crash between
these steps, the hard state is newer than the identity requires, which is harmless.

At each start, the peer checks that its hard state can be read and was written by the process with the number `voted` or
by a later one. If not, the identity must not vote again:

    in a run with an allow-list   the process ends at once; the error states what to remove and how to change the list
    in an open run                the peer gets a new key; the old file is renamed and kept

The check misses one case: the disk was restored to a snapshot that was taken after the peer's last process had voted
for the first time. The messages of other peers reveal this case (equivocation.py). The check accepts the hard state of
any session, because a run that is resumed as a whole forms a new session, in which no peer has voted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgpack

from outerloop.swarm.access.identity import Identity, Life, ensure_identity, set_aside
from outerloop.swarm.access.signatures import Signatures
from outerloop.swarm.consensus.state import HardState
from outerloop.swarm.resource_exhaustion import EXHAUSTION
from outerloop.swarm.storage import Disk
from outerloop.swarm.validation import MalformedMessage, id_of
from outerloop.types import UserError

NAME = "agreement"
GENERATION = "generation"


class HardStateFile:
    """The hard-state file of the peer with the name `own`.

    `life`: this process. None: the identity is temporary, so nothing is recorded in an identity file.
    """

    def __init__(self, disk: Disk, *, own: str, life: Life | None = None) -> None:
        self._disk = disk
        self._own = own
        self._life = life

    def read(self, *, session: str) -> HardState | None:
        """Return the last hard state written, or None if the file does not exist.

        Raises MalformedMessage if the hard state is damaged or belongs to another session.
        """
        if NAME not in self._disk.names():
            return None
        return HardState.from_bytes(bytes(self._disk.read(NAME)), session=session, peer=self._own)

    async def write(self, hard_state: HardState) -> None:
        """Write the hard state, and return once it is synced to disk.

        Raises UserError if this peer has already voted in the run under another name, that is, as the worker with
        another index.
        """
        if self._life is None:
            await self._disk.write(NAME, hard_state.to_bytes())
            return
        self._refuse_another_name(hard_state.session)
        await self._disk.write(GENERATION, str(self._life.count).encode())
        await self._disk.write(NAME, hard_state.to_bytes())
        await EXHAUSTION.wait_out(
            partial(asyncio.to_thread, self._life.record_vote_storage), where=str(self._life.path.parent)
        )
        self._life = None  # the identity file is updated only once per process

    def _refuse_another_name(self, session: str) -> None:
        """Raise UserError if this peer has already voted in the run under another worker index."""
        stored = _readable(self._disk)
        if stored is None or stored.session != session:
            return
        if stored.peer != self._own and id_of(stored.peer) == id_of(self._own):
            raise UserError(
                f"this peer has voted in the run as {stored.peer}, but is {self._own} now: restart it as "
                f"worker {int(stored.peer.partition('-')[0])} on its machine"
            )


def folder_of(identity: Path) -> Path:
    """Return the path of the hard-state folder that belongs to an identity file."""
    return identity.with_suffix(".rounds")


def ensure_votable_identity(
    path: Path, disk: Callable[[Path], Disk], *, listed: bool, on_status: Callable[[str], None]
) -> Path:
    """Ensure that the identity at `path` has not lost its hard state, so that it may vote, and return the path.

    If the hard state is lost and the run is open, keep the old key under another name, remove what is left of the hard
    state, and write a new identity to `path`.

    Args:
        disk: opens the hard-state folder at a path.
        listed: whether the run has an allow-list.
        on_status: called with a line that states what was done, if the identity was replaced or cannot be checked.

    Raises:
        UserError: if the hard state is lost and the run has an allow-list, which would not contain the new identity;
            or if Identity.read fails.
    """
    identity = Identity.read(path)
    if identity.starts is None:
        on_status(f"{path} was created by an earlier version and stays in use; it cannot be checked for lost votes")
    if not identity.voted:
        return path
    folder = disk(folder_of(path))
    if generation_of(folder) >= identity.voted:
        return path
    peer_id = Signatures(identity.key).peer_id
    lost = (
        f"the peer {peer_id} has voted, but the record of its votes is missing, damaged or older"
        f" than its identity ({folder_of(path)}): it might vote twice, so this identity must not be used again"
    )
    if listed:
        raise UserError(
            f"{lost}. Run rm {path}, then outerloop doctor --run-dir RUN_DIR to see the new id, and replace the old id"
            " with the new one in exchange.allow of every peer; a peer that was invited needs a new invite instead"
        )
    kept_at = set_aside(path, peer_id=peer_id)
    for name in (NAME, GENERATION):
        folder.remove(name)
    on_status(f"{lost}; it joins as a new peer with a new key; the old key is kept in {kept_at}")
    return ensure_identity(path)


def generation_of(disk: Disk) -> int:
    """Return the start count of the process that last synced the hard state on `disk`, or 0 if it cannot be read."""
    if _readable(disk) is None or GENERATION not in disk.names():
        return 0
    value = bytes(disk.read(GENERATION))
    return int(value) if value.isdigit() else 0


def _readable(disk: Disk) -> HardState | None:
    """Return the hard state on this disk, of any session and any peer, or None if it cannot be read."""
    if NAME not in disk.names():
        return None
    content = bytes(disk.read(NAME))
    try:
        value = msgpack.unpackb(content)
        return HardState.from_bytes(content, session=value["run"], peer=value["peer"])
    except (MalformedMessage, ValueError, TypeError, KeyError):
        return None
