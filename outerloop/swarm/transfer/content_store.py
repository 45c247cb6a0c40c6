"""The contents that this peer offers to others, by the sha256 of their bytes."""

from __future__ import annotations

import hashlib


class ContentStore:
    """A reference-counted map sha256 -> content: content that was put twice stays until it is dropped twice."""

    def __init__(self) -> None:
        self._held: dict[bytes, bytes] = {}
        self._times: dict[bytes, int] = {}

    def put(self, content: bytes) -> bytes:
        """Store `content`. Return its sha256, by which others request it."""
        sha = hashlib.sha256(content).digest()
        self._held[sha] = content
        self._times[sha] = self._times.get(sha, 0) + 1
        return sha

    def drop(self, sha: bytes) -> None:
        """Undo one `put`. Uploads that have started still finish."""
        self._times[sha] -= 1
        if not self._times[sha]:
            del self._times[sha], self._held[sha]

    def get(self, sha: bytes) -> bytes | None:
        return self._held.get(sha)
