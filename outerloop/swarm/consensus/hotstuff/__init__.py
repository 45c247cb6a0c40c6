"""Byzantine agreement on the commit of a round: HotStuff-2, for exchange.trust=nobody.

The protocol is that of Malkhi and Nayak, "Extended Abstract: HotStuff-2: Optimal Two-Phase Responsive BFT", IACR ePrint
2023/397. Let the roster of a round have n peers, at most f = (n - 1) // 3 of which lie. A liar may send anything, but
it cannot sign for another peer. Then the protocol is

    safe    no two honest peers decide different commits of a round, even if messages are delayed, lost or repeated, and
            even if honest peers crash and restart from their disks
    live    once messages arrive in time, every round is decided

A quorum is more than two thirds of the roster (quorum.TWO_THIRDS). Two quorums share more than f peers, so they share
at least one honest peer. The honest peers are a quorum by themselves. C_v(X) is a certificate: the votes of a quorum
for commit X in view v (votes.PrepareCertificate). A certificate of a later view is higher. When a peer locks on C_v(X),
it saves this certificate and X as its lock; the lock's view is v.

In view v of the round, with leader L_v:

    enter       A peer that enters view v > 0 sends its lock to L_v (message newview). L_v waits until it has the locks
                of all roster peers, or a certificate of view v - 1, or until its wait is over. The wait is longer than
                messages take once they arrive in time. View 0 is the first of the round, so no peer is locked in it
    propose     L_v proposes the commit X of the highest certificate C_v'(X) that it knows, with this certificate as
                the justification. If it knows none, it proposes its own commit when the gather closes (proposer.py)
    vote        A peer votes for the first valid proposal of view v, provided that v' is at least the view of its lock.
                It then locks on C_v'(X). If the proposal has no justification, only a peer without a lock votes for
                it. The vote is a signature of statements.prepare
    prepare     When L_v has the votes of a quorum, it forms the certificate C_v(X) and sends it to all peers
    vote 2      A peer that receives C_v(X) in view v locks on it and votes to commit X. This vote is a signature of
                statements.commit
    decide      When L_v has the second votes of a quorum, it forms the certificate of the commit and sends it to all
                peers. This certificate alone proves the decision, in a log and in a state transfer as well
                (votes.CommitCertificate)

Why this protocol. As in Paxos here (paxos/), each view has one leader, which collects the votes and sends the
certificates to each peer directly. So a round costs 5 n messages, and both protocols share the chain, catch-up and the
view changes (view_change.py). Tendermint (arXiv 1807.04938) sends every vote to every peer, and needs gossip that
delivers each message to all honest peers once one of them has it. The transport here tries only once to deliver a
message, so a liar that sends a vote to a single honest peer could stop Tendermint. HotStuff-2 needs no gossip: an
honest peer's lock contains all that later views need from that peer, and an honest leader waits for the locks.

What differs from the paper. The paper decides a chain of blocks; here, a round decides one commit. So a leader proposes
a certified commit again, where the paper's leader proposes a block that extends it. A leader sends the second
certificate to all peers at once, where the paper's leader sends it to the next leader. The single-shot protocol in the
paper's section on intuition does both as here. view_change.py replaces the paper's pacemaker. A leader that has the
locks of all peers does not wait longer. Votes also name the view of the justification, so two signatures convict a peer
that ignores its lock (accountability/evidence.py; Sheng et al., "BFT Protocol Forensics", CCS 2021, arXiv 2010.06785,
HotStuff-view).

Safety in short. Let a quorum vote to commit X in view v. More than f peers of this quorum are honest, and they are
locked on C_v(X). Suppose that a later view has a certificate of another commit; let w be the first such view, and Y its
commit. The two quorums share an honest peer, which voted for Y after it had locked on C_v(X). So the proposal of Y was
justified by some C_v'(Y) with v <= v' < w. If v' > v, then w is not the first such view. If v' = v, two quorums voted
for two commits in view v, so an honest peer voted twice in one view. Neither is possible.

A peer saves three things before it sends anything: its view (HardState.promised), its last vote (`accepted`) and its
lock. It need not save its second votes, because they follow from the lock: a peer whose lock is of view v never locks
on another commit of view v.

A commit is checked as in Paxos (validity.py): a peer votes only for commits that it has recomputed and whose payloads
it has stored. The result of vote_refusal may differ between peers. It is checked only for proposals without
justification, because a certificate shows that more than f honest peers have voted for the commit. Limits: a peer keeps
one proposal and one certificate of the current view, and one report from each peer. In each list of votes or wishes
that a message contains, it verifies at most one signature per peer.
"""
