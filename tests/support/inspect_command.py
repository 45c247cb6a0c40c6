"""`outerloop inspect` on payloads in files."""

from pathlib import Path

import torch

from outerloop import wire
from tests.support.run_command import run_command


def parts_of(shape):
    """What some codec makes of a tensor."""
    code = torch.zeros(-(-shape.numel() // 2), dtype=torch.uint8)
    return {"code": code, "scale": torch.ones(3, 2, dtype=torch.bfloat16)}


def payload(folder: Path, schema, *, fragment=0) -> Path:
    """A payload of these names and shapes, in a file."""
    header = wire.Header(4, fragment, 1234, wire.schema_hash(schema), 2**64 - 1, "peer-π")
    file = folder / "00000004-0.outl"
    file.write_bytes(wire.pack(header, {name: parts_of(shape) for name, shape in schema.items()}))
    return file


def inspect(monkeypatch, capsys, *arguments):
    """Exit code, output, and what went to standard error."""
    return run_command(monkeypatch, capsys, "inspect", *arguments)
