"""What of a round lands: which messages can, how far they agree, whether the replicas behind them are still one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from outerloop import wire
from outerloop.aggregate.agreement import agreement
from outerloop.protocols import Exchange
from outerloop.routes.both import Combined, Routes
from outerloop.types import Contribution, Outrun, Refusals, ReplicasDiverged, Round, Tensors


@dataclass(frozen=True)
class Verdict:
    """All messages of a round that can land as one, those that cannot, and how far payloads agree, -1 .. 1.

    `agreement` is None where nobody goes by it, or nothing was sent to agree on.
    """

    combined: Combined
    refused: Refusals
    agreement: float | None


class Judge:
    """`shared`: all replicas of the run hold equal slow weights. `measures`: the schedule goes by the agreement."""

    def __init__(self, routes: Routes, exchange: Exchange, *, shared: bool, measures: bool) -> None:
        self.routes, self.exchange, self.shared, self.measures = routes, exchange, shared, measures

    def verdict(self, received: Sequence[Contribution], like: Tensors, refused: Refusals) -> Verdict:
        """Of all messages of a round but those that are refused already. Raises BadMessage; changes nothing."""
        combined, refused = self.combine(received, like, refused)
        if not self.measures:
            return Verdict(combined, refused, None)
        return Verdict(combined, refused, agreement(self.routes.sent(combined, like)))

    def combine(self, received: Sequence[Contribution], like: Tensors, refused: Refusals) -> tuple[Combined, Refusals]:
        """All messages as one, and which were left out, why. Raises BadMessage.

        Where a round waits for everybody, one that cannot be landed fails it. Else it is left out: all peers have the
        same messages, and what one of them cannot decode the others cannot either.
        """
        fit = [one for one in received if one.peer not in refused]
        if not fit:
            raise wire.BadMessage("; ".join(refused.values()))
        try:
            return self.routes.combine(fit, like), refused
        except wire.BadMessage:
            if self.exchange.waits_for_all:
                raise
        new = {one.peer: why for one in fit if (why := self.refusal(one, like))}
        if not new:
            raise
        return self.combine(received, like, {**refused, **new})

    def refusal(self, contribution: Contribution, like: Tensors) -> str:
        """Why one message cannot be landed, or nothing."""
        try:
            self.routes.combine([contribution], like)
        except wire.BadMessage as bad:
            return f"{contribution.peer}: {bad}"
        return ""

    def diverged(self, messages: Sequence[wire.Message], own: int, round: Round) -> tuple[str, ...]:
        """The peers whose headers carry another hash of the slow weights than most; `own` is the one here.

        Raises Outrun when this peer is one of them and can take over the state of the others, else ReplicasDiverged.
        """
        hashes = {m.header.peer: m.header.slow for m in messages} | {self.exchange.peer: own}
        if not self.shared or len(set(hashes.values())) == 1:
            return ()
        [(most, peers), *_] = Counter(hashes.values()).most_common()
        if self.exchange.recovery is None or 2 * peers <= len(hashes):
            shown = {peer: f"{slow:016x}" for peer, slow in hashes.items()}
            raise ReplicasDiverged(f"slow weights differ between peers before round {round.number}: {shown}")
        if own != most:
            raise Outrun(self.exchange.recovery)
        return tuple(peer for peer, slow in hashes.items() if slow != most)
