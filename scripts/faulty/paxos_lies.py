"""Lies of a peer in a run that Paxos decides (exchange.trust=members)."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from faulty.common_lies import histories, silence, views
from faulty.forging import Forge, Messages, Outgoing, with_aliases

from outerloop.swarm.consensus.messages import Accept, CommitCertificate, Propose
from outerloop.swarm.consensus.statements import accept


def equivocate(out: Outgoing) -> Messages:
    """Send all peers two accepts for one round and view, both correctly signed."""
    message = out.message
    if not isinstance(message, Accept):
        return out.honest
    other = hashlib.sha256(message.digest).digest()
    signature = out.sign(accept(message.number, message.head, message.view, other))
    return out.with_more(message, replace(message, digest=other, signature=signature))


def rosters(out: Outgoing) -> Messages:
    """Add aliases of the liar, and an id that does not exist, to the next roster in each proposal."""
    message = out.message
    if not isinstance(message, Propose):
        return out.honest
    accepted = message.accepted
    commit = with_aliases(accepted.commit, out.own)
    *links, last = accepted.links
    signature = out.sign(accept(commit.number, commit.parent, accepted.view, commit.digest))
    forged = replace(accepted, commit=commit, links=(*links, last._replace(signature=signature)))
    return [(out.to, replace(message, accepted=forged))]


def certificates(out: Outgoing) -> Messages:
    """Send a later, undecided commit with the liar's own signature under all names."""
    number, head = out.machine.number, out.machine.hard_state.head
    commit = replace(head, number=number, parent=head.digest)
    signature = out.sign(accept(number, head.digest, 0, commit.digest))
    return out.with_more(CommitCertificate(commit, 0, tuple((name, signature) for name in head.roster)))


LIES: dict[str, Forge] = {
    forge.__name__: forge for forge in (equivocate, rosters, views, certificates, histories, silence)
}
