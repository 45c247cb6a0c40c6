"""Verify a round before it lands: which messages are usable, how far payloads agree, whether replicas are equal."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import torch

from outerloop import wire
from outerloop.aggregate.exclusion_votes import ACCUSED, ExclusionVotes
from outerloop.aggregate.norm_screen import Measured, NormScreen
from outerloop.aggregate.similarity import agreement
from outerloop.core.pipeline import RoundPipeline
from outerloop.core.pipeline.values import AggregatedRound, DecodedRound
from outerloop.core.round import InFlight
from outerloop.exchange_protocols import decode_shared, replicated
from outerloop.protocols import Exchange
from outerloop.types import Contribution, Refusals, ReplicasDiverged, Round, StateTransferRequired, Tensors

RECENT = 8
"""Number of rounds after which an absent peer no longer counts in deciding whose weights are right."""


@dataclass(frozen=True)
class VerifiedRound:
    """A round whose messages have been verified.

    aggregated: the aggregate of the usable messages.
    measured: norms and sample counts of the usable messages.
    refused: peer -> why its message was refused.
    excluded: peer -> why its message does not count: other peers accuse it, or its list of accused peers is malformed.
    agreement: how far the payloads agree (ρ in aggregate/similarity.py), or None if the schedule does not need it or
        there was nothing to compare.
    """

    aggregated: AggregatedRound
    measured: Measured
    refused: Refusals
    agreement: float | None
    excluded: Refusals = field(default_factory=dict)


class RoundVerifier:
    """Verifies the messages of each round, and that the replicas that sent them are equal.

    Args:
        pipeline: decodes and aggregates messages.
        exchange: the exchange of this peer.
        shared: whether all replicas of the run hold equal slow weights.
        measures: whether to measure how far the payloads agree, because the schedule needs it.
        screen: decides which contributions count, and with what weight.
        votes: decides which contributions do not count because most peers accuse their senders.

    Attributes:
        last_seen: peer -> number of the last round in which it took part.
        first_round: number of the first round that landed on this peer.
    """

    def __init__(
        self,
        pipeline: RoundPipeline,
        exchange: Exchange,
        *,
        shared: bool,
        measures: bool,
        screen: NormScreen,
        votes: ExclusionVotes,
    ) -> None:
        self.pipeline, self.exchange, self.shared, self.measures = pipeline, exchange, shared, measures
        self.replicated = replicated(exchange)
        self.screen, self.votes = screen, votes
        self.last_seen: dict[str, int] = {}
        self.first_round = math.inf

    @torch.no_grad()
    def verify_round(self, flight: InFlight, contributions: Sequence[Contribution]) -> VerifiedRound:
        """Verify and aggregate a round's messages. Workers of the same process share the result.

        Raises RoundFailed or InvalidMessage if the round is unusable. Changes nothing.
        """
        like = flight.update
        return decode_shared(self.exchange, flight.round, lambda refused: self.verify(contributions, like, refused))

    def verify(self, received: Sequence[Contribution], like: Tensors, refused: Refusals) -> VerifiedRound:
        """Verify and aggregate those messages of a round that have not been refused yet.

        refused: peer -> why its message was refused when the same round was read before, by decoding or by its norm;
            empty when the round is read for the first time.

        Raises InvalidMessage if the round is unusable.
        """
        excluded = self.excluded(received, like)
        rest = [contribution for contribution in received if contribution.peer not in excluded]
        if not rest:
            raise wire.InvalidMessage("; ".join(excluded.values()))
        verified = self.aggregate_usable(rest, like, refused, screened=bool(refused))
        agreed = agreement(self.pipeline.sent(verified.aggregated, like)) if self.measures else None
        return replace(verified, excluded=excluded, agreement=agreed)

    def excluded(self, received: Sequence[Contribution], like: Tensors) -> Refusals:
        """Return a map from peer to reason for the messages that do not count because of accusations (ExclusionVotes).

        Messages that cannot be unpacked have no vote, and are refused later.
        """
        messages = []
        for contribution in received if self.votes.on else ():
            with suppress(wire.InvalidMessage):
                message = self.pipeline.codec.unpack(contribution, like)
                messages.append(replace(message, parts={ACCUSED: message.parts[ACCUSED]}))
        return self.votes.excluded(messages)

    def aggregate_usable(
        self, received: Sequence[Contribution], like: Tensors, refused: Refusals, *, screened: bool
    ) -> VerifiedRound:
        """Aggregate all usable messages, and list the messages that are left out, with the reasons.

        If the exchange waits for all peers, a message that cannot be decoded makes the round fail with InvalidMessage.
        Otherwise, that message is left out: all peers have the same messages, and if one peer cannot decode a message,
        no peer can. Decodable messages are screened by their norms only once, because a second screening of the
        remaining messages would refuse more of them.

        screened: whether the messages of this round have already been screened.
        """
        usable = [contribution for contribution in received if contribution.peer not in refused]
        if not usable:
            raise wire.InvalidMessage("; ".join(refused.values()))
        try:
            decoded = self.pipeline.decode(usable, like, measured=self.screen.on)
            measured = self.measured(decoded, usable[0].round.fragment, refused)
            new = {} if screened else self.screened_out(decoded, measured)
            if not new:
                return self.aggregate(decoded, like, measured, refused)
            screened = True
        except wire.InvalidMessage:
            new = {} if self.exchange.info.waits_for_all else self.undecodable(usable, like)
            if not new:
                raise
        return self.aggregate_usable(received, like, {**refused, **new}, screened=screened)

    def aggregate(self, decoded: DecodedRound, like: Tensors, measured: Measured, refused: Refusals) -> VerifiedRound:
        """Aggregate messages with the norm screen's factors and weights. Raises InvalidMessage if decoding fails."""
        factors, samples = self.screen.factors(measured), self.screen.weights(measured)
        aggregated = self.pipeline.aggregate(decoded, like, factors=factors, samples=samples)
        return VerifiedRound(aggregated, measured, refused, None)

    def measured(self, decoded: DecodedRound, fragment: int, refused: Refusals) -> Measured:
        """Return the norms and sample counts of the messages, from which the norm screen decides."""
        samples = [message.header.samples for message in decoded.messages]
        peers = [message.header.peer for message in decoded.messages]
        own = peers.index(self.exchange.peer) if self.exchange.peer in peers else None
        return Measured(fragment, decoded.norms, samples, refused=len(refused), own=own)

    def screened_out(self, decoded: DecodedRound, measured: Measured) -> Refusals:
        """Return a map from peer to reason for the messages that the norm screen refuses (norm or sample count)."""
        if not self.screen.on or self.exchange.info.waits_for_all:
            return {}
        peers = [message.header.peer for message in decoded.messages]
        return {peers[place]: f"{peers[place]}: {why}" for place, why in self.screen.refusals(measured).items()}

    def undecodable(self, usable: Sequence[Contribution], like: Tensors) -> Refusals:
        """Return a map from peer to reason for each message that cannot be decoded and aggregated even on its own."""
        found = {}
        for contribution in usable:
            try:
                decoded = self.pipeline.decode([contribution], like, measured=False)
                self.pipeline.aggregate(decoded, like, factors=[1.0], samples=[0])
            except wire.InvalidMessage as bad:
                found[contribution.peer] = f"{contribution.peer}: {bad}"
        return found

    def check_replicas(self, messages: Sequence[wire.Message], own: int, round: Round) -> tuple[tuple[str, ...], str]:
        """Check that this peer's slow weights equal those of most peers, before the round lands.

        `own` is the hash of this peer's slow weights. If recently seen peers are missing, a hash reported by fewer than
        half of all peers is not used to decide who is right, because a dishonest leader may have left the others out.

        Returns the peers whose reported hash differs from that of most peers, and a note if too few hashes are known to
        decide whose weights are right (`undecided`), or "".

        Raises StateTransferRequired if this peer is in the minority and can load the other peers' state. Raises
        ReplicasDiverged if all hashes are known and none has a majority, or if the exchange cannot transfer state.
        """
        hashes = self.hashes(messages, own)
        if not self.shared or len(set(hashes.values())) == 1:
            return (), ""
        if undecided := self.undecided(hashes, own, round):
            return (), undecided
        [(most, peers), *_] = Counter(hashes.values()).most_common()
        if self.replicated is None or 2 * peers <= len(hashes):
            shown = {peer: f"{slow:016x}" for peer, slow in hashes.items()}
            raise ReplicasDiverged(
                f"slow weights differ between peers before {round}, and it cannot be known whose are right: {shown}"
            )
        if own != most:
            raise StateTransferRequired(self.replicated.recover)
        return tuple(peer for peer, slow in hashes.items() if slow != most), ""

    def undecided(self, hashes: Mapping[str, int], own: int, round: Round) -> str:
        """Return a note if too few hashes are known to decide whose weights are right, given hashes that differ.

        Fewer than half of all peers are assumed to lie, so if half of all peers report the same hash, at least one of
        them is honest. Returns "" if enough hashes are known, or if the exchange cannot transfer state.
        """
        if self.replicated is None:
            return ""
        [(_, peers), *_] = Counter(hashes.values()).most_common()
        known = self.known_peers(hashes, round.number)
        if len(hashes) >= known or (2 * peers > len(hashes) and 2 * peers >= known):
            return ""
        odd = ", ".join(sorted(peer for peer, slow in hashes.items() if slow != own))
        return (
            f"{odd}: weights differ from this peer's; the hashes of {len(hashes)} of {known} peers are too few to"
            " decide whose are right"
        )

    def known_peers(self, peers: Collection[str], number: int) -> int:
        """Return how many peers are known: `peers`, plus others that took part in one of the last RECENT rounds.

        number: number of the current round. While some peers may not have been seen yet, in the first RECENT rounds,
        return at least the size of the run.
        """
        absent = {peer for peer, last in self.last_seen.items() if last >= number - RECENT} - set(peers)
        known = len(peers) + len(absent)
        return max(known, self.exchange.size) if number - self.first_round < RECENT else known

    def record_peers(self, messages: Sequence[wire.Message], round: Round) -> None:
        """Record which peers took part in a round that has landed."""
        self.first_round = min(self.first_round, round.number)
        self.last_seen |= {message.header.peer: round.number for message in messages}

    def hashes(self, messages: Sequence[wire.Message], own: int) -> dict[str, int]:
        """Return a map from peer to hash of its slow weights: those reported in the messages, and this peer's own."""
        return {m.header.peer: m.header.slow for m in messages} | {self.exchange.peer: own}
