"""The files of the register of invited and removed peers, and the form of its statements on disk and on the wire.

    identity.access/register     the admissions and removals that this peer knows (invited_peers.py)
    identity.access/removal-*    removals by `outerloop expel`, which the running peer moves into its register
    identity.access/issued       digest and expiry of the tokens that `outerloop invite` has printed
    identity.access/address      the addresses of the running peer, one per line, for `outerloop invite`

The running peer writes the register and its addresses; the commands write all other files.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgpack

from outerloop.swarm.access.admissions import Admission, Removal
from outerloop.swarm.storage import Disk
from outerloop.swarm.validation import MalformedMessage, checked_int, fields, row, unpacked
from outerloop.types import UserError

REGISTER, REMOVAL, ISSUED, ADDRESS = "register", "removal-", "issued", "address"
FOLDER = "identity.access"
VERSION = 1
MAX_ROWS = 4096
"""Maximum number of statements in a register: two admissions for each used invite, and one removal for each peer."""
Statement = Admission | Removal


def folder_of(identity: Path) -> Path:
    """Return the path of the folder with the register that belongs to an identity file."""
    return identity.with_suffix(".access")


def stored(disk: Disk) -> list[Statement]:
    """Return the statements in the register on disk, unchecked. Raises UserError if the register is damaged."""
    try:
        return from_bytes(bytes(disk.read(REGISTER))) if REGISTER in disk.names() else []
    except MalformedMessage as error:
        raise UserError(
            f"{error}: remove the files in {FOLDER} next to this peer's key, and the other peers will send them again"
        ) from error


def read_statements(disk: Disk) -> list[Statement]:
    """Return the statements on disk, unchecked, including removals that no running peer has read yet.

    Raises UserError if a file is damaged.
    """
    waiting = [bytes(disk.read(name)) for name in disk.names() if name.startswith(REMOVAL)]
    try:
        return [*stored(disk), *(Removal.from_list(unpacked(content, "a removal")) for content in waiting)]
    except MalformedMessage as error:
        raise UserError(f"{error}: remove the files {REMOVAL}* in {FOLDER} next to this peer's key") from error


async def write_removal(disk: Disk, removal: Removal) -> None:
    """Write a removal for the running peer. Each removal has its own file, so none is deleted before it is read."""
    name = f"{REMOVAL}{removal.peer[-16:]}-{removal.at_s}-{int(removal.lifted)}"
    await disk.write(name, msgpack.packb(removal.to_list()))


async def write_statements(disk: Disk, statements: Iterable[Statement]) -> None:
    """Write the register, and return once it is synced to disk."""
    rows = [packed(statement) for statement in statements]
    await disk.write(REGISTER, msgpack.packb({"version": VERSION, "statements": rows}))


def from_bytes(content: bytes) -> list[Statement]:
    """Parse the content of the register file. Raises MalformedMessage if it is damaged or of another version."""
    value = fields(unpacked(content, "the register of invited peers"), "the register", ("version", "statements"))
    checked_int(value["version"], "the version of the register of invited peers", minimum=VERSION, maximum=VERSION)
    if type(value["statements"]) is not list or len(value["statements"]) > MAX_ROWS:
        raise MalformedMessage(f"the register of invited peers must have at most {MAX_ROWS} statements")
    return [parsed(one) for one in value["statements"]]


def packed(statement: Statement) -> list[Any]:
    """Return a statement as plain data: [kind, content]."""
    return ["admission" if isinstance(statement, Admission) else "removal", statement.to_list()]


def parsed(value: Any) -> Statement:
    """Parse the result of `packed`. Raises MalformedMessage if it is invalid. No signature is checked."""
    kind, content = row(value, 2, "a statement about invited peers must have a kind and a content")
    if kind not in ("admission", "removal"):
        raise MalformedMessage("a statement about invited peers must be an admission or a removal")
    return Admission.from_list(content) if kind == "admission" else Removal.from_list(content)
