"""Single-decree Paxos among the peers of a round's roster, for exchange.trust=members.

    view 0       leader(0) closes the gather (proposer.py), accepts its own proposal, and sends it to all peers
    accept       a peer accepts the proposal of its current view if the commit follows the peer's head, the next roster
                 obeys the rules (validity.py), and the peer holds every payload that the commit names
    decided      a commit is decided once the leader of the view has the accepts of a majority (continued in chain.py)
    view v > 0   a peer enters view v when a majority wants it (view_change.py), and sends a promise for v to leader(v).
                 With the promises of a majority, the leader proposes the commit that they report as accepted in the
                 highest view. If they report none, it composes a new commit. Before the leader sends the proposal, it
                 must hold the payloads, and it accepts the proposal itself. The promises are sent with the proposal,
                 and every peer checks them (justification.py); they also prove that the view may be entered

A leader proposes once per view: its own accept is on disk before any peer receives the proposal, and survives a crash.
For this reason, and because no view precedes view 0, view 0 needs no promises.
"""
