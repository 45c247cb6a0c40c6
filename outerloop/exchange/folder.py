"""Exchange messages through files in a folder that all peers share, for example on a network file system.

    put SESSION.round-FRAGMENT.NUMBER.PEER   ->   wait until the files of all peers exist   ->   read them in rank order

In `join`, the peers agree on a session: the hash of random tokens, one from each peer. The session is part of the file
name of every message, so no peer reads a message from an earlier attempt. A file becomes visible only when it is
complete, is read up to a size limit, and is deleted a few rounds later by the peer that wrote it. The files of the last
rounds remain until the next run with the same name. To use an object store instead, implement the methods of `Files`
for it.

If a peer's message is missing at the time limit, the round fails on every peer that is still waiting. All later rounds
of such a peer fail too, because another peer may have landed the failed round. The run ends, keeps its checkpoints, and
must be resumed on all peers. No peer can join late. Any process that can write to the folder can impersonate any peer.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from pathlib import Path

from outerloop.state.checkpoint import write_atomically
from outerloop.types import FIRST, Capabilities, Contribution, Round, RoundFailed, UserError

RUN = re.compile("[A-Za-z0-9][A-Za-z0-9_-]*")
LOOK_S = 0.02
"""Interval between checks of the folder, in seconds."""
KEPT = 4
"""Number of recent files of each kind that a peer keeps. Each fragment's messages are one kind, all-gathers another.

When a peer writes file n of a kind, all peers have read its file n − 2 or, with eager updates, its file n − 4.
"""
MEETING_BYTES = 16 << 20
"""The size limit of a message outside of rounds is twice `max_blob_bytes` plus this number of bytes.

The messages of the first all-gather contain all settings and shapes.
"""
TOKEN_BYTES = 16


class SharedFolder:
    """The exchange of one peer, which sends and receives messages through a shared folder.

    Args:
        folder: a folder that all peers share; created if absent.
        run: name of the run (letters, digits, - and _), and of its subfolder in `folder`.
        peers: number of peers in the run, on all machines.
        worker: index of this worker on its machine.
        first_worker: number of workers on the preceding machines; worker + first_worker is the rank.
        join_timeout_s: how long to wait for the other peers at the start, in seconds.
        max_blob_bytes: maximum size of a message in a round.

    Raises:
        UserError: if an option is invalid.
    """

    info = Capabilities(agrees=True, waits_for_all=True, lockstep=True, measures_transfer=True, concurrent=True)

    def __init__(
        self,
        *,
        folder: str,
        peers: int,
        run: str = "default",
        worker: int = 0,
        first_worker: int = 0,
        join_timeout_s: float = 120.0,
        max_blob_bytes: int = 1 << 30,
    ) -> None:
        if not RUN.fullmatch(run):
            raise UserError(f"exchange.run={run!r} may contain only letters, digits, - and _: set exchange.run=mine")
        if not 0 <= worker + first_worker < peers:
            raise UserError(
                f"exchange.first_worker={first_worker} gives this peer rank {worker + first_worker}, which must be less"
                f" than exchange.peers={peers}: set exchange.peers to the number of workers on all machines, and"
                " exchange.first_worker to the number of workers on the preceding machines"
            )
        self.files = Files(Path(folder) / run)
        self.rank, self.size = worker + first_worker, peers
        self.names = [f"{rank:06d}" for rank in range(peers)]
        self.peer = self.names[self.rank]
        self.join_timeout_s, self.max_blob_bytes = join_timeout_s, max_blob_bytes
        self.session = self.failure = ""
        self.own: defaultdict[str, deque[str]] = defaultdict(deque)
        self.bytes_sent = self.bytes_received = 0
        self.write_s = self.read_s = 0.0

    @property
    def transfer_s(self) -> float:
        """Seconds spent writing and reading files."""
        return self.write_s + self.read_s

    def join(self, first: Round = FIRST) -> None:
        """Agree on a session with all peers. Raises UserError if some do not appear in time."""
        self.files.put(f"hello.{self.peer}", secrets.token_bytes(TOKEN_BYTES))
        if absent := until(self.join_timeout_s, self.unagreed):
            raise UserError(
                f"{', '.join(absent)} did not join within {self.join_timeout_s:g} s in"
                f" exchange.folder={self.files.folder.parent}: start every rank once, with the same exchange.run and"
                " exchange.peers"
            )
        self.files.delete_all_but(self.session, self.peer)

    def unagreed(self) -> list[str]:
        """Return the peers that have not appeared yet, or have not confirmed the session that this peer computed."""
        if absent := self.lacking("hello"):
            return absent
        tokens = [self.files.get(f"hello.{name}", TOKEN_BYTES) for name in self.names]
        session = hashlib.sha256(b"".join(tokens)).hexdigest()[:16]
        if session != self.session:
            self.session = session
            self.files.put(f"ready.{self.peer}", session.encode())
        if absent := self.lacking("ready"):
            return absent
        return [name for name in self.names if self.files.get(f"ready.{name}", len(session)) != session.encode()]

    def lacking(self, step: str) -> list[str]:
        """Return the peers whose file for this step does not exist yet."""
        return [name for name in self.names if not self.files.has(f"{step}.{name}")]

    def start(self, blob: bytes, round: Round) -> PendingRound:
        """Write this peer's message, unless an earlier round has failed on this peer."""
        kind = f"round-{round.fragment}"
        if not self.failure:
            began_s = time.monotonic()
            self.put(kind, round.number, blob)
            self.write_s += time.monotonic() - began_s
            self.bytes_sent += len(blob)
        return PendingRound(self, f"{self.session}.{kind}.{round.number}", round)

    def put(self, kind: str, number: int, blob: bytes) -> None:
        """Write a message. If this peer then keeps more than KEPT messages of this kind, delete the oldest one."""
        own, name = self.own[kind], f"{self.session}.{kind}.{number}.{self.peer}"
        self.files.put(name, blob)
        if name not in own:
            own.append(name)
        if len(own) > KEPT:
            self.files.delete(own.popleft())

    def read(self, step: str, timeout_s: float, max_bytes: int) -> dict[str, bytes]:
        """Wait for all peers' messages at this step. Return peer -> message, in rank order.

        Raises RoundFailed if a message is missing after `timeout_s`. Every later call then raises RoundFailed too.
        """
        if not self.failure and (absent := until(timeout_s, lambda: self.lacking(step))):
            self.failure = f"no message from {', '.join(absent)} within {timeout_s:g} s: resume the run on all peers"
        if self.failure:
            raise RoundFailed(self.failure)
        began_s = time.monotonic()
        messages = {name: self.files.get(f"{step}.{name}", max_bytes) for name in self.names}
        self.read_s += time.monotonic() - began_s
        return messages

    def all_gather(self, blob: bytes, number: int, timeout_s: float) -> list[Contribution]:
        """Gather one message from each peer outside of rounds. The bytes do not count as training traffic."""
        self.put("meeting", number, blob)
        limit = 2 * self.max_blob_bytes + MEETING_BYTES
        messages = self.read(f"{self.session}.meeting.{number}", timeout_s, limit)
        return [Contribution(name, Round(number), message) for name, message in messages.items()]

    def close(self) -> None:
        """Do nothing: other peers can still read this peer's files after it has left."""

    def abort(self) -> None:
        """Do nothing, like `close`."""


class PendingRound:
    """A round whose messages appear as files in the folder."""

    def __init__(self, exchange: SharedFolder, step: str, round: Round) -> None:
        self.exchange, self.step, self.round = exchange, step, round

    def wait(self, timeout_s: float) -> list[Contribution]:
        """Return the messages of all peers in rank order. Raises RoundFailed if one is missing or too large."""
        messages = self.exchange.read(self.step, timeout_s, self.exchange.max_blob_bytes)
        self.exchange.bytes_received += sum(len(x) for name, x in messages.items() if name != self.exchange.peer)
        return [Contribution(name, self.round, message) for name, message in messages.items()]

    def arrived(self) -> bool:
        """Return whether `wait` would not block, because all messages exist or a round has failed on this peer."""
        return bool(self.exchange.failure) or not self.exchange.lacking(self.step)


class Files:
    """Stores messages as files in a folder, which is created if absent."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def put(self, name: str, blob: bytes) -> None:
        """Write a file. It becomes visible only when it is complete."""
        write_atomically(self.folder / name, blob)

    def has(self, name: str) -> bool:
        """Return whether the file exists."""
        return (self.folder / name).is_file()

    def get(self, name: str, max_bytes: int) -> bytes:
        """Read a file. Raises RoundFailed if it is larger than `max_bytes`."""
        with (self.folder / name).open("rb") as file:
            blob = file.read(max_bytes + 1)
        if len(blob) > max_bytes:
            raise RoundFailed(f"{self.folder / name} has more than {max_bytes} bytes, the limit for this file")
        return blob

    def delete(self, name: str) -> None:
        """Delete a file if it exists."""
        (self.folder / name).unlink(missing_ok=True)

    def delete_all_but(self, session: str, peer: str) -> None:
        """Delete the messages that a peer wrote in other sessions."""
        for path in self.folder.glob(f"*.*.*.{peer}"):
            if not path.name.startswith(session):
                path.unlink(missing_ok=True)


def until(timeout_s: float, lacking: Callable[[], Sequence[str]]) -> Sequence[str]:
    """Call `lacking` repeatedly until it returns an empty sequence or the time is up. Return its last result."""
    until_s = time.monotonic() + timeout_s
    while (absent := lacking()) and time.monotonic() < until_s:
        time.sleep(LOOK_S)
    return absent
