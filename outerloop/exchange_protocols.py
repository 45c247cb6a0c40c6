"""Optional protocols of an exchange, and functions that use a protocol or, if the exchange lacks it, a default.

Replicated     a majority decides which messages form a round; a peer may miss rounds, or join late and fetch the state
JoinsAtRound   the first round of this peer is the one that was passed to `join`
Chained        each round is a commit of a chain, whose hash identifies the history of the run
Meeting        all peers exchange bytes outside of rounds
StateSender    sends the initial state to some peers more cheaply than through a meeting
Metered        counts bytes and transfer time
SharedDecode   peers of one process, or the ranks of an island, share the decoded messages of a round
RejectsPeers   excludes peers whose messages are unusable
Publishes      shows what each peer has contributed to those who observe the run
ReportsRoster  reports which peers join and leave the run
Counted        reports additional counters, such as the number of rejections
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar, cast, runtime_checkable

from outerloop.protocols import Exchange
from outerloop.types import Contribution, Contributor, Refusals, Round, StateHandoff, UserError


class Replicated(Protocol):
    """An exchange with `info.replicated`: a majority of the peers decides which messages form a round."""

    @property
    def late_joiner(self) -> bool:
        """True if the run had already started when this peer joined; valid after `join`."""
        ...

    @property
    def shares_rank(self) -> bool:
        """True if a member of the run has the same rank as this late joiner; valid after `join`."""
        ...

    @property
    def alive(self) -> int:
        """Number of peers expected in the next round; valid after `join`."""
        ...

    def decided(self, round: Round) -> bool:
        """Return whether the other peers have already decided a round without waiting for this peer's message.

        Raises StateTransferRequired if this peer is too far behind to land the round.
        """
        ...

    def landed(self, round: Round, state: Callable[[], bytes]) -> None:
        """Report that the replica has landed a round.

        `state` serializes the state that all replicas share. It is called if other peers need the state after this
        round.
        """
        ...

    def recover(self, max_bytes: int) -> tuple[Round, bytes]:
        """Fetch the shared state from the other peers. Arguments and result are those of `StateTransferRequired.state`.

        Raises QuorumLost if the state does not arrive.
        """
        ...


def replicated(exchange: Exchange) -> Replicated | None:
    """Return the exchange if a majority of its peers decides rounds, else None."""
    return cast(Replicated, exchange) if exchange.info.replicated else None


def decided(exchange: Exchange, round: Round) -> bool:
    """Return whether the other peers have decided a round without this peer; False if the exchange is not replicated.

    Raises StateTransferRequired if this peer is too far behind to land the round.
    """
    majority = replicated(exchange)
    return majority is not None and majority.decided(round)


def report_landed(exchange: Exchange, round: Round, state: Callable[[], bytes]) -> None:
    """Report a landed round if the exchange is replicated. `state` is called if other peers need the shared state."""
    if majority := replicated(exchange):
        majority.landed(round, state)


def late_joiner(exchange: Exchange) -> bool:
    """Return whether the run had already started when this peer joined."""
    majority = replicated(exchange)
    return majority is not None and majority.late_joiner


def shares_rank(exchange: Exchange) -> bool:
    """Return whether this peer joined late and has the same rank as a member of the run."""
    majority = replicated(exchange)
    return majority is not None and majority.late_joiner and majority.shares_rank


@runtime_checkable
class JoinsAtRound(Protocol):
    """An exchange whose first round is the one that was passed to `join`."""

    @property
    def joined_round(self) -> Round | None:
        """The round at which this peer joined with the others; None before `join`, and if it joined late."""
        ...


def joined_round(exchange: Exchange) -> Round | None:
    """Return the round at which this peer joined, or None if it joined late or may start at any round."""
    return exchange.joined_round if isinstance(exchange, JoinsAtRound) else None


@runtime_checkable
class Chained(Protocol):
    """An exchange whose rounds form a chain of commits. Each hash has 32 bytes."""

    @property
    def first_commit(self) -> bytes:
        """Hash of the commit before the round that this peer started with; empty if this peer does not know it.

        Valid after `join`.
        """
        ...

    @property
    def landed_commit(self) -> bytes:
        """Hash of the commit of the last round that this process has landed or loaded; empty before the first one."""
        ...


def first_commit(exchange: Exchange) -> bytes:
    """Return the hash of the commit before the first round, or b"" if it is unknown or there is no chain."""
    return exchange.first_commit if isinstance(exchange, Chained) else b""


def landed_commit(exchange: Exchange) -> bytes:
    """Return the hash of the commit that this process has landed last, or b"" if there is none."""
    return exchange.landed_commit if isinstance(exchange, Chained) else b""


@runtime_checkable
class Meeting(Protocol):
    """An exchange whose peers can exchange bytes outside of rounds."""

    def all_gather(self, blob: bytes, number: int, timeout_s: float) -> list[Contribution]:
        """Return the bytes that all live peers sent to this all-gather, including this peer's, sorted by peer name.

        All peers must call this with the same values of `number`, in increasing order. Raises RoundFailed if the
        all-gather fails.
        """
        ...


def meeting(exchange: Exchange) -> Meeting:
    """Return the exchange as a Meeting. Raises UserError if it has no `all_gather`."""
    if not isinstance(exchange, Meeting):
        raise UserError(
            f"{type(exchange).__name__} has no all_gather, which peers use to compare their states: add it, or set"
            " exchange=swarm_gather"
        )
    return exchange


@runtime_checkable
class StateSender(Protocol):
    """An exchange with its own method to send the initial state from peers that have it to peers that need it."""

    def hand_over(self, way: StateHandoff, state: Callable[[], bytes]) -> bytes:
        """Return the state of `way.givers` if this peer is one of `way.takers`, else empty bytes.

        All peers must call this with the same `way`, after an all-gather. `state` serializes this peer's state and is
        called only if needed. Raises RoundFailed or QuorumLost if the state does not arrive.
        """
        ...


def hand_over(exchange: Exchange, way: StateHandoff, state: Callable[[], bytes]) -> bytes:
    """Call `StateSender.hand_over`. If the exchange lacks it, send the first giver's state in an all-gather."""
    if isinstance(exchange, StateSender):
        return exchange.hand_over(way, state)
    if not way.takers:
        return b""
    own = state() if exchange.peer == way.givers[0] else b""
    met = {c.peer: bytes(c.blob) for c in meeting(exchange).all_gather(own, way.number, way.timeout_s)}
    return met[way.givers[0]] if exchange.peer in way.takers else b""


@runtime_checkable
class Metered(Protocol):
    """An exchange that counts the bytes and seconds of its transfers."""

    @property
    def bytes_sent(self) -> int:
        """Payload bytes that this peer has sent, counting every copy."""
        ...

    @property
    def bytes_received(self) -> int:
        """Payload bytes that this peer has received."""
        ...

    @property
    def transfer_s(self) -> float:
        """Seconds so far during which at least one payload was being transferred to or from this peer."""
        ...


@dataclass(frozen=True)
class Unmetered:
    """The counters of an exchange that counts nothing."""

    bytes_sent: int = 0
    bytes_received: int = 0
    transfer_s: float = 0.0


def metered(exchange: Exchange) -> Metered:
    """Return the exchange itself, or `Unmetered` if the exchange counts nothing."""
    return exchange if isinstance(exchange, Metered) else Unmetered()


class Reading(Protocol):
    """The result of decoding the messages of a round."""

    @property
    def refused(self) -> Refusals:
        """Peer -> the reason why its message is left out."""
        ...


Read = TypeVar("Read", bound=Reading)


@runtime_checkable
class SharedDecode(Protocol):
    """An exchange that lets several peers or ranks share the decoded messages of a round."""

    def decode_shared(self, round: Round, read: Callable[[Refusals], Read]) -> Read:
        """Call `read` for the messages of a round, and return its result.

        The argument of `read` contains the refusals that another rank of this peer has already found.

        If several peers share this process and get the same contributions, `read` is called once and all of them get
        the same object, which must not be modified. Raises the errors of `read`.
        """
        ...


def decode_shared(exchange: Exchange, round: Round, read: Callable[[Refusals], Read]) -> Read:
    """Call `SharedDecode.decode_shared`. If the exchange lacks it, call `read` for this peer alone."""
    return exchange.decode_shared(round, read) if isinstance(exchange, SharedDecode) else read({})


@runtime_checkable
class RejectsPeers(Protocol):
    """An exchange between peers that need not trust each other."""

    def refused(self, round: Round, refusals: Refusals) -> None:
        """Report that a round has landed on this replica without these peers' messages, which no peer can use."""
        ...


def report_refused(exchange: Exchange, round: Round, refusals: Refusals) -> None:
    """Report the unusable messages of a landed round, if any, to an exchange that rejects peers."""
    if refusals and isinstance(exchange, RejectsPeers):
        exchange.refused(round, refusals)


@runtime_checkable
class Publishes(Protocol):
    """An exchange that shows the contributions of all peers to those who observe the run."""

    def publish_contributors(self, round: Round, contributors: Sequence[Contributor]) -> None:
        """Show the contributions up to and including a round that has landed on this replica."""
        ...

    def public_names(self) -> Mapping[str, str]:
        """Return peer id -> public name, for the peers whose names are known."""
        ...


def report_contributors(exchange: Exchange, round: Round, contributors: Sequence[Contributor]) -> None:
    """Report the contributions up to and including a landed round to an exchange that shows them."""
    if isinstance(exchange, Publishes):
        exchange.publish_contributors(round, contributors)


def public_names(exchange: Exchange) -> Mapping[str, str]:
    """Return peer id -> public name; empty if the peers of the exchange have no names."""
    return exchange.public_names() if isinstance(exchange, Publishes) else {}


@runtime_checkable
class ReportsRoster(Protocol):
    """An exchange that reports which peers join and leave the run."""

    def roster_news(self) -> Sequence[str]:
        """Return one line for each peer that has joined or left since the last call.

        An exchange may limit the number of lines, and count further changes in one line.
        """
        ...


def roster_news(exchange: Exchange) -> Sequence[str]:
    """Return one line for each peer that has joined or left since the last call; empty if the exchange has none."""
    return exchange.roster_news() if isinstance(exchange, ReportsRoster) else ()


@runtime_checkable
class Counted(Protocol):
    """An exchange with additional counters."""

    def counters(self) -> dict[str, float]:
        """Return the additional counters since the start; their names contain their units."""
        ...


def counters(exchange: Exchange) -> dict[str, float]:
    """Return the additional counters of the exchange; empty if it has none."""
    return exchange.counters() if isinstance(exchange, Counted) else {}
