"""Count what each peer has contributed to a run. The counts are part of the state that all replicas share.

When round r of fragment 0 lands, every peer p whose message is included is credited. n_p is the number of samples that
p's message claims, s the lower median of the positive n_p, and B the number of samples that the settings allow per peer
and round (infinity if they set no limit):

    rounds_p  ← rounds_p + 1
    samples_p ← samples_p + min(n_p, 4 s, 4 B, 2⁴⁰)

All replicas that landed the same rounds have the same counts, because a round lands with the same messages everywhere.
In a swarm, a message belongs to the peer that signed it (swarm/transfer/signed_payload.py), so no peer is credited for
another peer's message. The number of samples is a claim that cannot be verified. The factor 4 leaves room for messages
that include the samples of up to three missed rounds. The norm screen limits the weight of a message by the same factor
(aggregate/norm_screen.py).

Messages of other fragments are not counted: a message contains the samples since the last counted message of the same
fragment, so each sample is credited once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, replace
from typing import Any

from outerloop.aggregate.median_clip import median
from outerloop.aggregate.norm_screen import MAX_SAMPLES, SAMPLES
from outerloop.core.contributor_rows import MAX_CONTRIBUTORS, OTHERS
from outerloop.types import Contributor, Round, id_of

MAX_ID = 128
"""Maximum number of characters of a peer id."""
ENTRY_BYTES = 256
"""Upper bound on the size, in bytes, of one peer's counts in a serialized state."""
MAX_BYTES = ENTRY_BYTES * (MAX_CONTRIBUTORS + 1)
MOST = 1 << 62
"""Largest count that is accepted in a state from another peer."""


class ContributionLedger:
    """The contributions of all peers to the rounds that have landed on this replica.

    Args:
        samples_per_round: B, which must be equal on all peers; None: no limit.

    Attributes:
        by_peer: peer id -> its counts. If there are more than MAX_CONTRIBUTORS peers, those with the fewest samples are
            added to the entry OTHERS; such a peer starts from 0 if it contributes again.
    """

    def __init__(self, *, samples_per_round: int | None = None) -> None:
        self.samples_per_round = samples_per_round
        self.by_peer: dict[str, Contributor] = {}

    def add(self, round: Round, claims: Mapping[str, int]) -> None:
        """Credit the peers of a landed round. `claims`: peer name -> number of samples that its message claims."""
        if round.fragment:
            return
        limit, number = self.limit(claims.values()), round.number
        for peer, claimed in claims.items():
            self.credit(Contributor(id_of(peer), 1, min(claimed, limit), number, number))
        self.merge_smallest(keep={OTHERS, *map(id_of, claims)})

    def limit(self, claims: Iterable[int]) -> int:
        """Return the largest number of samples that one message can be credited with, given all claims of the round."""
        limits = [MAX_SAMPLES, SAMPLES * median(claims)]
        return min(limits if self.samples_per_round is None else [*limits, SAMPLES * self.samples_per_round])

    def credit(self, more: Contributor) -> None:
        """Add the counts in `more` to those of the same peer."""
        known = self.by_peer.get(more.peer)
        self.by_peer[more.peer] = more if known is None else added(known, more)

    def merge_smallest(self, keep: set[str]) -> None:
        """Move the peers with the fewest samples to the entry OTHERS, until at most MAX_CONTRIBUTORS are left.

        Peers in `keep` are not moved.
        """
        surplus = len(self.by_peer) - (OTHERS in self.by_peer) - MAX_CONTRIBUTORS
        if surplus <= 0:
            return
        others = (one for one in self.by_peer.values() if one.peer not in keep)
        for one in sorted(others, key=lambda one: (one.samples, one.last_round, one.peer))[:surplus]:
            self.credit(replace(self.by_peer.pop(one.peer), peer=OTHERS))

    def of_peer(self, name: str) -> Contributor:
        """Return the counts of the peer with this name, which are 0 before its first round."""
        peer = id_of(name)
        return self.by_peer.get(peer, Contributor(peer, 0, 0, 0, 0))

    def contributors(self) -> tuple[Contributor, ...]:
        """Return the counts of all peers, sorted by peer id. The entry OTHERS, if there is one, comes first."""
        return tuple(self.by_peer[peer] for peer in sorted(self.by_peer))

    def state_dict(self) -> dict[str, Any]:
        """Return the counts: {"peers": {peer id: [rounds, samples, first round, last round]}}.

        They are equal on all peers that have landed the same rounds.
        """
        return {"peers": {peer: list(astuple(one)[1:]) for peer, one in self.by_peer.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state returned by `state_dict`, or {} from an older run. Raises ValueError if the state is invalid."""
        peers = state.get("peers", {})
        if len(peers.keys() - {OTHERS}) > MAX_CONTRIBUTORS or not all(is_id(peer) for peer in peers):
            raise ValueError(f"contributions must be a map from at most {MAX_CONTRIBUTORS} peer ids to their counts")
        self.by_peer = {peer: checked(peer, counts) for peer, counts in peers.items()}


def added(known: Contributor, more: Contributor) -> Contributor:
    """Return the sum of two counts of one peer."""
    return Contributor(
        known.peer,
        known.rounds + more.rounds,
        known.samples + more.samples,
        min(known.first_round, more.first_round),
        max(known.last_round, more.last_round),
    )


def is_id(peer: Any) -> bool:
    """Return whether `peer` may be a key of the counts: a text of at most MAX_ID characters."""
    return type(peer) is str and len(peer) <= MAX_ID


def checked(peer: str, counts: Sequence[Any]) -> Contributor:
    """Return the counts of a peer in a state from another peer. Raises ValueError if they are invalid."""
    if len(counts) != 4 or not all(type(count) is int and 0 <= count <= MOST for count in counts):
        raise ValueError(f"the counts of a contributor must be 4 whole numbers from 0 to {MOST}")
    rounds, samples, first, last = counts
    if first > last:
        raise ValueError("a contributor's first round must not be later than its last round")
    return Contributor(peer, rounds, samples, first, last)
