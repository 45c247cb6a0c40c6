"""Define the files of the register of invited and removed peers, and the form of statements on disk and on the network.

    identity.access/register       the admissions, removals and withdrawals that this peer knows (invited_peers.py)
    identity.access/removal-*      removals by `outerloop expel`, which the running peer moves into its register
    identity.access/withdrawal-*   withdrawals by `outerloop invite --withdraw`, which are moved in the same way
    identity.access/issued         digest, expiry and name of the tokens that `outerloop invite` has printed
    identity.access/issued.lock    locked while that file is changed
    identity.access/address        the addresses of the running peer, one per line, for `outerloop invite`

The running peer writes the register and its addresses; the commands write all other files.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgpack

from outerloop.swarm.access.admissions import Admission, Removal, Statement, Withdrawal
from outerloop.swarm.storage import Disk
from outerloop.swarm.validation import MalformedMessage, checked_int, fields, row, unpacked
from outerloop.types import UserError

REGISTER, REMOVAL, WITHDRAWAL, ISSUED, ADDRESS = "register", "removal-", "withdrawal-", "issued", "address"
FOLDER = "identity.access"
VERSION = 2
EARLIEST_VERSION = 1
"""Version of the oldest register that is read. It has no withdrawals."""
MAX_ROWS = 5120
"""Maximum number of statements in a register: two admissions for each used invite, one removal for each peer, and 1024
withdrawals."""
KINDS: dict[str, type[Statement]] = {"admission": Admission, "removal": Removal, "withdrawal": Withdrawal}


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
    """Return the statements on disk, unchecked, including those that commands have written for the running peer.

    Raises UserError if a file is damaged.
    """
    try:
        return [*stored(disk), *(read_waiting(disk, name) for name in waiting(disk))]
    except MalformedMessage as error:
        raise UserError(
            f"{error}: remove the files {REMOVAL}* and {WITHDRAWAL}* in {FOLDER} next to this peer's key"
        ) from error


def waiting(disk: Disk) -> list[str]:
    """Return the names of the files that commands have written and that the running peer has not read yet."""
    return sorted(name for name in disk.names() if name.startswith((REMOVAL, WITHDRAWAL)))


def read_waiting(disk: Disk, name: str) -> Removal | Withdrawal:
    """Return the statement in one of the files that `waiting` returns. Raises MalformedMessage if it is damaged."""
    content = bytes(disk.read(name))
    if name.startswith(WITHDRAWAL):
        return Withdrawal.from_list(unpacked(content, "a withdrawal"))
    return Removal.from_list(unpacked(content, "a removal"))


async def write_waiting(disk: Disk, statement: Removal | Withdrawal) -> None:
    """Write a statement to a new file. The running peer reads this file, and removes it once it has the statement."""
    if isinstance(statement, Withdrawal):
        name = f"{WITHDRAWAL}{statement.digest[:8].hex()}-{statement.at_s}"
    else:
        name = f"{REMOVAL}{statement.peer[-16:]}-{statement.at_s}-{int(statement.lifted)}"
    await disk.write(name, msgpack.packb(statement.to_list()))


async def write_statements(disk: Disk, statements: Iterable[Statement]) -> None:
    """Write the register, and return once it is synced to disk."""
    rows = [packed(statement) for statement in statements]
    await disk.write(REGISTER, msgpack.packb({"version": VERSION, "statements": rows}))


def from_bytes(content: bytes) -> list[Statement]:
    """Parse the content of the register file. Raises MalformedMessage if it is damaged or of another version."""
    value = fields(unpacked(content, "the register of invited peers"), "the register", ("version", "statements"))
    what = "the version of the register of invited peers"
    checked_int(value["version"], what, minimum=EARLIEST_VERSION, maximum=VERSION)
    if type(value["statements"]) is not list or len(value["statements"]) > MAX_ROWS:
        raise MalformedMessage(f"the register of invited peers must have at most {MAX_ROWS} statements")
    return [parsed(one) for one in value["statements"]]


def packed(statement: Statement) -> list[Any]:
    """Return a statement as plain data: [kind, content]."""
    return [next(kind for kind, form in KINDS.items() if isinstance(statement, form)), statement.to_list()]


def parsed(value: Any) -> Statement:
    """Parse the result of `packed`. Raises MalformedMessage if it is invalid. No signature is checked."""
    kind, content = row(value, 2, "a statement about invited peers must have a kind and a content")
    if type(kind) is not str or kind not in KINDS:
        raise MalformedMessage("a statement about invited peers must be an admission, a removal or a withdrawal")
    return KINDS[kind].from_list(content)
