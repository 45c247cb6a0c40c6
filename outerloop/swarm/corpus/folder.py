"""The folder of a corpus on this machine: its index and its shards, each in a file named by its sha256.

    ~/.cache/outerloop/corpus/<sha256 of the index>/index
                                                    <sha256 of a shard>  ...

A file appears only once it is complete and synced to disk. So a file of the right size is a complete shard, unless the
disk or another program damaged it. To find damaged shards, `complete` hashes all shards once at each start. All runs
and workers of a machine use the same folder; one process at a time writes to it, and a process that finds all shards
intact writes nothing.
"""

from __future__ import annotations

import fcntl
import hashlib
import mmap
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
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

OnStatus = Callable[[str], None]
"""Called with each line for the user."""
Progress = Callable[[int, int], None]
"""Called with the number of bytes processed so far, and the total number of bytes."""


def ignore(*progress: object) -> None:
    """Do nothing. The default for callbacks that show messages or progress to the user."""


def corpus_path(folder: str | None, sha256: str) -> Path:
    """Return the absolute folder of the corpus whose index has this sha256 (hexadecimal).

    `folder`: the folder that contains all corpora; None means DEFAULT.

    Raises UserError if `sha256` is not a sha256.
    """
    if not isinstance(sha256, str) or not SHA256.fullmatch(sha256):
        raise UserError(f"data.sha256={sha256!r} is not a sha256 of 64 hexadecimal digits: copy it from another peer")
    return Path(folder or DEFAULT).expanduser().absolute() / sha256


class CorpusFolder:
    """The files of one corpus. As a content source, it serves the shards of the corpus by their sha256."""

    def __init__(self, path: Path, index: CorpusIndex) -> None:
        self.path, self.index = path, index
        self._lengths = index.lengths()

    @staticmethod
    def open(path: Path) -> CorpusFolder:
        """Open a folder that contains the index of a corpus. Raises UserError if the index is missing or damaged."""
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
    def create(path: Path, index: CorpusIndex, on_status: OnStatus = ignore) -> CorpusFolder:
        """Write the index to the folder of a corpus, unless the folder already contains it, and return the folder.

        Raises UserError if this user cannot write to the folder.
        """
        folder, content = CorpusFolder(path, index), index.to_bytes()
        if read_or_none(path / INDEX) != content:
            with folder.writing(on_status):
                write_atomically(path / INDEX, content)
        return folder

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

    def complete(self, fill: Callable[[], None], on_status: OnStatus = ignore, hashed: Progress = ignore) -> None:
        """Bring all shards into the folder: remove those that are damaged, and call `fill` to write the missing ones.

        A folder that already has all shards is only read. `hashed` is called with the progress of hashing the shards.
        Raises UserError if this user cannot write to the folder, or if the disk has no space for the missing shards.
        """
        damaged = self.damaged(self._lengths, hashed)
        if not damaged and not self.missing():
            return
        with self.writing(on_status):
            for sha in self.damaged(damaged):  # checked again: another process may have replaced the damaged files
                self.file(sha).unlink()
                on_status(f"{self.file(sha)} was damaged: removed")
            if self.missing():
                self.refuse_full_disk()
                fill()

    def damaged(self, shards: Iterable[bytes], hashed: Progress = ignore) -> list[bytes]:
        """Return the shards whose file has the right size but the wrong content, or cannot be read."""
        held = [sha for sha in shards if self.holds(sha)]
        size, done, damaged = sum(self._lengths[sha] for sha in held), 0, []
        for sha in held:
            content = read_or_none(self.file(sha))
            if content is None or hashlib.sha256(content).digest() != sha:
                damaged.append(sha)
            done += self._lengths[sha]
            hashed(done, size)
        return damaged

    @contextmanager
    def writing(self, on_status: OnStatus = ignore) -> Iterator[None]:
        """Lock this folder for writing for the duration of a `with` block, and create the folder if it is absent.

        Waits while another process holds the lock. Removes files that a killed process left incomplete. Raises
        UserError if this user cannot write to the folder.
        """
        try:
            lock = (make_folder(self.path) / LOCK).open("a")
        except OSError as error:
            raise UserError(
                f"{self.path} cannot be written ({error.strerror}): set corpus.folder to a folder that you can write to"
            ) from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                on_status(f"waiting for another process that writes to {self.path}")
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


def read_or_none(path: Path) -> bytes | None:
    """Return the content of a file, or None if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError:
        return None


def verified_index(content: bytes, sha256: str) -> CorpusIndex:
    """Parse an index. Raises MalformedMessage if its hash is not `sha256` (hexadecimal), or if it is malformed."""
    if hashlib.sha256(content).hexdigest() != sha256:
        raise MalformedMessage(f"the index does not have the sha256 {sha256[:16]}...")
    return CorpusIndex.from_bytes(content)
