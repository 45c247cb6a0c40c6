"""Locate the content of a sharded checkpoint with a JSON index, written next to torch's index and read instead of it.

    index.json   {"format": 1, "entries": {name: {"dtype", "shape", "chunks": [{"offsets", "sizes", <place>}, ...]}
                                                 or, for a plain value, {<place>}}}
    <place>      "file": name in the folder, "start": first byte, "bytes": length

torch's index is a pickle, which can execute code when it is read. If a folder has no index.json (because an older
version or another program wrote it), dcp_pickle.py reads torch's index without executing code. In both cases the index
is checked before any other file is read: it names only files in this folder, places are within their files and do not
overlap, and the chunks of a tensor cover each of its values exactly once and fit into their places.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from outerloop.state.checkpoint import write_atomically
from outerloop.state.dcp_pickle import records
from outerloop.types import UserError, printable

INDEX, TORCH_INDEX = "index.json", ".metadata"
FORMAT = 1
MAX_SIZE = 1 << 62
"""Upper bound on sizes, offsets and lengths, which torch stores as int64."""
Sizes = Mapping[str, int]
"""File name in the folder -> size in bytes."""


@dataclass(frozen=True)
class Place:
    """The location of a tensor chunk or plain value in a file, with the attribute names that torch uses."""

    relative_path: str
    offset: int
    length: int
    transform_descriptors: None = None


def write(folder: Path, metadata: Metadata) -> None:
    """Write index.json for the files that torch has written into a folder."""
    write_atomically(folder / INDEX, json.dumps(index_of_metadata(metadata), separators=(",", ":")).encode())


def read(folder: Path) -> Metadata:
    """Read the index of a folder as torch's metadata. Raises UserError if the index is missing or invalid."""
    own_index, torch_index = folder / INDEX, folder / TORCH_INDEX
    if not own_index.is_file() and not torch_index.is_file():
        raise UserError(f"{folder} holds no checkpoint written by `resharding.save`")
    try:
        index = (
            json.loads(own_index.read_bytes())
            if own_index.is_file()
            else index_of_metadata(records(torch_index.read_bytes()))
        )
        return parse_index(index, {file.name: file.stat().st_size for file in folder.iterdir() if file.is_file()})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = printable(f"{type(error).__name__} {error}" if isinstance(error, KeyError) else f"{error}")[:200]
        raise UserError(f"{folder} is not loaded because its index is not a checkpoint index: {reason}") from error


def index_of_metadata(metadata: Any) -> dict[str, Any]:
    """Convert torch's metadata, or the equivalent records of dcp_pickle.py, to the content of index.json."""
    places = {(index.fqn, chunk_offsets(index)): info for index, info in metadata.storage_data.items()}
    return {
        "format": FORMAT,
        "entries": {name: index_entry(name, entry, places) for name, entry in metadata.state_dict_metadata.items()},
    }


def index_entry(name: str, entry: Any, places: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the index entry of one tensor, with all its chunks, or of one plain value."""
    if not hasattr(entry, "chunks"):
        return index_place(places[name, None])
    chunks = [
        {"offsets": list(chunk.offsets), "sizes": list(chunk.sizes), **index_place(places[name, tuple(chunk.offsets)])}
        for chunk in entry.chunks
    ]
    dtype = str(entry.properties.dtype).removeprefix("torch.")
    return {"dtype": dtype, "shape": list(entry.size), "chunks": chunks}


def chunk_offsets(index: Any) -> tuple[int, ...] | None:
    """Return the offsets of a chunk in its tensor, or None for a plain value."""
    offset = getattr(index, "offset", None)
    return None if offset is None else tuple(offset)


def index_place(info: Any) -> dict[str, Any]:
    """Return the place of an entry as stored in index.json. Raises ValueError if a torch extension wrote the entry."""
    if getattr(info, "transform_descriptors", None):
        raise ValueError("an entry was written by a torch extension, such as compression, and cannot be read")
    return {"file": info.relative_path, "start": info.offset, "bytes": info.length}


def parse_index(index: Any, sizes: Sizes) -> Metadata:
    """Convert an index to torch's metadata.

    Raises ValueError, KeyError, TypeError or AttributeError if the index is invalid.
    """
    if index["format"] != FORMAT:
        raise ValueError(f"the index has format {index['format']!r}, but this version reads only format {FORMAT}")
    entries: dict[str, Any] = {}
    places: dict[MetadataIndex, Any] = {}
    for name, entry in index["entries"].items():
        if "chunks" not in entry:
            entries[name] = BytesStorageMetadata()
            places[MetadataIndex(name)] = parse_place(entry, sizes, min_bytes=0)
            continue
        dtype, shape = parse_dtype(entry["dtype"]), parse_sizes(entry["shape"])
        chunks = [parse_chunk(chunk, shape) for chunk in entry["chunks"]]
        if sum(math.prod(chunk.sizes) for chunk in chunks) != math.prod(shape):
            raise ValueError(f"the chunks of {name} do not make up its shape {list(shape)}")
        if not disjoint(chunks):
            raise ValueError(f"the chunks of {name} add up to its size but overlap, so some values are in no chunk")
        entries[name] = TensorStorageMetadata(TensorProperties(dtype=dtype), shape, chunks)
        for chunk, entry_chunk in zip(chunks, entry["chunks"], strict=True):
            min_bytes = math.prod(chunk.sizes) * dtype.itemsize
            places[MetadataIndex(name, chunk.offsets)] = parse_place(entry_chunk, sizes, min_bytes=min_bytes)
    refuse_overlap(places.values())
    return Metadata(entries, storage_data=places, storage_meta=StorageMeta())


def parse_chunk(chunk: Any, shape: torch.Size) -> ChunkStorageMetadata:
    """Return a chunk of a tensor of this shape. Raises ValueError if the chunk extends beyond the tensor."""
    offsets, sizes = parse_sizes(chunk["offsets"]), parse_sizes(chunk["sizes"])
    ends = [offset + size for offset, size in zip(offsets, sizes, strict=True)]
    if any(end > length for end, length in zip(ends, shape, strict=True)):
        raise ValueError(f"a chunk of {list(sizes)} at {list(offsets)} is outside its tensor of shape {list(shape)}")
    return ChunkStorageMetadata(offsets, sizes)


def disjoint(chunks: Iterable[ChunkStorageMetadata]) -> bool:
    """Return whether the chunks of a tensor are disjoint, so that no value is in two of them.

    Sweep along the axis on which the chunks have the most distinct offsets, and compare each chunk with those earlier
    chunks that extend beyond its offset on this axis.
    """
    non_empty = [chunk for chunk in chunks if math.prod(chunk.sizes)]
    if len(non_empty) < 2:
        return True
    axis = max(range(len(non_empty[0].sizes)), key=lambda i: len({chunk.offsets[i] for chunk in non_empty}))
    open_chunks: list[ChunkStorageMetadata] = []
    for chunk in sorted(non_empty, key=lambda chunk: chunk.offsets[axis]):
        open_chunks = [other for other in open_chunks if other.offsets[axis] + other.sizes[axis] > chunk.offsets[axis]]
        if any(overlap(other, chunk) for other in open_chunks):
            return False
        open_chunks.append(chunk)
    return True


def overlap(first: ChunkStorageMetadata, second: ChunkStorageMetadata) -> bool:
    """Return whether two non-empty chunks share any values."""
    sides = zip(first.offsets, first.sizes, second.offsets, second.sizes, strict=True)
    return all(start < begin + size and begin < start + length for start, length, begin, size in sides)


def refuse_overlap(places: Iterable[Place]) -> None:
    """Raise ValueError if two places share bytes of a file.

    Without this check, a file of a few bytes could make a reader allocate any amount of memory.
    """
    ordered = sorted(places, key=lambda place: (place.relative_path, place.offset))
    for first, second in itertools.pairwise(ordered):
        if first.relative_path == second.relative_path and first.offset + first.length > second.offset:
            raise ValueError(f"{first.relative_path!r} holds two overlapping entries at byte {second.offset}")


def parse_place(place: Any, sizes: Sizes, *, min_bytes: int) -> Place:
    """Return the place of an entry. Raises ValueError if it is shorter than `min_bytes` or not within its file."""
    start, length = parse_sizes([place["start"], place["bytes"]])
    if place["file"] not in sizes:
        raise ValueError(f"{place['file']!r} is not a file in this folder")
    if start + length > sizes[place["file"]] or length < min_bytes:
        raise ValueError(
            f"an entry of {place['file']} ({sizes[place['file']]} bytes) begins at byte {start} and has {length} bytes;"
            f" it must lie within the file and have at least {min_bytes}"
        )
    return Place(place["file"], start, length)


def parse_dtype(name: Any) -> torch.dtype:
    """Return the torch dtype with this name. Raises ValueError if there is none."""
    dtype = vars(torch).get(name)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{name!r} is not a dtype")
    return dtype


def parse_sizes(values: Any) -> torch.Size:
    """Return a list of sizes or offsets as torch.Size. Raises ValueError if `values` is not such a list."""
    if not isinstance(values, list) or not all(type(value) is int and 0 <= value < MAX_SIZE for value in values):
        raise ValueError(f"{values!r} is not a list of sizes or offsets")
    return torch.Size(values)
