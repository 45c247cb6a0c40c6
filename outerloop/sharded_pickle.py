"""torch's own index of a sharded checkpoint, the pickle `.metadata`, read without running anything that is in it.

A pickle names functions and classes, and calls them as it is read. Here each name that torch writes there stands for an
inert record of its arguments and its state, and any other name is refused. sharded_index.py makes of the records what
it makes of JSON, with the same checks.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import torch

CLASSES = "torch.distributed.checkpoint.metadata"
FILES = "torch.distributed.checkpoint.filesystem"


class Record:
    """What stands for an object in the pickle: the arguments of its class, and its attributes."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


class Properties(Record):
    """The properties of a tensor, a tuple that begins with its dtype."""

    def __setstate__(self, state: Any) -> None:
        self.dtype = state[0]


ADMITTED: dict[tuple[str, str], type] = {
    (CLASSES, "Metadata"): Record,
    (CLASSES, "MetadataIndex"): Record,
    (CLASSES, "TensorStorageMetadata"): Record,
    (CLASSES, "BytesStorageMetadata"): Record,
    (CLASSES, "ChunkStorageMetadata"): Record,
    (CLASSES, "TensorProperties"): Properties,
    (CLASSES, "StorageMeta"): Record,
    (CLASSES, "_MEM_FORMAT_ENCODING"): Record,
    (FILES, "_StorageInfo"): Record,
    ("torch", "Size"): tuple,
    ("torch.serialization", "_get_layout"): Record,
    ("builtins", "getattr"): Record,  # members of an enum, in some versions of Python
    ("pathlib", "PosixPath"): Record,
    ("pathlib", "WindowsPath"): Record,
    ("pathlib._local", "PosixPath"): Record,
    ("pathlib._local", "WindowsPath"): Record,
}
"""(module, name) -> what is made in its place. dtypes are admitted besides, as they are."""


class Inert(pickle._Unpickler):  # the one in C makes room for 2^32 objects when a file of ten bytes says so
    """An unpickler that knows the names above."""

    def find_class(self, module: str, name: str) -> Any:
        dtype = vars(torch).get(name) if module == "torch" else None
        if isinstance(dtype, torch.dtype):
            return dtype
        if (module, name) not in ADMITTED:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which no index of torch does")
        return ADMITTED[module, name]


def records(data: bytes) -> Any:
    """Return the object of a `.metadata` as records. Raises ValueError for any other bytes."""
    try:
        return Inert(io.BytesIO(data)).load()
    except Exception as error:  # pickle raises whatever its bytes lead to
        raise ValueError(str(error) or type(error).__name__) from error
