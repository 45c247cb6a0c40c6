"""The payloads of the last rounds, on disk: what this peer holds for others and for its own landing.

    <round>-<sha256>-<peer>.payload        <peer>@<commit>.<sha256> where it names a state of the run (state_roots.py)

An accept says "its payloads can be had from me", so a payload is safe before anybody hears that it is held, and is
found again after a crash. Those of the newest round lie in memory as well until they are landed: just the bytes that
were checked, and no copy of them.
"""

from __future__ import annotations

import logging
import re

from outerloop.swarm.commits import Participant
from outerloop.swarm.disk import Buffer, Disk

logger = logging.getLogger(__name__)
NAME = re.compile(r"(\d+)-([0-9a-f]{64})-([^@]+)(?:@(\d+)\.([0-9a-f]{64}))?\.payload")
Key = tuple[int, Participant]


class Store:
    """Round and participant -> content."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._files = {key: name for name in disk.names() if (key := _key(disk, name)) is not None}
        self._newest: dict[Key, bytes] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self._files

    def since(self, number: int) -> list[Key]:
        """What is held of this round and later ones."""
        return sorted(key for key in self._files if key[0] >= number)

    async def put(self, number: int, one: Participant, content: bytes) -> None:
        """Hold a content, which is what `one` says; safe when this returns."""
        named = f"@{one.state[0]}.{one.state[1].hex()}" if one.state else ""
        name = f"{number:012d}-{one.digest.hex()}-{one.peer}{named}.payload"
        await self._disk.write(name, content)
        self._files[number, one] = name
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

    def clear(self) -> None:
        """Remove everything: it is of another chain."""
        for name in self._files.values():
            self._disk.remove(name)
        self._files, self._newest = {}, {}

    def _keep(self, number: int, one: Participant, content: bytes) -> None:
        """In memory, as long as nothing of a later round is there."""
        newest = max([number, *(of for of, _ in self._newest)])
        held = {**self._newest, (number, one): content}
        self._newest = {key: content for key, content in held.items() if key[0] == newest}


def _key(disk: Disk, name: str) -> Key | None:
    """What a file holds; a damaged one is removed."""
    found = NAME.fullmatch(name)
    if found is None:
        return None
    content = disk.read(name)
    state = (int(found[4]), bytes.fromhex(found[5])) if found[4] else None
    one = Participant.of(found[3], memoryview(content), state=state)
    if one.digest.hex() == found[2]:
        return int(found[1]), one
    logger.warning("payload %s is damaged: removed, it will be fetched again", name)
    disk.remove(name)
    return None
