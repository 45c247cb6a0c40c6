"""Keep on disk the states from which auditors replay the windows of recent rounds.

Each part of a state is a file that is named by the SHA-256 of its content. A round of H inner steps with a leaf every J
steps needs ceil(H / J) states on disk: one for each leaf except the last one, after which there is no window to replay.
Each state is as large as the weights and the optimizer's state together.
"""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Iterable
from pathlib import Path

from outerloop.state.durable import make_folder
from outerloop.swarm.storage import Buffer


class StateStore:
    """Files of one process, named by their hash. The trainer's thread writes and removes; any thread may call `get`.

    Files of an earlier process are removed. `folder` is created.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        make_folder(folder)
        for file in folder.iterdir():
            file.unlink()
        self._rounds: dict[int, set[str]] = {}

    def put(self, number: int, parts: Iterable[bytes]) -> None:
        """Keep the parts of a state of round `number`. Raises OSError if the disk is full."""
        for part in parts:
            name = hashlib.sha256(part).hexdigest()
            if not any(name in names for names in self._rounds.values()):
                self._write(name, part)
            self._rounds.setdefault(number, set()).add(name)

    def forget_before(self, number: int) -> None:
        """Remove the files of rounds before `number` that no later round needs. Uploads in progress still finish."""
        old = [self._rounds.pop(known) for known in list(self._rounds) if known < number]
        for name in set().union(*old).difference(*self._rounds.values()):
            (self._folder / name).unlink(missing_ok=True)

    def get(self, sha: bytes) -> Buffer | None:
        """Return the content with this SHA-256, or None if there is no such file."""
        try:
            with (self._folder / sha.hex()).open("rb") as file:
                return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (FileNotFoundError, ValueError):  # an empty file cannot be mapped
            return None

    def _write(self, name: str, part: bytes) -> None:
        temporary = self._folder / f".{name}"
        try:
            temporary.write_bytes(part)
            temporary.replace(self._folder / name)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
