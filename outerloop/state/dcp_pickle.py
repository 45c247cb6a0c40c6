"""Read torch's own index of a sharded checkpoint, the pickle `.metadata`, without executing anything in it.

A pickle names functions and classes, which are called when it is read. This module accepts only the names that
torch writes. It replaces the named classes and functions with inert types such as `Record`, which only stores arguments
and state. dcp_index.py converts the records and applies the same checks as to a JSON index.
"""

from __future__ import annotations

import io
import pickle
from typing import Any, ClassVar

import torch

CLASSES = "torch.distributed.checkpoint.metadata"
FILES = "torch.distributed.checkpoint.filesystem"


class Record:
    """Takes the place of an object in the pickle. Stores the arguments of the object's class and its attributes."""

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
"""(module, name) in the pickle -> the class that replaces it. dtypes of torch are allowed too, and not replaced."""

ARRAYS = pickle.BYTEARRAY8 + pickle.NEXT_BUFFER + pickle.READONLY_BUFFER
"""Pickle operations that create an array of bytes or use one from outside the pickle."""


def refuse_array(unpickler: pickle.Unpickler) -> None:
    """Refuse an array of bytes. Raises UnpicklingError.

    A pickle states the size of such an array, and the memory is allocated before its bytes have been read.
    """
    raise pickle.UnpicklingError("the pickle holds an array of bytes, which no index of torch has")


class Inert(pickle._Unpickler):  # the C version allocates space for 2^32 objects if a file of ten bytes requests it
    """An unpickler that accepts only the names in ADMITTED, and dtypes."""

    dispatch: ClassVar[Any] = pickle._Unpickler.dispatch | dict.fromkeys(ARRAYS, refuse_array)

    def find_class(self, module: str, name: str) -> Any:
        dtype = vars(torch).get(name) if module == "torch" else None
        if isinstance(dtype, torch.dtype):
            return dtype
        if (module, name) not in ADMITTED:
            raise pickle.UnpicklingError(f"the pickle names {module}.{name}, which no index of torch does")
        return ADMITTED[module, name]


def records(data: bytes) -> Any:
    """Return the object in a `.metadata` file as records. Raises ValueError if `data` is not such a file."""
    try:
        return Inert(io.BytesIO(data)).load()
    except Exception as error:  # malformed pickle data can raise any exception
        raise ValueError(str(error) or type(error).__name__) from error
