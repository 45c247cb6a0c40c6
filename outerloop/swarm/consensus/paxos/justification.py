"""Check that the leader of a view was allowed to propose its commit.

A proposal carries its justification, the proof that its leader followed the rule of proposal_choice.py, which every
recipient checks. The justification has one link for every view in which the commit was proposed. A link contains the
leader's signed accept and, from view 1 on, the signed promises of a majority for that view, each with the commit that
its peer had accepted.

    first link     belongs to the view of the first proposal; none of its promises reports a commit, so the leader was
                   free to choose
    later links    the latest commit that the promises report is this commit, in the view of the previous link

If the promises report two commits in the latest view, the leader of that view has proposed both. In that case its
promise does not count, the other promises must be a majority without it, and the commit that most of them report is
chosen. So one liar of four peers, none of which has resigned, cannot cause a fork: two of the three other peers have
accepted the decided commit, and both report it.

Accountability. Two decided commits X and Y of one round identify a peer that lied, regardless of how many peers lied.
Let a majority accept X in view v and Y in view w. If v = w, a peer is in both majorities and has accepted two commits
in one view. Otherwise let v < w, and take the first link of Y in a view after v: some peer whose promise is in it has
also accepted X in view v. If its promise reports no commit, a view before v, or another commit in v, that peer lied,
because no honest peer does so. If its promise reports X in v, then the previous link is of view v, and the leader of v
has signed both X and Y in v. All signatures are in the two certificates, except the accept of a leader in view 0, which
its acceptors received with the proposal. (This follows the forensics of Sheng et al., "BFT Protocol Forensics", CCS
2021, arXiv 2010.06785. The promises are those of Paxos, and carry their proof as the view changes of PBFT do, Castro
and Liskov, OSDI 1999.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from outerloop.swarm.consensus.commit import Commit, leader, majority
from outerloop.swarm.consensus.resignation import Resignations, remaining_peers
from outerloop.swarm.consensus.statements import StatementSigner, accept, promise
from outerloop.swarm.consensus.votes import Accepted, ChainLink, Pledge


def justification_error(
    head: Commit, proposal: Accepted, signer: StatementSigner, *, resignations: Resignations = ()
) -> str:
    """Return why the signed links of a proposal do not justify it after commit `head`, or "" if they do.

    `resignations`: the valid resignations for this round.
    """
    commit, before = proposal.commit, None
    if not proposal.links or proposal.links[0].view != commit.view:
        return f"does not show that commit {commit.number} was proposed in view {commit.view}"
    for link in proposal.links:
        proposer = leader(signer.session, head, link.view)
        if not signer.verify(proposer, accept(commit.number, commit.parent, link.view, commit.digest), link.signature):
            return f"does not show that {proposer}, which leads view {link.view}, proposed commit {commit.number}"
        if link.view and (reason := _link_error(head, commit, link, before, signer, resignations)):
            return f"commit {commit.number} may not be proposed in view {link.view}: {reason}"
        before = link
    return ""


def _link_error(
    head: Commit,
    commit: Commit,
    link: ChainLink,
    before: ChainLink | None,
    signer: StatementSigner,
    resignations: Resignations,
) -> str:
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
    remaining = remaining_peers(head, resignations, voters=[pledge.peer for pledge in pledges])
    if len(promised) < len(link.pledges) or len(pledges) < majority(remaining):
        return (
            f"{len(promised)} of its {len(link.pledges)} promises are signed by roster peers, but all must be, and"
            f" promises from more than half of the {len(remaining)} roster peers that vote must count"
        )
    view, commits = binding(pledges)
    if before is None:
        return f"the promises report a commit that was accepted in view {view}" if commits else ""
    if view != before.view or commit.digest not in commits:
        return f"the promises do not report this commit as the last accepted one, in view {before.view}"
    return ""


def credible(session: str, head: Commit, pledges: tuple[Pledge, ...]) -> tuple[Pledge, ...]:
    """Return the promises without that of a leader that has proposed two commits in one view.

    If the promises report two commits for the latest view that they report, the leader of that view has proposed both.
    """
    reported = {pledge.accepted for pledge in pledges if pledge.accepted}
    latest = max((view for view, _ in reported), default=0)
    if sum(view == latest for view, _ in reported) < 2:
        return pledges
    return tuple(pledge for pledge in pledges if pledge.peer != leader(session, head, latest))


def binding(pledges: Collection[Pledge]) -> tuple[int, set[bytes]]:
    """Return the latest view that the promises report, and the commits that most of them report for that view.

    One of these commits must be proposed again. If the set is empty, the choice is free.
    """
    reported = Counter(pledge.accepted for pledge in pledges if pledge.accepted)
    latest = max((view for view, _ in reported), default=-1)
    counts = {digest: count for (view, digest), count in reported.items() if view == latest}
    return latest, {digest for digest, count in counts.items() if count == max(counts.values())}
