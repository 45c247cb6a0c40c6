"""What this peer holds for others, by the sha256 of its bytes."""

from __future__ import annotations

import hashlib


class ContentStore:
    """sha256 -> content. Content that was put twice stays until it was dropped twice."""

    def __init__(self) -> None:
        self._held: dict[bytes, bytes] = {}
        self._times: dict[bytes, int] = {}

    def put(self, content: bytes) -> bytes:
        """Hold `content`; its sha256, by which others ask for it."""
        sha = hashlib.sha256(content).digest()
        self._held[sha] = content
        self._times[sha] = self._times.get(sha, 0) + 1
        return sha

    def drop(self, sha: bytes) -> None:
        """Take one `put` back; a transfer under way still ends."""
        self._times[sha] -= 1
        if not self._times[sha]:
            del self._times[sha], self._held[sha]

    def get(self, sha: bytes) -> bytes | None:
        return self._held.get(sha)
