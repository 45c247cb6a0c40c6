"""Check that a compressor follows its protocol, by encoding and decoding small tensors before a run starts.

A trial makes the same calls as a round: encode, pack into a message, unpack, decode. It uses a copy of the compressor
and restores torch's random state, so it does not change the run.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from traceback import extract_tb

import torch
from torch import Size, Tensor

from outerloop import wire
from outerloop.compress.by_size import compressor_of
from outerloop.core.compatibility.trials import probe
from outerloop.protocols import Compressor
from outerloop.types import CodecContext, Parts, UserError

MAX_VALUES = 1 << 16
"""Maximum number of values of a tensor in a trial, so that a trial takes milliseconds."""
MAX_NAMES = wire.MAX_PARTS - 1
"""Maximum number of different part names that a compressor may send. A message may contain one more part: votes."""
MISSING = {
    "linear": "set linear = True if decoding the sum of two tensors' parts gives their sum, otherwise False",
    "encode": "define encode(self, x, context), which returns a dict of tensors",
    "decode": "define decode(self, parts, shape, context), which returns a float32 tensor of this shape",
}
"""Name of each member that a compressor must have -> what to do if it is missing."""


def check_codec(compress: Compressor, shapes: Mapping[str, Size] | None = None) -> None:
    """Try a compressor on the smallest tensors of a model, or on a 64 x 128 matrix if no shapes are given.

    shapes: shapes of the model's tensors by name. One tensor is tried for each number of dimensions, and for each
        compressor if different ones encode small and large tensors. Tensors of more than `MAX_VALUES` values are not.

    Raises UserError, naming the class and what it returned, if the compressor does not follow its protocol.
    """
    for name, advice in MISSING.items():
        if not hasattr(compress, name):
            raise UserError(f"{class_name(compress)} has no attribute {name}: {advice}")
    default, context = probe()
    tensors = {"": default} if shapes is None else smallest_tensors(compress, shapes)
    with torch.random.fork_rng(devices=[]):
        trial = copy.deepcopy(compress)
        names: set[str] = set()
        for name, x in tensors.items():
            names |= try_codec(trial, x, CodecContext(context.round, context.seed, name=name)).keys()
    if len(names) > MAX_NAMES:
        raise UserError(
            f"{class_name(compress)} sends {len(names)} parts with different names, more than the limit of {MAX_NAMES}:"
            " use the same names for all tensors"
        )


def smallest_tensors(compress: Compressor, shapes: Mapping[str, Size]) -> dict[str, Tensor]:
    """Return Gaussian values for the smallest tensor of each compressor and number of dimensions, by name."""
    smallest: dict[tuple[int, int], str] = {}
    for name, shape in sorted(shapes.items(), key=lambda item: item[1].numel()):
        if 0 < shape.numel() <= MAX_VALUES:
            smallest.setdefault((id(compressor_of(compress, shape)), len(shape)), name)
    draw = torch.Generator().manual_seed(0)
    return {name: torch.randn(shapes[name], generator=draw, dtype=torch.float32) for name in smallest.values()}


def try_codec(compress: Compressor, x: Tensor, context: CodecContext) -> Parts:
    """Encode, pack, unpack and decode x. Return the parts.

    Raises UserError if a step fails or returns something that is not allowed.
    """
    at = f"for a float32 tensor of shape {list(x.shape)}"
    encode, decode = (f"{class_name(compress)}.{method}" for method in ("encode", "decode"))
    with locating_errors(f"{encode} failed {at}"):
        parts = compress.encode(x.clone(), context)
    check_parts(parts, encode)
    schema = {"": x.shape}
    header = wire.Header(0, 0, 1, wire.schema_hash(schema), 0, "")
    try:
        received = wire.unpack(wire.pack(header, {"": parts}), schema).parts[""]
    except ValueError as error:
        raise UserError(f"{encode}, called {at}, returned parts that a message cannot contain: {error}") from error
    with locating_errors(f"{decode} failed on the parts that encode returned {at}"):
        decoded = compress.decode(received, x.shape, context)
    if not isinstance(decoded, Tensor):
        raise UserError(f"{decode} returned a {type(decoded).__name__}; allowed: a float32 tensor")
    if decoded.shape != x.shape:
        raise UserError(
            f"{decode} returned shape {list(decoded.shape)} {at}; allowed: the same shape: use .reshape(shape)"
        )
    if decoded.dtype != torch.float32:
        raise UserError(f"{decode} returned {dtype_name(decoded.dtype)} {at}; allowed: float32: use .float()")
    return parts


def check_parts(parts: Parts, encode: str) -> None:
    """Check that `encode` returned tensors by name, of dtypes that a message can contain. Raises UserError if not."""
    if not isinstance(parts, dict):
        raise UserError(f"{encode} returned a {type(parts).__name__}; allowed: a dict of tensors by name")
    for name, x in parts.items():
        if not isinstance(x, Tensor):
            raise UserError(f"{encode} returned part {name!r} as a {type(x).__name__}; allowed: a tensor")
        if x.dtype not in wire.DTYPES:
            raise UserError(
                f"{encode} returned part {name!r} as {dtype_name(x.dtype)}; allowed:"
                f" {', '.join(map(dtype_name, wire.DTYPES))}: use .view(torch.uint8), and view it back in decode"
            )


@contextmanager
def locating_errors(what: str) -> Iterator[None]:
    """Convert an error of the compressor to a UserError that states what failed, in which file and line."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        place = extract_tb(error.__traceback__)[-1]
        lines = str(error).strip().splitlines()
        reason = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
        raise UserError(f"{what} ({reason}; {Path(place.filename).name}, line {place.lineno})") from error


def class_name(compress: Compressor) -> str:
    """Return the dotted name of the compressor's class."""
    return f"{type(compress).__module__}.{type(compress).__qualname__}"


def dtype_name(dtype: torch.dtype) -> str:
    """Return a dtype's name without "torch."."""
    return str(dtype).removeprefix("torch.")
