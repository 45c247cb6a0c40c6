"""List the tokens that `outerloop invite` has printed on this machine.

The file ISSUED, next to the key of the worker that issued them, contains the digest, the name and the expiry of each
token. It does not contain the token itself, which is a secret.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgpack

from outerloop.commands.listed_workers import ListedWorker
from outerloop.swarm.access.invited_peers import InvitedPeers
from outerloop.swarm.access.register_files import ISSUED


@dataclass(frozen=True)
class IssuedToken:
    """A token that a worker has issued: digest and name of the invite, and the Unix time at which it expires."""

    digest: bytes
    expires_s: int
    name: str

    @staticmethod
    def of(digest: bytes, value: Any) -> IssuedToken:
        """Parse the value for a digest in the file ISSUED: [expires_s, name], or expires_s in an older file."""
        expires_s, name = value if isinstance(value, list) else (value, "")
        return IssuedToken(digest, expires_s, name)

    @property
    def id(self) -> str:
        """The first 8 hexadecimal digits of the digest, with which lists and logs name the token."""
        return self.digest[:4].hex()

    @property
    def label(self) -> str:
        """The id and the name, for messages."""
        return f"token {self.id} {self.name or '-'}"


def read_tokens(worker: ListedWorker) -> list[IssuedToken]:
    """Return the tokens that a worker has issued, in the order of their issue."""
    if ISSUED not in worker.access.names():
        return []
    issued: dict[bytes, Any] = msgpack.unpackb(bytes(worker.access.read(ISSUED)))
    return [IssuedToken.of(digest, value) for digest, value in issued.items()]


def add_token(worker: ListedWorker, token: IssuedToken, *, now_s: float) -> None:
    """Store a token that a worker issues at the Unix time `now_s`, and drop those that have expired.

    Other commands that add a token to the same file wait. Raises UserError if the file system has no locks.
    """
    with worker.access.locked(ISSUED):
        kept = [one for one in read_tokens(worker) if one.expires_s > now_s]
        issued = {one.digest: [one.expires_s, one.name] for one in (*kept, token)}
        asyncio.run(worker.access.write(ISSUED, msgpack.packb(issued)))


def unused(worker: ListedWorker, peers: InvitedPeers, *, now_s: float) -> list[IssuedToken]:
    """Return the tokens of a worker that can still be used: not expired at `now_s`, not withdrawn, and not used."""
    return [one for one in read_tokens(worker) if is_unused(one, worker, peers, now_s=now_s)]


def is_unused(token: IssuedToken, worker: ListedWorker, peers: InvitedPeers, *, now_s: float) -> bool:
    """Return whether a token of a worker can still be used."""
    is_withdrawn = (worker.signatures.peer_id, token.digest) in peers.withdrawals
    return token.expires_s > now_s and token.digest not in peers.admissions and not is_withdrawn


def token_lines(worker: ListedWorker, peers: InvitedPeers, *, now_s: float) -> Iterator[str]:
    """Yield one line for each token of a worker that is unused, and then for each that was withdrawn.

    Tokens that have expired are left out.
    """
    for token in unused(worker, peers, now_s=now_s):
        yield f"unused {token.label}, can be used before {minute(token.expires_s)}"
    for token in read_tokens(worker):
        withdrawal = peers.withdrawals.get((worker.signatures.peer_id, token.digest))
        if withdrawal is not None and token.expires_s > now_s:
            late = [one.peer for one in peers.admissions.get(token.digest, ()) if peers.withdrawal_of(one)]
            yield f"{token.label} was withdrawn {minute(withdrawal.at_s)}{refused(late)}"


def refused(peers: Sequence[str]) -> str:
    """Return the end of a token's line: the peers that used the token after it was withdrawn; "" without such peers."""
    return f"; {' and '.join(peers)} used it later and may not take part" if peers else ""


def minute(time_s: float) -> str:
    """Return a Unix time as local date, hour and minute."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(time_s))
