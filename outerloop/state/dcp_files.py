"""Write and read torch.distributed.checkpoint folders without executing code: a JSON index, and plain values only.

torch unpickles its index and every non-tensor value (such as optimizer settings), which can execute code. Writer and
Reader use the JSON index of dcp_index.py instead. Planner loads the values with `weights_only=True`, which executes no
code.
"""

from __future__ import annotations

import io
import pickle
from dataclasses import replace
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
    """A file writer that writes index.json in addition to torch's own index."""

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        folder = Path(self.path)
        (folder / dcp_index.INDEX).unlink(missing_ok=True)  # the old index describes overwritten files
        super().finish(metadata, results)
        stored = {result.index: result.storage_data for from_rank in results for result in from_rank}
        dcp_index.write(folder, replace(metadata, storage_data=stored))


class Reader(FileSystemReader):
    """Reads data from a folder through its validated index. Raises UserError if the index is missing or invalid."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.metadata = dcp_index.read(folder)

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        return self.metadata


class Planner(DefaultLoadPlanner):
    """A load planner that loads non-tensor values without executing code."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        name = read_item.dest_index.fqn
        try:
            plain = torch.load(value, weights_only=True)
        except (pickle.UnpicklingError, RuntimeError, ValueError, EOFError) as error:
            reason = printable(next(iter(str(error).splitlines()), type(error).__name__))[:200]
            raise UserError(f"{name} of the checkpoint is not a plain value and is not loaded: {reason}") from error
        rewritten = io.BytesIO()
        torch.save(plain, rewritten)  # torch unpickles its input without checks, so it gets these bytes, not the file's
        rewritten.seek(0)
        super().load_bytes(read_item, rewritten)
