"""Store the payloads of the last rounds on disk, for other peers and until this peer lands the rounds.

    <round>-<sha256>-<peer>.payload                     file of a payload
    <round>-<sha256>-<peer>@<commit>.<sha256>.payload   file of a payload that names a state (state_roots.py)

A peer that accepts a proposal promises to serve the payloads that the proposal names. So a payload is synced to disk
before this peer notifies others that it holds the payload, and it survives a crash. A file that a crash has damaged is
kept until its payload has been fetched again, because the file name records that the owner has signed a payload for the
round (`has_signed`). Payloads of the newest round are also kept in memory until they land, so that the trainer
receives the same bytes that were checked.
"""

from __future__ import annotations

import asyncio
import logging
import re

from outerloop.swarm.consensus.commit import Participant
from outerloop.swarm.storage import Buffer, Disk

logger = logging.getLogger(__name__)
NAME = re.compile(r"(\d+)-([0-9a-f]{64})-([^@]+)(?:@(\d+)\.([0-9a-f]{64}))?\.payload")
Key = tuple[int, Participant]


class RoundStore:
    """A persistent map from (round, participant) to the content of the payload."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._files: dict[Key, str] = {}
        self._damaged: dict[str, tuple[int, str]] = {}  # file -> round and peer
        for name in disk.names():
            self._find(name)
        self._newest: dict[Key, bytes] = {}
        self._writing: dict[Key, asyncio.Task[None]] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self._files

    def since(self, number: int) -> list[Key]:
        """Return the keys of the payloads stored for round `number` and later, sorted."""
        return sorted(key for key in self._files if key[0] >= number)

    def has_signed(self, peer: str, number: int) -> bool:
        """Return whether a payload of `peer` for round `number` is stored, even if it is damaged."""
        intact = [(of, participant.peer) for of, participant in self._files]
        return (number, peer) in [*intact, *self._damaged.values()]

    async def put(self, number: int, participant: Participant, content: bytes) -> None:
        """Store the payload that `participant` describes, and return once it is synced to disk.

        A cancelled call stores the payload all the same: the thread that writes the file cannot be stopped, and a file
        that is not in the index would never be removed.
        """
        key = number, participant
        if key not in self._writing:
            self._writing[key] = asyncio.create_task(self._write(number, participant, content))
            self._writing[key].add_done_callback(lambda task: self._writing.pop(key))
        await asyncio.shield(self._writing[key])

    async def _write(self, number: int, participant: Participant, content: bytes) -> None:
        named = f"@{participant.state[0]}.{participant.state[1].hex()}" if participant.state else ""
        name = f"{number:012d}-{participant.digest.hex()}-{participant.peer}{named}.payload"
        await self._disk.write(name, content)
        self._files[number, participant] = name
        self._damaged.pop(name, None)
        self._keep(number, participant, content)

    def take(self, number: int, participant: Participant) -> Buffer:
        """Return the content of a payload for landing. Remove it from memory, if it is there, but not from disk."""
        found = self._newest.pop((number, participant), None)
        return self._disk.read(self._files[number, participant]) if found is None else found

    def get(self, sha: bytes) -> Buffer | None:
        """Return the stored content with this sha256, from any round, or None if there is none."""
        found = next((name for (_, participant), name in self._files.items() if participant.digest == sha), None)
        return None if found is None else self._disk.read(found)

    def forget_before(self, number: int) -> None:
        """Remove the payloads of rounds before `number`. Transfers that are already running still complete."""
        for key in [key for key in self._files if key[0] < number]:
            self._disk.remove(self._files.pop(key))
            self._newest.pop(key, None)
        for name in [name for name, (of, _) in self._damaged.items() if of < number]:
            self._disk.remove(name)
            del self._damaged[name]

    def clear(self) -> None:
        """Remove all payloads, because they belong to another chain."""
        for name in [*self._files.values(), *self._damaged]:
            self._disk.remove(name)
        self._files, self._newest, self._damaged = {}, {}, {}

    def _find(self, name: str) -> None:
        """Check the hash of a file found at startup, and add the file to the index."""
        found = NAME.fullmatch(name)
        if found is None:
            return
        number, sha, peer = int(found[1]), found[2], found[3]
        state = (int(found[4]), bytes.fromhex(found[5])) if found[4] else None
        participant = Participant.of(peer, memoryview(self._disk.read(name)), state=state)
        if participant.digest.hex() == sha:
            self._files[number, participant] = name
        else:
            logger.warning("payload %s is damaged: it will be fetched again", name)
            self._damaged[name] = number, peer

    def _keep(self, number: int, participant: Participant, content: bytes) -> None:
        """Keep a payload in memory, then drop the payloads of all rounds except the newest from memory."""
        newest = max([number, *(of for of, _ in self._newest)])
        contents = {**self._newest, (number, participant): content}
        self._newest = {key: content for key, content in contents.items() if key[0] == newest}
