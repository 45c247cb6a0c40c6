"""The payloads of the last rounds, on disk: what this peer holds for others and for its own landing.

    <round>-<sha256>-<peer>.payload        <peer>@<commit>.<sha256> where it names a state of the run (state_roots.py)

An accept says "its payloads can be had from me", so a payload is safe before anybody hears that it is held, and is
found again after a crash. One that is damaged by then is fetched again, and its file stays until then: the name tells
that its owner has sealed a payload of this round (`sealed_by`). Those of the newest round lie in memory as well until
they are landed: just the bytes that were checked, and no copy of them.
"""

from __future__ import annotations

import logging
import re

from outerloop.swarm.consensus.commit import Participant
from outerloop.swarm.storage import Buffer, Disk

logger = logging.getLogger(__name__)
NAME = re.compile(r"(\d+)-([0-9a-f]{64})-([^@]+)(?:@(\d+)\.([0-9a-f]{64}))?\.payload")
Key = tuple[int, Participant]


class RoundStore:
    """Round and participant -> content."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._files: dict[Key, str] = {}
        self._damaged: dict[str, tuple[int, str]] = {}  # file -> round and peer
        for name in disk.names():
            self._find(name)
        self._newest: dict[Key, bytes] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self._files

    def since(self, number: int) -> list[Key]:
        """What is held of this round and later ones."""
        return sorted(key for key in self._files if key[0] >= number)

    def sealed_by(self, peer: str, number: int) -> bool:
        """Return whether a payload of this peer for this round has been held here, be it damaged now."""
        held = [(of, one.peer) for of, one in self._files]
        return (number, peer) in [*held, *self._damaged.values()]

    async def put(self, number: int, one: Participant, content: bytes) -> None:
        """Hold a content, which is what `one` says; safe when this returns."""
        named = f"@{one.state[0]}.{one.state[1].hex()}" if one.state else ""
        name = f"{number:012d}-{one.digest.hex()}-{one.peer}{named}.payload"
        await self._disk.write(name, content)
        self._files[number, one] = name
        self._damaged.pop(name, None)
        self._keep(number, one, content)

    def take(self, number: int, one: Participant) -> Buffer:
        """A content to be landed: `bytes` if it still lies in memory, from where it is given away."""
        found = self._newest.pop((number, one), None)
        return self._disk.read(self._files[number, one]) if found is None else found

    def get(self, sha: bytes) -> Buffer | None:
        """The content with this sha256, of whatever round."""
        found = next((name for (_, one), name in self._files.items() if one.digest == sha), None)
        return None if found is None else self._disk.read(found)

    def forget_before(self, number: int) -> None:
        """Remove what is of earlier rounds; a transfer under way still ends."""
        for key in [key for key in self._files if key[0] < number]:
            self._disk.remove(self._files.pop(key))
            self._newest.pop(key, None)
        for name in [name for name, (of, _) in self._damaged.items() if of < number]:
            self._disk.remove(name)
            del self._damaged[name]

    def clear(self) -> None:
        """Remove everything: it is of another chain."""
        for name in [*self._files.values(), *self._damaged]:
            self._disk.remove(name)
        self._files, self._newest, self._damaged = {}, {}, {}

    def _find(self, name: str) -> None:
        """Look at a file that lay here when this peer started."""
        found = NAME.fullmatch(name)
        if found is None:
            return
        number, sha, peer = int(found[1]), found[2], found[3]
        state = (int(found[4]), bytes.fromhex(found[5])) if found[4] else None
        one = Participant.of(peer, memoryview(self._disk.read(name)), state=state)
        if one.digest.hex() == sha:
            self._files[number, one] = name
        else:
            logger.warning("payload %s is damaged: it will be fetched again", name)
            self._damaged[name] = number, peer

    def _keep(self, number: int, one: Participant, content: bytes) -> None:
        """In memory, as long as nothing of a later round is there."""
        newest = max([number, *(of for of, _ in self._newest)])
        held = {**self._newest, (number, one): content}
        self._newest = {key: content for key, content in held.items() if key[0] == newest}
