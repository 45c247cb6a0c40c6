"""One exchange for several processes that hold the same weights: the first takes part, the others hear what came back.

    leader: exchange.start(blob) … wait   →   all contributions   →   broadcast inside the island   →   all land them

The ranks of a DDP model, or the copies of one shard in HSDP, are one peer so: a message crosses the slow link once,
however many they are. Everyone makes the same message of the same weights, which is checked, and lands the same bytes,
so they stay equal without a word about weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from outerloop import snapshot
from outerloop.protocols import Exchange, Pending
from outerloop.ranks import Ranks, tensor_of
from outerloop.types import (
    FIRST,
    Contribution,
    Deserted,
    LeaderFailed,
    Made,
    Outrun,
    ReplicasDiverged,
    Round,
    RoundFailed,
    UserError,
)

KNOWN = {error.__name__: error for error in (RoundFailed, Deserted, UserError)}
"""Errors that mean the same at all processes."""


class Led:
    """An Exchange around that of the leader, which is the first of the processes.

    Args:
        exchange: has been joined; not looked at but at the leader.
        ranks: the processes that hold the same weights.
    """

    def __init__(self, exchange: Exchange | None, *, ranks: Ranks) -> None:
        self.ranks, self.exchange = ranks, exchange if ranks.leads else None
        self.outrun_by: Outrun | None = None
        facts = ("agrees", "waits_for_all", "lockstep", "tells_moving", "peer", "rank", "size", "came_late")
        told = self.together(lambda x: [getattr(x, fact) for fact in facts] + [x.recovery is not None])
        self.agrees, self.waits_for_all, self.lockstep, self.tells_moving = told[:4]
        self.peer, self.rank, self.size, self.came_late = told[4:-1]
        self.recovery: Callable[[int], tuple[Round, bytes]] | None = self.recovered if told[-1] else None

    @classmethod
    def joining(cls, join: Callable[[], Exchange], *, ranks: Ranks) -> Led:
        """The same, of an exchange that the leader has yet to join; where it cannot, all raise."""
        try:
            exchange = join() if ranks.leads else None
        except Exception as error:
            tell_of(error, ranks)
            raise
        return cls(exchange, ranks=ranks)

    @property
    def alive(self) -> int:
        """How many peers the next round counts on; islands, not processes."""
        return self.exchange.alive if self.exchange else self.size

    @property
    def bytes_sent(self) -> int:
        """Of the leader; nothing leaves the island from the others."""
        return self.exchange.bytes_sent if self.exchange else 0

    @property
    def bytes_received(self) -> int:
        """Of the leader."""
        return self.exchange.bytes_received if self.exchange else 0

    @property
    def moving_s(self) -> float:
        """The leader's; the others' waiting is all for others."""
        return self.exchange.moving_s if self.exchange else 0.0

    def join(self, first: Round = FIRST) -> None:
        """The leader has joined."""

    def decided(self, round: Round) -> bool:
        """As the leader's exchange says. Raises Outrun at all."""
        return self.together(lambda exchange: exchange.decided(round))

    def landed(self, round: Round, state: Callable[[], bytes]) -> None:
        """The leader has a state to give."""
        if self.exchange:
            self.exchange.landed(round, state)

    def start(self, blob: bytes, round: Round) -> PendingAtLeader:
        """Offered once, by the leader. Raises at all what it raises there."""
        pending = PendingAtLeader(self, blob)
        self.together(lambda exchange: pending.begin(exchange, round))
        return pending

    def once(self, round: Round, make: Callable[[], Made]) -> Made:
        """A process of its own: made here."""
        return make()

    def meet(self, blob: bytes, number: int, timeout_s: float) -> list[Contribution]:
        """One message an island, the leader's. Raises RoundFailed."""
        return unlisted(self.together(lambda exchange: listed(exchange.meet(blob, number, timeout_s))))

    def counters(self) -> dict[str, float]:
        """The leader's."""
        return self.exchange.counters() if self.exchange else {}

    def close(self) -> None:
        """The leader leaves."""
        if self.exchange:
            self.exchange.close()

    def abort(self) -> None:
        """The leader leaves at once."""
        if self.exchange:
            self.exchange.abort()

    def recovered(self, most_bytes: int) -> tuple[Round, bytes]:
        """The others' state, which the leader asks for where it was told to when outrun, else through its exchange."""

        def asked(exchange: Exchange) -> list[Any]:
            state = self.outrun_by.state if self.outrun_by else exchange.recovery
            assert state is not None
            round, content = state(most_bytes)
            return [round.number, round.fragment, tensor_of(content)]

        number, fragment, content = self.together(asked)
        self.outrun_by = None
        return Round(number, fragment), content.numpy().tobytes()

    def together(self, work: Callable[[Exchange], Any]) -> Any:
        """What `work` gives at the leader (a tree of plain values and tensors), at all; or what it raises there.

        Raises LeaderFailed at the others when that is none of KNOWN, and may be of the leader alone.
        """
        if self.exchange is None:
            return self.heard(snapshot.unpack(self.ranks.spread(b"")))
        try:
            value = work(self.exchange)
        except Outrun as outrun:
            self.outrun_by = outrun
            tell_of(outrun, self.ranks)
            raise Outrun(self.recovered) from None
        except Exception as error:
            tell_of(error, self.ranks)
            raise
        self.ranks.spread(snapshot.pack({"raised": "", "value": value}))
        return value

    def heard(self, told: dict[str, Any]) -> Any:
        """What the leader has told, at another process."""
        if told["raised"] == Outrun.__name__:
            raise Outrun(self.recovered)
        if told["raised"]:
            raise KNOWN.get(told["raised"], LeaderFailed)(told["value"])
        return told["value"]


def tell_of(error: Exception, ranks: Ranks) -> None:
    """The leader tells the others what it is about to raise."""
    kind = type(error).__name__
    ranks.spread(snapshot.pack({"raised": kind, "value": str(error) if kind in KNOWN else f"{kind}: {error}"}))


class PendingAtLeader:
    """One round under way at the leader."""

    def __init__(self, led: Led, blob: bytes) -> None:
        self.led, self.blob = led, blob
        self.pending: Pending | None = None

    def begin(self, exchange: Exchange, round: Round) -> None:
        """At the leader: the message leaves."""
        self.pending = exchange.start(self.blob, round)

    def wait(self, timeout_s: float) -> list[Contribution]:
        """As the leader's exchange has it. Raises RoundFailed, Deserted, Outrun; ReplicasDiverged."""

        def waited(exchange: Exchange) -> list[Any]:
            assert self.pending is not None
            return listed(self.pending.wait(timeout_s))

        contributions = unlisted(self.led.together(waited))
        for one in contributions:
            if self.blob and one.peer == self.led.peer and one.blob != self.blob:
                raise ReplicasDiverged(
                    f"this process offers another message in round {one.round.number} than the one that leads its"
                    " island: the ranks of an island must hold equal weights and count equal samples"
                )
        return contributions

    def arrived(self) -> bool:
        """As the leader's exchange has it."""
        return self.led.together(lambda exchange: self.pending is not None and self.pending.arrived())


def listed(contributions: Sequence[Contribution]) -> list[Any]:
    """Contributions as a tree."""
    return [[one.peer, one.round.number, one.round.fragment, tensor_of(one.blob)] for one in contributions]


def unlisted(tree: list[Any]) -> list[Contribution]:
    """The inverse of `listed`."""
    return [
        Contribution(peer, Round(number, fragment), blob.numpy().tobytes()) for peer, number, fragment, blob in tree
    ]
