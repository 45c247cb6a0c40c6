"""The states that a donor serves: the newest copy, and the oldest of the earlier copies that a peer uses.

A peer uses the newest of the states that it has requested, until it requests a newer one or the copy is dropped; the
donor does not know when a download is complete. A copy takes as much memory as the state, so at most two are kept, and
a third one while it is hashed. So a peer that requests state after state displaces copies that it has requested itself,
but not the copy that another peer uses. Two peers together can: one that uses an old copy, and one that requests new
ones.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from outerloop.swarm.state_transfer.manifest import Manifest, cut
from outerloop.swarm.storage import Buffer
from outerloop.swarm.timeouts import STATE_KEPT_S


@dataclass
class _State:
    """A state. `named`: sha256 and size in bytes of its manifest. `parts`: its manifest and its chunks by sha256."""

    named: tuple[bytes, int]
    parts: dict[bytes, Buffer]
    expiry: asyncio.TimerHandle


class HeldStates:
    """The states being served, by number of the commit. Each is dropped if it was not requested for STATE_KEPT_S."""

    def __init__(self) -> None:
        self._states: dict[int, _State] = {}  # in the order in which they were copied
        self._used: dict[str, int] = {}  # peer -> the newest state that it has requested

    def __contains__(self, number: int) -> bool:
        return number in self._states

    def put(self, content: bytes, manifest: Manifest) -> None:
        """Serve a state. Of the earlier states, keep only the oldest one that a peer uses."""
        number, packed = manifest.number, manifest.to_bytes()
        used = [earlier for earlier in self._states if earlier in self._used.values() and earlier != number]
        for earlier in set(self._states).difference(used[:1]):
            self.drop(earlier)
        named = manifest.sha, len(packed)
        parts: dict[bytes, Buffer] = {**dict(zip(manifest.chunks, cut(content), strict=True)), named[0]: packed}
        self._states[number] = _State(named, parts, self._expiry(number))

    def use(self, peer: str, number: int) -> None:
        """Record that `peer` requests the state as of commit `number`, which may not be held yet."""
        self._used[peer] = max(number, self._used.get(peer, number))

    def named(self, number: int) -> tuple[bytes, int]:
        """Return the sha256 and the size in bytes of the manifest of a held state, and keep the state for longer."""
        self._extend(number)
        return self._states[number].named

    def drop(self, number: int) -> None:
        """Stop serving a state, if it is held, and forget which peers use it. Uploads in progress still finish."""
        self._used = {peer: used for peer, used in self._used.items() if used != number}
        if state := self._states.pop(number, None):
            state.expiry.cancel()

    def get(self, sha: bytes) -> bytes | None:
        """Return a manifest or a chunk, and keep all states that contain it for longer.

        The returned bytes are a copy, so that uploads do not keep a dropped state in memory.
        """
        numbers = [number for number, state in self._states.items() if sha in state.parts]
        for number in numbers:
            self._extend(number)
        return bytes(self._states[numbers[0]].parts[sha]) if numbers else None

    def _extend(self, number: int) -> None:
        self._states[number].expiry.cancel()
        self._states[number].expiry = self._expiry(number)

    def _expiry(self, number: int) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(STATE_KEPT_S, self.drop, number)
