"""The folder of a corpus on this machine: its index and its shards, each in a file named by its sha256.

    ~/.cache/outerloop/corpus/<sha256 of the index>/index
                                                    <sha256 of a shard>  ...

A file appears only once it is complete and synced to disk, so a file of the right size is a complete shard. All runs
and workers of a machine use the same folder; one process at a time writes to it.
"""

from __future__ import annotations

import fcntl
import hashlib
import mmap
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from outerloop.state.checkpoint import write_atomically
from outerloop.state.durable import make_folder
from outerloop.swarm.corpus.index import MAX_INDEX_BYTES, CorpusIndex
from outerloop.swarm.storage import Buffer
from outerloop.swarm.validation import MalformedMessage
from outerloop.types import UserError

DEFAULT = "~/.cache/outerloop/corpus"
INDEX, LOCK = "index", ".lock"
SHA256 = re.compile(r"[0-9a-f]{64}")
FREE_BYTES = 1 << 30
"""Disk space that must remain free after a corpus has been written."""


def corpus_path(folder: str | None, sha256: str) -> Path:
    """Return the absolute folder of the corpus whose index has this sha256 (hexadecimal).

    `folder`: folder of all corpora; None: DEFAULT.

    Raises UserError if `sha256` is not a sha256.
    """
    if not isinstance(sha256, str) or not SHA256.fullmatch(sha256):
        raise UserError(f"data.sha256={sha256!r} is not a sha256 of 64 hexadecimal digits: copy it from the run")
    return Path(folder or DEFAULT).expanduser().absolute() / sha256


class CorpusFolder:
    """The files of one corpus. As a content source, it serves the shards of the corpus by their sha256."""

    def __init__(self, path: Path, index: CorpusIndex) -> None:
        self.path, self.index = path, index
        self._lengths = index.lengths()

    @staticmethod
    def open(path: Path) -> CorpusFolder:
        """Open the folder of a corpus whose index is there. Raises UserError if it is missing or damaged."""
        try:
            with (path / INDEX).open("rb") as file:
                content = file.read(MAX_INDEX_BYTES + 1)
        except OSError as error:
            raise UserError(
                f"{path} does not contain the index of this corpus: run outerloop join, or set corpus.folder"
            ) from error
        try:
            return CorpusFolder(path, verified_index(content, path.name))
        except MalformedMessage as error:
            raise UserError(f"{path / INDEX}: {error}: remove the file, so that it is downloaded again") from error

    @staticmethod
    def create(path: Path, index: CorpusIndex) -> CorpusFolder:
        """Write the index to the folder of a corpus, and return the folder."""
        write_atomically(make_folder(path) / INDEX, index.to_bytes())
        return CorpusFolder(path, index)

    def get(self, sha: bytes) -> Buffer | None:
        """Return a shard of this corpus, mapped from its file, or None if it is not in the folder."""
        if not self.holds(sha):
            return None
        with self.file(sha).open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def file(self, sha: bytes) -> Path:
        return self.path / sha.hex()

    def holds(self, sha: bytes) -> bool:
        """Return whether the folder contains this shard of the corpus."""
        try:
            return self.file(sha).stat().st_size == self._lengths.get(sha)
        except FileNotFoundError:
            return False

    def missing(self) -> dict[bytes, int]:
        """Return sha256 -> length in bytes of each shard that is not in the folder yet."""
        return {sha: length for sha, length in self._lengths.items() if not self.holds(sha)}

    def write(self, sha: bytes, content: bytes) -> None:
        """Store a shard, and return once it is synced to disk."""
        write_atomically(self.file(sha), content)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the right to write to this folder in a `with` block, after waiting for other processes.

        Files that a killed process left incomplete are removed.
        """
        with (self.path / LOCK).open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for begun in self.path.glob(".*.tmp"):
                begun.unlink()
            yield

    def refuse_full_disk(self) -> None:
        """Raise UserError if the disk has no space for the missing shards and FREE_BYTES more."""
        needed, free = sum(self.missing().values()), shutil.disk_usage(self.path).free
        if needed and free < needed + FREE_BYTES:
            raise UserError(
                f"{self.path} needs {needed / 1e9:.1f} GB for the corpus and {FREE_BYTES / 1e9:.1f} GB more, but"
                f" {free / 1e9:.1f} GB are free: free some space, or set corpus.folder to a folder on another disk"
            )


def verified_index(content: bytes, sha256: str) -> CorpusIndex:
    """Parse an index with this sha256 (hexadecimal). Raises MalformedMessage if the bytes are others, or malformed."""
    if hashlib.sha256(content).hexdigest() != sha256:
        raise MalformedMessage(f"the index does not have the sha256 {sha256[:16]}...")
    return CorpusIndex.from_bytes(content)
