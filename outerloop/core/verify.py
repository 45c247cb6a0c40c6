"""Verify a round before it lands: usable messages, agreement of payloads, equality of the replicas that sent them."""

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
"""Number of rounds after which a peer that took part in none of them is not needed to judge whose weights are right."""


@dataclass(frozen=True)
class VerifiedRound:
    """The combined usable messages of a round, the refused ones, and how far the payloads agree, -1 .. 1.

    `agreement` is None if no schedule needs it, or if there was nothing to compare. `measured`: of the usable messages.
    """

    combined: AggregatedRound
    measured: Measured
    refused: Refusals
    agreement: float | None


class RoundVerifier:
    """Checks the messages of each round.

    `shared`: all replicas of the run hold equal slow weights. `measures`: the schedule needs the agreement. `screen`:
    decides which contributions count, and with what weight.
    """

    def __init__(
        self, pipeline: RoundPipeline, exchange: Exchange, *, shared: bool, measures: bool, screen: NormScreen
    ) -> None:
        self.pipeline, self.exchange, self.shared, self.measures = pipeline, exchange, shared, measures
        self.screen = screen
        self.seen: dict[str, int] = {}
        self.since = math.inf

    def verdict(self, received: Sequence[Contribution], like: Tensors, refused: Refusals) -> VerifiedRound:
        """Verify and combine the messages of a round that are not refused yet. Raises InvalidMessage; changes nothing.

        `refused`: the result of an earlier reading of the same round, which includes screening by norms. Empty in the
        first reading.
        """
        verdict = self.read(received, like, refused, screened=bool(refused))
        if not self.measures:
            return verdict
        return replace(verdict, agreement=agreement(self.pipeline.sent(verdict.combined, like)))

    def read(
        self, received: Sequence[Contribution], like: Tensors, refused: Refusals, *, screened: bool
    ) -> VerifiedRound:
        """Combine all usable messages, and list those left out and why. Raises InvalidMessage.

        If the exchange waits for all peers, a message that cannot be decoded fails the round. Otherwise the message is
        left out: all peers have the same messages, and what one peer cannot decode the others cannot decode either.
        Messages that can be decoded are `screened` by their norms only once: screening the remaining ones again would
        refuse more.
        """
        fit = [one for one in received if one.peer not in refused]
        if not fit:
            raise wire.InvalidMessage("; ".join(refused.values()))
        try:
            decoded = self.pipeline.decode(fit, like, measured=self.screen.on)
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
        """Combine these messages with the factors and weights that the screen gives them. Raises InvalidMessage."""
        factors, samples = self.screen.factors(measured), self.screen.weights(measured)
        combined = self.pipeline.combine(decoded, like, factors=factors, samples=samples)
        return VerifiedRound(combined, measured, refused, None)

    def measured(self, decoded: DecodedRound, fragment: int, refused: Refusals) -> Measured:
        """Return the measurements that the screen is based on."""
        samples = [message.header.samples for message in decoded.messages]
        peers = [message.header.peer for message in decoded.messages]
        own = peers.index(self.exchange.peer) if self.exchange.peer in peers else None
        return Measured(fragment, decoded.norms, samples, refused=len(refused), own=own)

    def too_long(self, decoded: DecodedRound, measured: Measured) -> Refusals:
        """Return the messages that the screen rejects by their norms and samples, and why."""
        if not self.screen.on or self.exchange.waits_for_all:
            return {}
        peers = [message.header.peer for message in decoded.messages]
        return {peers[place]: f"{peers[place]}: {why}" for place, why in self.screen.refusals(measured).items()}

    def undecodable(self, fit: Sequence[Contribution], like: Tensors) -> Refusals:
        """Return the messages that cannot be decoded and combined even on their own, and why."""
        found = {}
        for one in fit:
            try:
                decoded = self.pipeline.decode([one], like, measured=False)
                self.pipeline.combine(decoded, like, factors=[1.0], samples=[0])
            except wire.InvalidMessage as bad:
                found[one.peer] = f"{one.peer}: {bad}"
        return found

    def diverged(self, messages: Sequence[wire.Message], own: int, round: Round) -> tuple[str, ...]:
        """Return the peers whose headers carry a different hash of the slow weights than most.

        `own` is this peer's hash. If recently seen peers are missing, a hash shown by fewer than half of all peers is
        not used to judge any peer: the leader may have picked the participants (`in_doubt`).

        Raises StateTransferRequired if this peer is in the minority and can take over the state of the others. Raises
        ReplicasDiverged if all hashes are known and none has a majority, or if a minority cannot take over state.
        """
        hashes = self.hashes(messages, own)
        if not self.shared or len(set(hashes.values())) == 1 or self.in_doubt(messages, own, round):
            return ()
        [(most, peers), *_] = Counter(hashes.values()).most_common()
        if self.exchange.recovery is None or 2 * peers <= len(hashes):
            shown = {peer: f"{slow:016x}" for peer, slow in hashes.items()}
            raise ReplicasDiverged(
                f"slow weights differ between peers before round {round.number}, and it cannot be known whose are"
                f" right: {shown}"
            )
        if own != most:
            raise StateTransferRequired(self.exchange.recovery)
        return tuple(peer for peer, slow in hashes.items() if slow != most)

    def in_doubt(self, messages: Sequence[wire.Message], own: int, round: Round) -> str:
        """Return one line if hashes differ and too few are known to judge; empty otherwise.

        Fewer than half of all peers are assumed to lie, so among a half that shows one hash at least one is honest.
        """
        hashes = self.hashes(messages, own)
        if not self.shared or len(set(hashes.values())) == 1 or self.exchange.recovery is None:
            return ""
        [(_, peers), *_] = Counter(hashes.values()).most_common()
        known = self.known(hashes, round.number)
        if len(hashes) >= known or (2 * peers > len(hashes) and 2 * peers >= known):
            return ""
        odd = ", ".join(sorted(peer for peer, slow in hashes.items() if slow != own))
        return f"{odd}: weights differ from this peer's; {len(hashes)} of {known} peers are too few to judge"

    def known(self, peers: Collection[str], number: int) -> int:
        """Return the number of peers, including those of the last rounds before this one.

        While some peers may not have been seen yet, return at least the size of the run.
        """
        absent = {peer for peer, last in self.seen.items() if last >= number - RECENT} - set(peers)
        known = len(peers) + len(absent)
        return max(known, self.exchange.size) if number - self.since < RECENT else known

    def landed(self, messages: Sequence[wire.Message], round: Round) -> None:
        """Record which peers took part in a round."""
        self.since = min(self.since, round.number)
        self.seen |= {message.header.peer: round.number for message in messages}

    def hashes(self, messages: Sequence[wire.Message], own: int) -> dict[str, int]:
        """Return the hash of the slow weights that each peer shows, this peer included."""
        return {m.header.peer: m.header.slow for m in messages} | {self.exchange.peer: own}
