"""Justification of a proposal: proof that its leader followed the rule of proposer.py, checked by every recipient.

A proposal carries one link for every view in which its commit was proposed: the leader's signed accept, and from view 1
on the signed promises of a majority for that view, each with what its peer had accepted.

    first link    the view of the first proposal; none of its promises reports a commit, so the choice was free
    next link     the latest commit that its promises report is this one, in the view of the previous link

If promises report two commits in the latest view, the leader of that view has proposed both. Then its own promise does
not count, the others must be a majority without it, and the commit that most of them report is chosen. So one liar of
four forks nothing: what was decided was accepted by two of the three others, and two of them report it.

Accountability. Two decided commits X and Y of one round identify a peer that lied, whichever and however many lied. Let
a majority accept X in view v and Y in view w. If v = w, a peer is in both majorities and has accepted two commits in
one view. Otherwise let v < w, and take the first link of Y in a view after v: a peer that promised there also accepted
X in view v. Either it reported nothing, a view before v, or another commit in v, which no honest peer does; or it
reported X in v, so the previous link is of view v, and the leader of v has signed both X and Y there. All signatures
are in the two certificates, except a leader's of view 0: its acceptors received that with the proposal. (As
in the forensics of Sheng et al., "BFT Protocol Forensics", CCS 2021, arXiv 2010.06785; promises are Paxos's, and carry
their proof as the view changes of PBFT do, Castro and Liskov, OSDI 1999.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from outerloop.swarm.consensus.commit import Commit, majority
from outerloop.swarm.consensus.leadership import leader
from outerloop.swarm.consensus.statements import AcceptSigner, accept, promise
from outerloop.swarm.consensus.votes import Accepted, ChainLink, Pledge


def justification_error(head: Commit, proposal: Accepted, signer: AcceptSigner) -> str:
    """Return why no peer may accept this proposal after `head`, judged by its signatures; empty if it may."""
    commit, before = proposal.commit, None
    if not proposal.links or proposal.links[0].view != commit.view:
        return f"does not show that commit {commit.number} was proposed in view {commit.view}"
    for link in proposal.links:
        proposer = leader(signer.session, head, link.view)
        if not signer.verify(proposer, accept(commit.number, commit.parent, link.view, commit.digest), link.signature):
            return f"does not show that {proposer}, which leads view {link.view}, proposed commit {commit.number}"
        if link.view and (reason := _link_error(head, commit, link, before, signer)):
            return f"commit {commit.number} may not be proposed in view {link.view}: {reason}"
        before = link
    return ""


def _link_error(head: Commit, commit: Commit, link: ChainLink, before: ChainLink | None, signer: AcceptSigner) -> str:
    roster = head.roster
    promised = {
        pledge.peer
        for pledge in link.pledges
        if pledge.peer in roster
        and signer.verify(
            pledge.peer, promise(commit.number, commit.parent, link.view, pledge.accepted), pledge.signature
        )
    }
    pledges = credible(signer.session, head, link.pledges)
    if len(promised) < len(link.pledges) or len(pledges) < majority(roster):
        return f"{len(promised)} of its {len(link.pledges)} promises are signed by peers of the roster of {len(roster)}"
    view, commits = binding(pledges)
    if before is None:
        return f"the promises report another commit, accepted in view {view}" if commits else ""
    if view != before.view or commit.digest not in commits:
        return f"the promises do not report it as the last accepted commit, in view {before.view}"
    return ""


def credible(session: str, head: Commit, pledges: tuple[Pledge, ...]) -> tuple[Pledge, ...]:
    """Return the promises, without that of the leader of the latest view reported if two commits are reported there."""
    reported = {pledge.accepted for pledge in pledges if pledge.accepted}
    latest = max((view for view, _ in reported), default=0)
    if sum(view == latest for view, _ in reported) < 2:
        return pledges
    return tuple(pledge for pledge in pledges if pledge.peer != leader(session, head, latest))


def binding(pledges: Collection[Pledge]) -> tuple[int, set[bytes]]:
    """Return the latest view that promises report, and the commits accepted there by the most peers.

    One of these commits must be proposed again. If there are none, the choice is free.
    """
    reported = Counter(pledge.accepted for pledge in pledges if pledge.accepted)
    latest = max((view for view, _ in reported), default=-1)
    counts = {digest: count for (view, digest), count in reported.items() if view == latest}
    return latest, {digest for digest, count in counts.items() if count == max(counts.values())}
