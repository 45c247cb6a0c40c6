"""Read torch's own index of a sharded checkpoint, the pickle `.metadata`, without executing any code in it.

A pickle names functions and classes, which are called when it is read. This module accepts only the names that
torch writes, and replaces these classes and functions with inert types such as `Record`, which only stores arguments
and state. dcp_index.py converts the records and checks them like a JSON index.
"""

from __future__ import annotations

import io
import pickle
from typing import Any, ClassVar

import torch

CLASSES = "torch.distributed.checkpoint.metadata"
FILES = "torch.distributed.checkpoint.filesystem"


class Record:
    """An inert replacement for an object in the pickle: it stores the constructor arguments and the attributes."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


class Properties(Record):
    """The properties of a tensor. Their state in the pickle is a tuple that starts with the dtype."""

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
    ("builtins", "getattr"): Record,  # enum members, in some Python versions
    ("pathlib", "PosixPath"): Record,
    ("pathlib", "WindowsPath"): Record,
    ("pathlib._local", "PosixPath"): Record,
    ("pathlib._local", "WindowsPath"): Record,
}
"""Maps (module, name) in the pickle to the class that replaces it. Torch dtypes are allowed as they are."""

ARRAYS = pickle.BYTEARRAY8 + pickle.NEXT_BUFFER + pickle.READONLY_BUFFER
"""Pickle operations that create a byte array or read one from outside the pickle."""


def refuse_array(unpickler: pickle.Unpickler) -> None:
    """Raise UnpicklingError, because the pickle contains a byte array.

    A pickle states the size of such an array, and the memory is allocated before the bytes are read.
    """
    raise pickle.UnpicklingError("the pickle contains a byte array, which no index of torch has")


class Inert(pickle._Unpickler):  # the C version allocates space for 2^32 objects if a ten-byte file asks for it
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
    """Return the content of a `.metadata` file as records. Raises ValueError if `data` is not such a file."""
    try:
        return Inert(io.BytesIO(data)).load()
    except Exception as error:  # malformed pickle data can raise any exception
        raise ValueError(str(error) or type(error).__name__) from error
