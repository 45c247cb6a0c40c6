"""Byzantine agreement on the commit of a round: HotStuff-2, for exchange.trust=nobody.

Malkhi and Nayak, "Extended Abstract: HotStuff-2: Optimal Two-Phase Responsive BFT", IACR ePrint 2023/397. With n peers
in the roster of a round, of which at most f = (n - 1) // 3 are liars, which send what they like but cannot sign for
another peer:

    safe    no two honest peers decide different commits of a round, however messages are delayed, lost or repeated, and
            whichever honest peers crash and restart from their disks
    live    once messages arrive in time, every round is decided

A quorum is more than two thirds of the roster (quorum.TWO_THIRDS). Two quorums share more than f peers, so at least one
honest peer, and the honest peers are a quorum by themselves. In view v of the round, with leader L_v:

    enter       A peer that enters view v > 0 sends its lock to L_v (message newview). L_v waits until it has the locks
                of all roster peers, or a certificate of view v - 1, or until its wait is over: longer than messages
                take, once they arrive in time. View 0 begins the round, so no peer is locked
    propose     L_v proposes the commit of the highest certificate that it knows, with this certificate C_v'(X) as the
                justification. If it knows none, it proposes its own commit when the gather closes (proposer.py)
    vote        A peer votes for the first valid proposal of view v if the justification is at least as high as its
                lock: v' >= the lock's view. It then locks on C_v'(X). For a proposal without justification only peers
                vote that are not locked. Signed: statements.prepare
    prepare     With the votes of a quorum, L_v forms the certificate C_v(X) and sends it to all
    vote 2      A peer that receives C_v(X) in view v locks on it and votes to commit. Signed: statements.commit
    decide      With these votes of a quorum, L_v forms the certificate of the commit and sends it to all. Another peer
                needs nothing else, in a log or a state transfer either (votes.CommitCertificate)

Why this protocol. It has one leader for each view that collects votes and spreads certificates, point to point, as
Paxos does here (paxos/): a round costs 5 n messages, and the chain, catch-up and the view changes of view_change.py
(with quorums of two thirds) serve both. Tendermint (arXiv 1807.04938) sends every vote to every peer and needs gossip
that delivers each message to all honest peers once one of them has it. The transport here does not offer that: it tries
once to deliver a message, so a liar that shows a vote to one honest peer alone could stop Tendermint. HotStuff-2 needs
no gossip: what matters of what one honest peer knows is in its lock, and an honest leader waits for the locks.

What differs from the paper, which decides a chain of blocks. One round decides one commit, so a leader proposes a
certified commit again, where the paper proposes a block that extends it, and sends the second certificate at once,
where the paper hands it to the next leader (both as in the single-shot protocol of its section on intuition). Views are
synchronized by view_change.py in place of the paper's pacemaker. A leader that has the locks of all need not wait
longer. Votes also name the view of the justification, so that two signatures convict a peer that ignores its lock
(accountability/evidence.py; Sheng et al., "BFT Protocol Forensics", CCS 2021, arXiv 2010.06785, HotStuff-view).

Safety in short. Let a quorum vote to commit X in view v; its honest peers, more than f, are locked on C_v(X). Suppose
that w > v is the first later view with a certificate for another commit Y. An honest peer voted for it after it had
locked on C_v(X), so the justification is C_v'(Y) with v <= v' < w. If v' > v, w was not the first. If v' = v, two
quorums voted in view v for two commits, and share an honest peer, which votes once in a view.

What is saved before anything is sent: the view (HardState.promised), the last vote (`accepted`) and the lock. A commit
vote needs nothing else, because it follows from the lock: a peer whose lock is of view v never locks on another commit
of view v.

Validity is that of Paxos (validity.py): a peer votes only for commits that it has recomputed and whose payloads it has
stored. A certificate shows that more than f honest peers have checked what depends on the peer (vote_refusal), so that
is checked for fresh proposals alone. Limits: one proposal and one prepared certificate are kept for the current view,
and one report of each peer; a message costs at most one signature check for each peer of the roster.
"""
