"""`outerloop inspect`: print a payload's header, the parts of each tensor, and the total size of each kind of part."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Size

from outerloop import wire
from outerloop.aggregate.exclusion_votes import ExclusionVotes
from outerloop.commands.arguments import Parser
from outerloop.inner.export import exported_shapes
from outerloop.schedule.streaming import strided
from outerloop.sinks.sink import print_line
from outerloop.types import Parts, UserError, printable

PIPE_WIDTH = 140
"""Table width in characters when the output is a file or a pipe."""
FRAME = "header, table, checksum"

DESCRIPTION = """\
Shows the contents of one payload, the message that a worker sends in a round: its header, the parts of every tensor
with dtype, shape and bytes, and the total bytes of each kind of part. For a damaged file, only the error is shown."""

EXAMPLES = """\
where to find payloads
  outerloop train run_dir=runs/first keep_payload_rounds=2     keeps each worker's payloads of the last two rounds in
                                                               runs/first/workers/<worker>/payloads/
examples
  outerloop inspect runs/first/workers/0/payloads/00000059-0.outl
  outerloop inspect runs/first/workers/0/payloads/00000059-0.outl --model runs/first/hf

A payload contains no tensor names. Without --model, tensors are numbered in model order. A model matches the payload if
the hash of its names and shapes equals the hash in the payload."""


@dataclass(frozen=True)
class Payload:
    """A decoded payload: its size in bytes, header, tensors by name, and their shapes (empty without a model)."""

    size: int
    header: wire.Header
    tensors: dict[str, Parts]
    shapes: wire.Schema

    @property
    def values(self) -> int:
        """Number of model parameters that the payload covers; 0 if the shapes are unknown."""
        return sum(shape.numel() for shape in self.shapes.values())

    def bytes_by_part(self) -> Counter[str]:
        """Return a mapping from part name to bytes, summed over all tensors.

        Header, table and checksum are counted under FRAME.
        """
        out: Counter[str] = Counter()
        for parts in self.tensors.values():
            out.update({name: part.nbytes for name, part in parts.items()})
        return out + Counter({FRAME: self.size - out.total()})


def parser() -> Parser:
    """Return the option parser."""
    out = Parser("inspect", example="outerloop inspect FILE", description=DESCRIPTION, epilog=EXAMPLES)
    out.add_argument("file", type=Path, metavar="FILE", help="a payload file")
    out.add_argument("--model", type=Path, metavar="PATH", help="a run's hf/ or a .safetensors file, for tensor names")
    return out


def main(arguments: Sequence[str]) -> int:
    """Run the command and return exit code 0. Raises UserError if an option or the payload is invalid."""
    options = parser().parse_args(arguments)
    console = Console() if sys.stdout.isatty() else Console(width=PIPE_WIDTH)
    payload = load(options.file, options.model)
    for line in summary(payload):
        print_line(console, line)
    console.print(tensor_table(payload))
    console.print(total_table(payload))
    return 0


def load(file: Path, model: Path | None) -> Payload:
    """Read and check one payload. Raises UserError if it is damaged or does not match `model`."""
    try:
        blob = read_bytes(file)
        header, tensors = wire.read(blob)
    except (OSError, wire.InvalidMessage) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{file} is not a complete payload: {reason}: run outerloop inspect --help") from error
    shapes = fragment_shapes(exported_shapes(model), header, len(tensors), model) if model else {}
    names = list(shapes) if model else [str(number) for number in range(len(tensors))]
    return Payload(len(blob), header, dict(zip(names, tensors, strict=True)), shapes)


def read_bytes(file: Path) -> bytes:
    """Return the contents of a payload file.

    Raises wire.InvalidMessage for any other file, of which only the first bytes are read.
    """
    with file.open("rb") as opened:
        start = opened.read(len(wire.MAGIC))
        if start != wire.MAGIC:
            raise wire.InvalidMessage(f"it starts with {start!r} instead of {wire.MAGIC!r}")
        return start + opened.read()


def fragment_shapes(shapes: wire.Schema, header: wire.Header, count: int, model: Path) -> wire.Schema:
    """Return a mapping from name to shape of the `count` tensors in a payload, given the `shapes` of the whole model.

    A payload covers the whole model or one of P strided fragments. Every P is tried until the hash of the names and
    shapes equals the hash in the header. Gossip may send slow and fast weights as one tensor of shape (2, *shape),
    and with exclude_accused=true a list of accused peers follows.
    Raises UserError if no P matches.
    """
    for fragments in range(1, len(shapes) + 1):
        homes = strided(list(shapes), fragments)
        part = {name: shape for name, shape in shapes.items() if homes[name] == header.fragment}
        pairs = {name: Size([2, *shape]) for name, shape in part.items()}
        for schema in (part, pairs, part | ExclusionVotes(on=True, agrees=True).schema()):
            if len(schema) == count and wire.schema_hash(schema) == header.schema:
                return schema
    raise UserError(
        f"--model {model} is not the payload's model: the names and shapes of its {len(shapes)} tensors have hash"
        f" {wire.schema_hash(shapes):016x}, those of the payload's {count} tensors have hash {header.schema:016x}: pass"
        " --model with the hf/ folder of the run that sent the payload"
    )


def summary(payload: Payload) -> list[str]:
    """Return the header fields and the size of a payload as lines of text."""
    header = payload.header
    return [
        f"round {header.round} (the first is 0)  fragment {header.fragment}  samples {header.samples:,}",
        f"peer {header.peer}",
        f"schema {header.schema:016x}  slow weights {header.slow:016x}",
        f"{payload.size:,} bytes, {len(payload.tensors)} tensors, checksum ok",
    ]


def tensor_table(payload: Payload) -> Table:
    """Return a table with one row for each part of each tensor.

    The first row of each tensor also shows its name, its shape and the bits per parameter of all its parts.
    """
    rows = []
    for tensor, parts in payload.tensors.items():
        shape = payload.shapes.get(tensor)
        first = [tensor, "" if shape is None else format_shape(shape)]
        cost = (
            "" if shape is None else format_bits_per_param(sum(part.nbytes for part in parts.values()), shape.numel())
        )
        for name, part in parts.items():
            kind = str(part.dtype).removeprefix("torch.")
            rows.append([*first, name, kind, format_shape(part.shape), f"{part.nbytes:,}", cost])
            first, cost = ["", ""], ""
    return make_table(["tensor", "shape", "part", "dtype", "part's shape"], ["bytes", "bits per parameter"], rows)


def total_table(payload: Payload) -> Table:
    """Return a table of bytes with one row for each kind of part and a last row for the total."""
    rows = [
        [name, f"{size:,}", f"{8 * size:,}", f"{size / payload.size:.1%}", format_bits_per_param(size, payload.values)]
        for name, size in [*payload.bytes_by_part().items(), ("all", payload.size)]
    ]
    return make_table(["all tensors"], ["bytes", "bits", "share", "bits per parameter"], rows)


def make_table(left: list[str], right: list[str], rows: list[list[str]]) -> Table:
    """Return a table with the `left` columns left-aligned and the `right` columns right-aligned.

    Empty columns are omitted.
    """
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    used = [place for place in range(len(left + right)) if any(row[place] for row in rows)]
    for place in used:
        table.add_column((left + right)[place], justify="left" if place < len(left) else "right")
    for row in rows:
        table.add_row(*(Text(printable(row[place])) for place in used))
    return table


def format_shape(shape: Size) -> str:
    """Format a shape: (128, 2) -> "128 x 2". The shape of a scalar becomes ""."""
    return " x ".join(map(str, shape))


def format_bits_per_param(size: int, values: int) -> str:
    """Format the bits per parameter of `size` bytes that encode `values` parameters. Return "" if `values` is 0."""
    return f"{8 * size / values:.3f}" if values else ""
