"""`outerloop inspect`: one payload as tables: header, the parts of every tensor, what each kind of part costs."""

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
from outerloop.commands.arguments import Parser
from outerloop.inner.export_shapes import shapes_of
from outerloop.schedule.streaming import strided
from outerloop.types import Parts, UserError, printable

WIDE = 140
"""Columns of a table that goes to a file or a pipe."""
FRAME = "header, table, checksum"

DESCRIPTION = """\
Shows what one payload, the message that a worker sends in a round, is made of: its header, the parts of every tensor
with dtype, shape and bytes, and what each kind of part costs in all. A damaged file is told so and not shown."""

EXAMPLES = """\
where payloads are
  outerloop train run_dir=runs/first keep_payload_rounds=2     keeps the last two rounds' of every worker in
                                                               runs/first/workers/<worker>/payloads/
examples
  outerloop inspect runs/first/workers/0/payloads/00000059-0.outl
  outerloop inspect runs/first/workers/0/payloads/00000059-0.outl --model runs/first/hf

A payload carries no tensor names: without --model tensors are numbered, in the order of the model. The model fits when
the hash of its names and shapes is the payload's."""


@dataclass(frozen=True)
class Payload:
    """One message: its length, its header and its tensors by name; `shapes` of the tensors, empty if not known."""

    size: int
    header: wire.Header
    tensors: dict[str, Parts]
    shapes: wire.Schema

    @property
    def values(self) -> int:
        """Parameters that the message is about, 0 if not known."""
        return sum(shape.numel() for shape in self.shapes.values())

    def bytes_by_part(self) -> Counter[str]:
        """Part name -> bytes of all tensors; what holds them together under its own name."""
        out: Counter[str] = Counter()
        for parts in self.tensors.values():
            out.update({name: part.nbytes for name, part in parts.items()})
        return out + Counter({FRAME: self.size - out.total()})


def parser() -> Parser:
    """The options."""
    out = Parser("inspect", example="outerloop inspect FILE", description=DESCRIPTION, epilog=EXAMPLES)
    out.add_argument("file", type=Path, metavar="FILE", help="one payload")
    out.add_argument("--model", type=Path, metavar="PATH", help="a run's hf/ or a .safetensors file: names the tensors")
    return out


def main(arguments: Sequence[str]) -> int:
    """Exit code 0. Raises UserError."""
    options = parser().parse_args(arguments)
    console = Console() if sys.stdout.isatty() else Console(width=WIDE)
    payload = load(options.file, options.model)
    for line in summary(payload):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    console.print(tensor_table(payload))
    console.print(total_table(payload))
    return 0


def load(file: Path, model: Path | None) -> Payload:
    """Read and check one payload. Raises UserError."""
    try:
        blob = bytes_of(file)
        header, tensors = wire.read(blob)
    except (OSError, wire.InvalidMessage) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{file} is not a whole payload: {reason}: type outerloop inspect --help") from error
    shapes = fragment_of(shapes_of(model), header, len(tensors), model) if model else {}
    names = list(shapes) if model else [str(number) for number in range(len(tensors))]
    return Payload(len(blob), header, dict(zip(names, tensors, strict=True)), shapes)


def bytes_of(file: Path) -> bytes:
    """The whole file; of one that is something else, however large, only the beginning is read."""
    with file.open("rb") as opened:
        start = opened.read(len(wire.MAGIC))
        if start != wire.MAGIC:
            raise wire.InvalidMessage(f"it begins with {start!r} and not with {wire.MAGIC!r}")
        return start + opened.read()


def fragment_of(shapes: wire.Schema, header: wire.Header, count: int, model: Path) -> wire.Schema:
    """What a message of `count` tensors is about: all of the model, or one of P strided fragments; its hash says which.

    Gossip may send slow and fast weights as one tensor, (2, shape). Raises UserError when nothing fits.
    """
    for fragments in range(1, len(shapes) + 1):
        homes = strided(list(shapes), fragments)
        part = {name: shape for name, shape in shapes.items() if homes[name] == header.fragment}
        for schema in (part, {name: Size([2, *shape]) for name, shape in part.items()}):
            if len(part) == count and wire.schema_hash(schema) == header.schema:
                return schema
    raise UserError(
        f"--model {model} is another model: its {len(shapes)} names and shapes hash to {wire.schema_hash(shapes):016x},"
        f" the payload's {count} to {header.schema:016x}: type --model with the hf/ of the payload's run"
    )


def summary(payload: Payload) -> list[str]:
    """What the header says, and the size."""
    header = payload.header
    return [
        f"round {header.round} (the first is 0)  fragment {header.fragment}  samples {header.samples:,}",
        f"peer {header.peer}",
        f"schema {header.schema:016x}  slow weights {header.slow:016x}",
        f"{payload.size:,} bytes, {len(payload.tensors)} tensors, checksum ok",
    ]


def tensor_table(payload: Payload) -> Table:
    """One row for each part of each tensor; the bits are those of all its parts."""
    rows = []
    for tensor, parts in payload.tensors.items():
        shape = payload.shapes.get(tensor)
        first = [tensor, "" if shape is None else dims(shape)]
        cost = "" if shape is None else bits_a_parameter(sum(part.nbytes for part in parts.values()), shape.numel())
        for name, part in parts.items():
            kind = str(part.dtype).removeprefix("torch.")
            rows.append([*first, name, kind, dims(part.shape), f"{part.nbytes:,}", cost])
            first, cost = ["", ""], ""
    return table_of(["tensor", "shape", "part", "dtype", "part's shape"], ["bytes", "bits a parameter"], rows)


def total_table(payload: Payload) -> Table:
    """One row for each kind of part, and what they cost together."""
    rows = [
        [name, f"{size:,}", f"{8 * size:,}", f"{size / payload.size:.1%}", bits_a_parameter(size, payload.values)]
        for name, size in [*payload.bytes_by_part().items(), ("all", payload.size)]
    ]
    return table_of(["all tensors"], ["bytes", "bits", "share", "bits a parameter"], rows)


def table_of(left: list[str], right: list[str], rows: list[list[str]]) -> Table:
    """Words to the left, numbers to the right; a column that is empty all the way down is left out."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    used = [place for place in range(len(left + right)) if any(row[place] for row in rows)]
    for place in used:
        table.add_column((left + right)[place], justify="left" if place < len(left) else "right")
    for row in rows:
        table.add_row(*(Text(printable(row[place])) for place in used))
    return table


def dims(shape: Size) -> str:
    """(128, 2) -> 128 x 2; a scalar's is empty."""
    return " x ".join(map(str, shape))


def bits_a_parameter(size: int, values: int) -> str:
    """Bytes over parameters, in bits."""
    return f"{8 * size / values:.3f}" if values else ""
