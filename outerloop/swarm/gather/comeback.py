"""Let a peer return to an open run that continued with other peers than those of its last roster.

A peer with saved votes believes that the run is ahead if the logs of more than half of its last roster or of the
allow-list show this (proof.py). In a run without an allow-list, the peers of that roster may never return. Then the
peer believes the peers that answer, like a late joiner, and downloads the state of the run. It does so only after all
of these conditions have held for RETURN_S seconds:

    open run         the run has no allow-list (if it has one, the peers on the list decide)
    not settled      since this process started, at most half of the other peers of its roster have shown a log that
                     connects to its own. So a process that has been in touch with its roster never does this
    others ahead     the peers that answer prove a later commit by their own rosters (proof.newest_commit_past)

No vote is cast twice. The peer keeps its saved state and its identity, and its votes are for the round after its last
commit; each vote names that commit. The peer then moves only to a later commit. It rolls back to an earlier commit only
to apply another commit right after it (forks.py), so it does not get back into the round in which it has voted.
"""

from __future__ import annotations

import asyncio

from outerloop.swarm.consensus.commit import GENESIS, Commit
from outerloop.swarm.consensus.proof import Logs, Voters, has_majority, newest_commit_past, voters_of
from outerloop.swarm.consensus.votes import digests
from outerloop.swarm.gather.committed_rounds import CommittedRounds
from outerloop.swarm.gather.log_rpc import LogRpc
from outerloop.swarm.gather.round_context import RoundContext
from outerloop.swarm.timeouts import RETURN_POLL_S, RETURN_S
from outerloop.swarm.validation import id_of


class Comeback:
    """Decides whether a returning peer believes the peers that answer. `outcomes` is notified if it does.

    `settled`: whether more than half of the other peers of its roster have shown a log that connects to its own.
    """

    def __init__(self, context: RoundContext, rpc: LogRpc, outcomes: CommittedRounds) -> None:
        self._context, self._rpc, self._outcomes = context, rpc, outcomes
        self._reported = GENESIS  # the newest commit that a peer has reported, with or without proof
        self._ahead: tuple[Commit, float] | None = None  # this peer's last commit, and since when others are ahead
        self.settled = False

    async def watch(self) -> None:
        """Ask all known peers for their logs repeatedly, until this peer is settled."""
        while not self.settled:
            await asyncio.sleep(RETURN_POLL_S)
            if not self._outcomes.needs_state:  # otherwise, state transfer asks for the logs
                number = self._context.chain.number
                if self.believed(await self._logs()) is not None:
                    self._outcomes.log_truncated(number)

    def believed(self, logs: Logs) -> Commit | None:
        """Return the newest commit of the peers that answer if this peer may believe them now, else None.

        `logs`: peer id -> whole log of each peer that has just answered.
        """
        chain, now_s = self._context.chain, asyncio.get_running_loop().time()
        head = chain.hard_state.head
        self.note(logs)
        self.settled = self.settled or self._shows_roster(logs)
        may_fall_back = not self.settled and not self._context.trust.allow.closed
        newest = newest_commit_past(head, logs, chain.signer) if may_fall_back else None
        if newest is None:
            self._ahead = None
            return None
        if self._ahead is None or self._ahead[0] != head:
            self._ahead = head, now_s
        return newest if now_s >= self._ahead[1] + RETURN_S else None

    def note(self, logs: Logs) -> None:
        """Record the newest commit that any of these peers reports."""
        self._reported = max([self._reported, *(log[-1].commit.number for log in logs.values() if log)])

    def advice(self) -> str:
        """Return a one-line message if a peer has reported a commit after this peer's log, else ""."""
        if self._reported <= self._context.chain.hard_state.head.number:
            return ""
        if self._context.trust.allow.closed:
            needs = "start more peers: more than half of its last roster or of exchange.allow must report one commit"
        elif self.settled:
            needs = "start more peers of its last roster, or restart this peer, which may then believe the others"
        else:
            needs = f"it downloads the state of the run once most peers that answer agree on it for {RETURN_S:g} s"
        return f"other peers report commit {self._reported}: the run has continued without this peer; {needs}"

    @property
    def _roster(self) -> Voters:
        """The ids of the other peers of this peer's roster, as one group of voters; empty if there are no others."""
        return voters_of(id_of(self._context.own), self._context.chain.hard_state.roster, ())

    def _shows_roster(self, logs: Logs) -> bool:
        """Return whether the logs of more than half of the other peers of the roster connect to this peer's log.

        Two logs connect if they share a commit, or if the other log begins with the commit after this peer's last one.
        If this peer has no commit yet, an empty log connects as well. If the roster has no other peers, return True.
        """
        own = self._context.chain.hard_state.log
        known, begun = set(digests(own).values()), bool(own[-1].accepts)
        connected = {
            peer
            for peer, log in logs.items()
            if (not log and not begun) or any(known & {decided.commit.digest, decided.commit.parent} for decided in log)
        }
        return not self._roster or has_majority(connected, self._roster)

    async def _logs(self) -> Logs:
        """Return peer id -> log of each known peer that answers."""
        context = self._context
        others = [name for peer, name in context.names().items() if name != context.own and peer in context.trust.allow]
        return await self._rpc.logs(others, enough=lambda logs: has_majority(logs, self._roster))
