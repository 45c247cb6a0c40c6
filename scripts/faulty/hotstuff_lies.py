"""Lies of a peer in a run that HotStuff-2 decides (exchange.trust=nobody).

As the leader of a view, a liar can send different messages to different peers, or none. It is demoted only if another
commit replaces its proposal (consensus/commit.py). `rosters`, `hide` and, with four peers, `split` avoid that: their
commit gets enough votes to be decided, if not in this view, then in a later one. With 16 peers, `split` loses its view,
and the liar is demoted. No peer receives two different proposals of one view with the liar's signature, or one proposal
and a certificate of another one, because these would get the liar expelled. `digests` is the exception: it votes twice.

Two lies are malformed (consensus/hotstuff/votes.py), so they cannot be sent: an unjustified proposal whose view differs
from its commit's view, and a proposal whose justification certifies another commit. A forged certificate is never
valid, because a liar cannot sign for other peers. `reports` and `certificates` send some anyway.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

from faulty.common_lies import histories, silence, views
from faulty.forging import FAR, Forge, Messages, Outgoing, another_commit, with_aliases

from outerloop.swarm.consensus import statements
from outerloop.swarm.consensus.commit import Commit
from outerloop.swarm.consensus.hotstuff.messages import NewView, Prepared, ProposalMessage, Vote
from outerloop.swarm.consensus.hotstuff.votes import UNJUSTIFIED, Lock, PrepareCertificate, Proposal
from outerloop.swarm.consensus.messages import CommitCertificate


def split(out: Outgoing) -> Messages:
    """Propose two commits in one view, each to half of the peers; send a certificate only to the first half."""
    second = out.others[(len(out.others) + 1) // 2 :]
    if out.to not in second or not _opens(out.message):
        return out.honest
    if isinstance(out.message, Prepared):
        return []
    view, counted = out.message.view, out.message.proposal.commit.participants
    left_out = next((payload for payload in counted if payload.peer != out.own), None)
    other = another_commit(out.machine, [payload for payload in counted if payload != left_out], view=view)
    return [(out.to, _proposal(out, other, view))]


def rosters(out: Outgoing) -> Messages:
    """Propose a forged next roster to f peers: with aliases of the liar, and an id that does not exist."""
    if out.to not in out.few or not _opens(out.message):
        return out.honest
    if isinstance(out.message, Prepared):
        return []
    return [(out.to, _proposal(out, with_aliases(out.message.proposal.commit, out.own), out.message.view))]


def hide(out: Outgoing) -> Messages:
    """Hide commit certificates from all peers, and in even rounds also prepare certificates from all but f peers."""
    if isinstance(out.message, Prepared) and out.message.number % 2 == 0 and out.to not in out.few:
        return []
    return [] if isinstance(out.message, CommitCertificate) else out.honest


def stale(out: Outgoing) -> Messages:
    """Repeat the proposal and the certificate of an earlier round, also for this one; ignore locks in later views."""
    if not isinstance(out.message, ProposalMessage):
        return out.honest
    head = out.machine.hard_state.head.digest
    relabelled = [
        Prepared(out.machine.number, head, old.certificate) for old in out.earlier if isinstance(old, Prepared)
    ]
    honest = out.honest
    if out.message.proposal.justification and (commit := out.machine._own_commit()):
        honest = [(out.to, _proposal(out, commit, out.message.view))]
    return [(out.to, old) for old in (*out.earlier, *relabelled)] + honest


def withhold(out: Outgoing) -> Messages:
    """Send neither votes nor locks to the leaders."""
    return [] if isinstance(out.message, Vote | NewView) else out.honest


def reports(out: Outgoing) -> Messages:
    """Report no lock to the leader of a view, and forged locks of views far ahead to the leaders of later views."""
    if not isinstance(out.message, Vote | NewView | ProposalMessage):
        return out.honest
    honest = replace(out.message, lock=None) if isinstance(out.message, NewView) else out.message
    if not out.first:
        return [(out.to, honest)]
    number, head, roster = out.machine.number, out.machine.hard_state.head.digest, out.machine.hard_state.roster
    commit = _repeated(out)
    signature = out.sign(statements.wish(number, head, FAR))  # of no vote, so that it is not evidence of two votes
    certificate = PrepareCertificate(commit.digest, FAR, UNJUSTIFIED, tuple((name, signature) for name in roster))
    far = [FAR + 1 + turn for turn in range(len(roster))]
    led = [
        (out.machine.hard_state.leader(view), NewView(number, head, view, Lock(commit, certificate))) for view in far
    ]
    return [(out.to, honest), *((leader, report) for leader, report in led if leader != out.own)]


def certificates(out: Outgoing) -> Messages:
    """Send an undecided commit with the liar's own vote under all names, and one that is far ahead."""
    if not out.first:
        return out.honest
    commit, names = _repeated(out), out.machine.hard_state.roster
    far = replace(commit, number=commit.number + FAR)
    forged = []
    for one in (commit, far):
        # view FAR: the liar votes for nothing else there, so it does not contradict itself
        signature = out.sign(statements.commit(one.number, one.parent, FAR, one.digest))
        forged.append(CommitCertificate(one, FAR, tuple((name, signature) for name in names), byzantine=True))
    return out.with_more(*forged)


def minority(out: Outgoing) -> Messages:
    """Propose to f peers only."""
    return [] if isinstance(out.message, ProposalMessage) and out.to not in out.few else out.honest


def digests(out: Outgoing) -> Messages:
    """With each vote, send the leader a vote for a digest that was never proposed."""
    if not isinstance(out.message, Vote):
        return out.honest
    other = replace(out.message, digest=hashlib.sha256(out.message.digest).digest())
    return [*out.honest, (out.to, replace(other, signature=out.sign(other.statement)))]


def _opens(message: Any) -> bool:
    """Return whether a message is a proposal without a justification, or a certificate of one."""
    if isinstance(message, ProposalMessage):
        return message.proposal.justification is None
    return isinstance(message, Prepared) and message.certificate.justified == UNJUSTIFIED


def _proposal(out: Outgoing, commit: Commit, view: int) -> ProposalMessage:
    """Return the liar's signed proposal of a commit, without a justification."""
    unsigned = Proposal(replace(commit, view=view), view, None, b"")
    return ProposalMessage(replace(unsigned, signature=out.sign(unsigned.statement)), out.message.wishes)


def _repeated(out: Outgoing) -> Commit:
    """Return a commit of the current round that counts the payloads of the last one."""
    head = out.machine.hard_state.head
    counted = [payload for payload in head.participants if payload.peer in out.machine.hard_state.roster]
    return another_commit(out.machine, counted, view=0)


LIES: dict[str, Forge] = {
    forge.__name__: forge
    for forge in (
        split, rosters, hide, stale, withhold, reports, views, certificates, histories, minority, silence, digests
    )
}  # fmt: skip
