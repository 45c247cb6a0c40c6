"""Leave out of a round the payloads of peers that most other peers of this round accuse.

Every message lists the peers that its sender accuses because of their scores (scores/). Let M be the set of peers whose
messages of the round contain a valid list. The payload of peer p does not count if

    votes_p ≥ 2  and  votes_p > (|M| − 1) / 2,    votes_p = |{q ∈ M : q ≠ p, q accuses p}|

Every replica lands a round with the same messages. So all replicas leave out the same payloads, and no other message is
needed. Liars alone cannot have an honest peer left out of a round in which they send at most half of the other
messages. The leader of a round can choose fewer messages, but it could also leave out the honest peer's message itself.
Votes of peers that are themselves left out count as well: otherwise the result would depend on the order of counting.
If the votes would leave out all of M, they leave out no peer.

A message contains one additional tensor, ACCUSED, whose only part "ids" lists the accused peers:

    ids            n × 8 uint8; each row is the big-endian u64 wire.name_hash(id of an accused peer)
    n              0 .. MAX_ACCUSED; the rows are sorted, and each is different

A message with a malformed list does not count either. Peers that are left out keep their place in the roster and their
other rights: votes are opinions, not proof (swarm/accountability/evidence.py).
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Sequence

import torch
from torch import Size, Tensor

from outerloop import wire
from outerloop.types import Parts, Refusals, UserError, id_of

ACCUSED = "accused peers"
"""Name of the additional tensor. No parameter has this name, because a module's name cannot contain a space."""
MAX_ACCUSED = 64
"""Maximum number of peers that one message accuses. If there are more, the latest accusations are listed."""
LEAST = 2
"""Minimum number of votes against a peer. Otherwise, one of two peers could exclude the other."""
HASH_BYTES = 8


class ExclusionVotes:
    """Counts the accusations in the messages of a round.

    Args:
        on: whether messages list accused peers; the same on all peers.
        agrees: whether all peers land the same messages in a round, and a message has the same effect on all of them.

    Attributes:
        accused: names of the peers that this peer's next messages accuse, in the order of the accusations. The scorer
            of this peer sets it.

    Raises:
        UserError: if `on`, but peers do not land the same messages.
    """

    def __init__(self, *, on: bool, agrees: bool) -> None:
        if on and not agrees:
            raise UserError(
                "exclude_accused=true needs peers that land the same messages with the same effect, but in gossip each"
                " pair has its own messages, and with eager=true each peer has its own update: set"
                " exclude_accused=false"
            )
        self.on = on
        self.accused: Collection[str] = ()

    def schema(self) -> wire.Schema:
        """Return the name and shape of the tensor that lists accused peers; {} if messages contain no list."""
        return {ACCUSED: Size([MAX_ACCUSED])} if self.on else {}

    def parts(self) -> dict[str, Parts]:
        """Return this peer's list of accused peers as a tensor of its next message, by name; {} without a list."""
        return {ACCUSED: {"ids": encode(self.accused)}} if self.on else {}

    def excluded(self, messages: Sequence[wire.Message]) -> Refusals:
        """Return a map from peer to reason for the messages that do not count, given all messages of a round."""
        lists: dict[str, set[int]] = {}
        malformed: dict[str, str] = {}
        for message in messages if self.on else ():
            peer = message.header.peer
            try:
                lists[peer] = decode(message.parts[ACCUSED])
            except ValueError as bad:
                malformed[peer] = f"{peer}: {bad}"
        return {**malformed, **voted_out(lists)}

    def accusers(self, messages: Sequence[wire.Message]) -> dict[str, set[str]]:
        """Return a map from each accused sender to the senders that accuse it, for messages that count in a round."""
        found: dict[str, set[str]] = {}
        for message in messages if self.on else ():
            hashes = decode(message.parts[ACCUSED])
            for peer in (other.header.peer for other in messages if hash_of(other.header.peer) in hashes):
                found.setdefault(peer, set()).add(message.header.peer)
        return found


def voted_out(lists: dict[str, set[int]]) -> Refusals:
    """Return a map from excluded peer to reason; empty if all peers would be excluded.

    `lists`: name of each peer -> hashes of the ids that it accuses.
    """
    votes = Counter(accused for peer, hashes in lists.items() for accused in hashes - {hash_of(peer)})
    others = len(lists) - 1
    found = {
        peer: f"{peer}: {count} of the {others} other peers accuse it (scores)"
        for peer in lists
        if (count := votes[hash_of(peer)]) >= LEAST and 2 * count > others
    }
    return found if len(found) < len(lists) else {}


def hash_of(peer: str) -> int:
    """Return the hash under which messages list a peer. It depends only on the peer's id, not on its rank."""
    return wire.name_hash(id_of(peer))


def encode(accused: Collection[str]) -> Tensor:
    """Return the hashes of the last MAX_ACCUSED peers, sorted, (n, 8) uint8."""
    hashes = sorted({hash_of(peer) for peer in list(accused)[-MAX_ACCUSED:]})
    rows = [list(one.to_bytes(HASH_BYTES, "big")) for one in hashes]
    return torch.tensor(rows, dtype=torch.uint8).reshape(len(rows), HASH_BYTES)


def decode(parts: Parts) -> set[int]:
    """Return the hashes in a message's list of accused peers. Raises ValueError if the list is malformed."""
    ids = parts.get("ids")
    is_table = ids is not None and ids.dtype == torch.uint8 and ids.dim() == 2 and ids.shape[1] == HASH_BYTES
    if ids is None or not is_table or len(parts) > 1:
        raise ValueError("its list of accused peers is not a table of hashes")
    if len(ids) > MAX_ACCUSED:
        raise ValueError(f"it accuses {len(ids)} peers, more than {MAX_ACCUSED}")
    hashes = [int.from_bytes(bytes(row), "big") for row in ids.tolist()]
    if any(before >= after for before, after in itertools.pairwise(hashes)):
        raise ValueError("its list of accused peers is not sorted, or names a peer twice")
    return set(hashes)
