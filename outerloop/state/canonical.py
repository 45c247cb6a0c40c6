"""Convert a tree of tensors and plain values, such as the run state that a late joiner downloads, to bytes and back.

    {"slow": {name: tensor}, "method": ..., ...}  ->  safetensors: the tensors in tree order, and the tree as JSON

The encoding is canonical: equal trees give equal bytes on every peer, so that a joining peer can fetch each piece from
a different peer. Dictionaries are sorted by key, and tuples become lists. Decoding executes nothing in the bytes.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

TREE = "tree"
"""Name of the entry that contains the tree as JSON, in uint8. The tensors are named by numbers."""

LENGTH_BYTES = 8
"""Size of the integer at the beginning of a safetensors file that states the length of its header."""


def pack(tree: Any) -> bytes:
    """Encode a tree of dictionaries (str or int keys), lists, tensors, strings, numbers and None as bytes.

    Raises TypeError for other types.
    """
    tensors: list[Tensor] = []
    text = json.dumps(to_json(tree, tensors), separators=(",", ":")).encode()
    named = {str(i): x.detach().cpu().contiguous() for i, x in enumerate(tensors)}
    return save(named | {TREE: torch.frombuffer(bytearray(text), dtype=torch.uint8)})


def unpack(data: bytes) -> Any:
    """Return the tree that `pack` encoded.

    Raises ValueError if the bytes cannot be decoded, and MemoryError if there is too little memory to decode them.
    """
    try:
        named = load(data)
        tree = json.loads(named.pop(TREE).numpy().tobytes())
        return from_json(tree, named)
    except MemoryError:
        raise
    except Exception as error:  # safetensors' own errors derive directly from Exception
        raise ValueError(f"the bytes are not an encoded state: {error}") from error


def header(data: bytes) -> bytes:
    """Return the first bytes of an encoded tree: the size of the tree's JSON, and dtypes and shapes of the tensors.

    Nothing is decoded, so the bytes may come from any peer.
    """
    return data[: LENGTH_BYTES + int.from_bytes(data[:LENGTH_BYTES], "little")]


def tree_size(data: bytes) -> int:
    """Return the size in bytes of an encoded tree's JSON. Only the header is decoded.

    Raises ValueError if the header is invalid.
    """
    try:
        return int(json.loads(header(data)[LENGTH_BYTES:])[TREE]["shape"][0])
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise ValueError(f"the bytes are not an encoded state: {error!r}") from error


def to_json(tree: Any, tensors: list[Tensor]) -> Any:
    """Convert a tree to JSON values: a dictionary to {"map": pairs}, a tensor to {"tensor": its index in `tensors`}.

    Tensors are appended to `tensors`.
    """
    if isinstance(tree, Tensor):
        tensors.append(tree)
        return {"tensor": len(tensors) - 1}
    if isinstance(tree, dict):
        keys = sorted(tree, key=lambda key: (type(key).__name__, key))
        if not all(type(key) in (str, int) for key in keys):
            raise TypeError(f"keys must be str or int; got {keys}")
        return {"map": [[key, to_json(tree[key], tensors)] for key in keys]}
    if isinstance(tree, list | tuple):
        return [to_json(item, tensors) for item in tree]
    if tree is None or isinstance(tree, str | int | float):
        return tree
    raise TypeError(f"a state contains maps, lists, tensors, texts, numbers and None, not {type(tree).__name__}")


def from_json(tree: Any, named: dict[str, Tensor]) -> Any:
    """Rebuild the tree that `to_json` converted. `named`: index of a tensor, as text -> tensor."""
    if isinstance(tree, dict):
        ((kind, value),) = tree.items()
        if kind == "tensor":
            return named[str(value)]
        return {key: from_json(item, named) for key, item in value}
    return [from_json(item, named) for item in tree] if isinstance(tree, list) else tree
