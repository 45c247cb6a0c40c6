"""How torch.distributed.checkpoint writes and reads a folder here: the index in JSON, plain values without code.

torch unpickles its index and every non-tensor value (optimizer settings), which can execute code. Writer and Reader
replace the index by that of dcp_index.py; Planner loads the values with `weights_only=True`, which cannot.
"""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import DefaultLoadPlanner, FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import ReadItem
from torch.distributed.checkpoint.storage import WriteResult

from outerloop.state import dcp_index
from outerloop.types import UserError, printable


class Writer(FileSystemWriter):
    """Writes index.json beside torch's own index."""

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        folder = Path(self.path)
        (folder / dcp_index.INDEX).unlink(missing_ok=True)  # of what has been overwritten
        super().finish(metadata, results)
        dcp_index.write(folder, metadata)


class Reader(FileSystemReader):
    """Reads a folder whose index was checked. Raises UserError where there is none or it cannot be right."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.metadata = dcp_index.read(folder)

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        return self.metadata


class Planner(DefaultLoadPlanner):
    """Loads non-tensor values without executing code."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        name = read_item.dest_index.fqn
        try:
            plain = torch.load(value, weights_only=True)
        except (pickle.UnpicklingError, RuntimeError, ValueError, EOFError) as error:
            said = printable(next(iter(str(error).splitlines()), type(error).__name__))[:200]
            raise UserError(f"{name} of the checkpoint is no plain value and is not loaded: {said}") from error
        again = io.BytesIO()
        torch.save(plain, again)  # torch's own way in trusts its bytes: these are ours
        again.seek(0)
        super().load_bytes(read_item, again)
