"""What of a round lands: which messages can, how far they agree, whether the replicas behind them are still one."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from outerloop import wire
from outerloop.aggregate.norm_screen import Measured, NormScreen
from outerloop.aggregate.similarity import agreement
from outerloop.core.pipeline import AggregatedRound, DecodedRound, RoundPipeline
from outerloop.protocols import Exchange
from outerloop.types import Contribution, Refusals, ReplicasDiverged, Round, StateTransferRequired, Tensors

RECENT = 8
"""Rounds after which a peer that took part in none of them is not waited for to say whose weights are right."""


@dataclass(frozen=True)
class VerifiedRound:
    """All messages of a round that can land as one, those that cannot, and how far payloads agree, -1 .. 1.

    `agreement` is None where nobody goes by it, or nothing was sent to agree on. `measured`: of those that land.
    """

    combined: AggregatedRound
    measured: Measured
    refused: Refusals
    agreement: float | None


class RoundVerifier:
    """`shared`: all replicas of the run hold equal slow weights. `measures`: the schedule goes by the agreement.

    `screen`: which contributions count, and for how much.
    """

    def __init__(
        self, routes: RoundPipeline, exchange: Exchange, *, shared: bool, measures: bool, screen: NormScreen
    ) -> None:
        self.routes, self.exchange, self.shared, self.measures = routes, exchange, shared, measures
        self.screen = screen
        self.seen: dict[str, int] = {}
        self.since = math.inf

    def verdict(self, received: Sequence[Contribution], like: Tensors, refused: Refusals) -> VerifiedRound:
        """Of all messages of a round but those that are refused already. Raises InvalidMessage; changes nothing.

        `refused`: what another reading of the same round came to, by their norms, too; empty in the first reading.
        """
        verdict = self.read(received, like, refused, screened=bool(refused))
        if not self.measures:
            return verdict
        return replace(verdict, agreement=agreement(self.routes.sent(verdict.combined, like)))

    def read(
        self, received: Sequence[Contribution], like: Tensors, refused: Refusals, *, screened: bool
    ) -> VerifiedRound:
        """All messages as one, and which were left out, why. Raises InvalidMessage.

        Where a round waits for everybody, one that cannot be landed fails it. Else it is left out: all peers have the
        same messages, and what one of them cannot decode the others cannot either. Those that can be decoded are
        `screened` by their norms once: another look at those that are left would refuse more.
        """
        fit = [one for one in received if one.peer not in refused]
        if not fit:
            raise wire.InvalidMessage("; ".join(refused.values()))
        try:
            decoded = self.routes.decode(fit, like, measured=self.screen.on)
            measured = self.measured(decoded, fit[0].round.fragment, refused)
            new = {} if screened else self.too_long(decoded, measured)
            if not new:
                return self.combined(decoded, like, measured, refused)
            screened = True
        except wire.InvalidMessage:
            new = {} if self.exchange.waits_for_all else self.undecodable(fit, like)
            if not new:
                raise
        return self.read(received, like, {**refused, **new}, screened=screened)

    def combined(self, decoded: DecodedRound, like: Tensors, measured: Measured, refused: Refusals) -> VerifiedRound:
        """These messages as one, as far as the screen lets them count. Raises InvalidMessage."""
        factors, samples = self.screen.factors(measured), self.screen.weights(measured)
        combined = self.routes.combine(decoded, like, factors=factors, samples=samples)
        return VerifiedRound(combined, measured, refused, None)

    def measured(self, decoded: DecodedRound, fragment: int, refused: Refusals) -> Measured:
        """Return what the screen goes by."""
        samples = [message.header.samples for message in decoded.messages]
        peers = [message.header.peer for message in decoded.messages]
        own = peers.index(self.exchange.peer) if self.exchange.peer in peers else None
        return Measured(fragment, decoded.norms, samples, refused=len(refused), own=own)

    def too_long(self, decoded: DecodedRound, measured: Measured) -> Refusals:
        """The messages that do not count by their norms and samples, and why."""
        if not self.screen.on or self.exchange.waits_for_all:
            return {}
        peers = [message.header.peer for message in decoded.messages]
        return {peers[place]: f"{peers[place]}: {why}" for place, why in self.screen.refusals(measured).items()}

    def undecodable(self, fit: Sequence[Contribution], like: Tensors) -> Refusals:
        """The messages that cannot be landed alone, and why."""
        found = {}
        for one in fit:
            try:
                decoded = self.routes.decode([one], like, measured=False)
                self.routes.combine(decoded, like, factors=[1.0], samples=[0])
            except wire.InvalidMessage as bad:
                found[one.peer] = f"{one.peer}: {bad}"
        return found

    def diverged(self, messages: Sequence[wire.Message], own: int, round: Round) -> tuple[str, ...]:
        """Return the peers whose headers carry another hash of the slow weights than most; `own` is the one here.

        With recently seen peers missing, nobody is judged by a hash that fewer than half of all show: the leader may
        have picked the participants (`in_doubt`).

        Raises StateTransferRequired when this peer is one of the minority and can take over the state of the others;
        ReplicasDiverged when all have shown their hashes and none is that of most, or where a minority cannot take
        over.
        """
        hashes = self.hashes(messages, own)
        if not self.shared or len(set(hashes.values())) == 1 or self.in_doubt(messages, own, round):
            return ()
        [(most, peers), *_] = Counter(hashes.values()).most_common()
        if self.exchange.recovery is None or 2 * peers <= len(hashes):
            shown = {peer: f"{slow:016x}" for peer, slow in hashes.items()}
            raise ReplicasDiverged(
                f"slow weights differ between peers before round {round.number}, and nobody can know whose are right:"
                f" {shown}"
            )
        if own != most:
            raise StateTransferRequired(self.exchange.recovery)
        return tuple(peer for peer, slow in hashes.items() if slow != most)

    def in_doubt(self, messages: Sequence[wire.Message], own: int, round: Round) -> str:
        """Return in one line that hashes differ and too few are known to judge; empty where that is not so.

        Fewer than half of all lie, so of half that show one hash at least one is honest.
        """
        hashes = self.hashes(messages, own)
        if not self.shared or len(set(hashes.values())) == 1 or self.exchange.recovery is None:
            return ""
        [(_, peers), *_] = Counter(hashes.values()).most_common()
        known = self.known(hashes, round.number)
        if len(hashes) >= known or (2 * peers > len(hashes) and 2 * peers >= known):
            return ""
        odd = ", ".join(sorted(peer for peer, slow in hashes.items() if slow != own))
        return f"{odd}: other weights than here; {len(hashes)} of {known} peers are too few to know whose are right"

    def known(self, peers: Collection[str], number: int) -> int:
        """How many there are with those of the last rounds before this one; all, where some may not be seen yet."""
        absent = {peer for peer, last in self.seen.items() if last >= number - RECENT} - set(peers)
        known = len(peers) + len(absent)
        return max(known, self.exchange.size) if number - self.since < RECENT else known

    def landed(self, messages: Sequence[wire.Message], round: Round) -> None:
        """Remember who took part in a round."""
        self.since = min(self.since, round.number)
        self.seen |= {message.header.peer: round.number for message in messages}

    def hashes(self, messages: Sequence[wire.Message], own: int) -> dict[str, int]:
        """Return the hash of the slow weights that each peer shows, this one included."""
        return {m.header.peer: m.header.slow for m in messages} | {self.exchange.peer: own}
