"""Catch up with peers that are ahead: fetch missing commits, and ask to join the roster.

a peer is ahead                        ->   fetch the commits after the local head, from that peer or another one
                                            (log_rpc.py)
most peers are ahead, and no log
reaches back to the local head         ->   this peer has to download the state (proof.py)
an open run has continued without
the peers of this peer's last roster   ->   this peer has to download the state, if it has just returned (comeback.py)
this peer is not in the roster         ->   ask to join, repeatedly, until it is in the roster
a peer is on another chain             ->   fetch its log and compare it with the local one (forks.py)

The local head is the last commit that this peer has applied. A log that does not reach back to the local head has no
effect, unless the logs prove that this peer has to download the state. Commits that do not follow the local head are
rejected and logged with the sender's name. Any peer can claim to be ahead. So after a fetch that brought no commit, the
same peer cannot cause another fetch for RETRY_S[1] seconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from outerloop.swarm.consensus.chain import Chain
from outerloop.swarm.consensus.proof import has_majority, peers_ahead, proof_error, voters_of
from outerloop.swarm.consensus.votes import CommitCertificate
from outerloop.swarm.gather.comeback import Comeback
from outerloop.swarm.gather.committed_rounds import CommittedRounds
from outerloop.swarm.gather.log_rpc import LogAnswer, LogRpc
from outerloop.swarm.gather.round_context import RoundContext
from outerloop.swarm.p2p.framing import BrokenStream
from outerloop.swarm.p2p.network_thread import BackgroundTasks
from outerloop.swarm.p2p.transport import Unreachable
from outerloop.swarm.timeouts import ASK_S, HEDGE_S, RETRY_S
from outerloop.swarm.validation import id_of

logger = logging.getLogger(__name__)


class CatchUpTask:
    """Fetches the commits that keep one peer up to date with the others.

    `rpc` fetches logs. `outcomes` is notified if the logs prove that this peer must download the state.
    `awaiting_state` is True while the trainer lacks the state with which the local chain begins. `comeback` decides
    whether this peer, if it has just returned, believes peers that are not in its last roster.
    """

    def __init__(self, context: RoundContext, rpc: LogRpc, outcomes: CommittedRounds) -> None:
        self._context, self._rpc, self._outcomes = context, rpc, outcomes
        self._fetching: dict[str, asyncio.Task[None]] = {}
        self._comparing: dict[str, asyncio.Task[None]] = {}
        self._joining = BackgroundTasks()
        self._free_s = 0.0
        self.awaiting_state = False
        self.comeback = Comeback(context, rpc, outcomes)

    def begin_round(self, number: int) -> None:
        """Start asking to join the roster if this peer does not vote in this round."""
        self._joining.cancel()
        if not self._context.chain.votes:
            self._joining.start(self.join())

    def cancel(self) -> None:
        """Cancel all running tasks."""
        self._joining.cancel()
        for task in (*self._fetching.values(), *self._comparing.values()):
            task.cancel()

    def fetch_from(self, peer: str) -> None:
        """Fetch the missing commits from a peer that is ahead.

        Does nothing if a fetch from `peer` is running, or if any fetch began in the last HEDGE_S. A fetch that takes
        longer, because `peer` is silent or its link is slow, does not prevent fetches from other peers.
        """
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._free_s and _is_idle(self._fetching, peer):
            self._free_s = now_s + HEDGE_S
            self._fetching[peer] = asyncio.create_task(self.fetch(peer))

    def compare_with(self, peer: str) -> None:
        """Fetch the log of a peer that is on another chain, at most once per ASK_S."""
        if _is_idle(self._comparing, peer):
            self._comparing[peer] = asyncio.create_task(self._compare(peer))

    async def look_at(self, peer: str) -> None:
        """Ask a peer for newer commits. If it has any, start to fetch them.

        Raises BrokenStream, Unreachable or TimeoutError if the peer does not answer.
        """
        if await self._rpc.ask(peer, self._context.chain.number - 1):
            self.fetch_from(peer)

    async def join(self) -> None:
        """Ask to join the roster every ASK_S, until cancelled. While the state is missing, fetch commits instead."""
        while True:
            if not self.awaiting_state:
                self._context.act(lambda chain: chain.request_join())
            elif others := self._context.others():
                self.fetch_from(others[0])
            await asyncio.sleep(ASK_S)

    async def _compare(self, peer: str) -> None:
        try:
            if log := await self._rpc.ask(peer, None):
                self._context.act(lambda chain: chain.compare_log(peer, log))
        except (BrokenStream, Unreachable, TimeoutError) as error:
            logger.debug("asking %s for its log failed: %s", peer, error)
        await asyncio.sleep(ASK_S)

    async def fetch(self, peer: str) -> None:
        """Fetch the commits after the local head from `peer`, or from another peer if it is slow or its log unusable.

        A usable log begins with a commit that this peer can apply. A valid certificate is not enough: a liar may omit
        the resignations that explain the next roster.
        """
        chain = self._context.chain
        head = chain.hard_state.head

        def error(decided: CommitCertificate) -> str:
            reason = proof_error(head, decided, chain.signer)
            return reason or (chain.next_commit_error(decided) if chain.hard_state.head == head else "")

        response = await self._rpc.after(head, list(dict.fromkeys([peer, *self._context.others()])), error)
        for decided in response.proven:
            self._context.receive(response.source, decided)
        for source in response.on_other_chain:
            self.compare_with(source)
        if response.proven or chain.hard_state.head != head:
            self._free_s = 0.0
            return
        if response.later:
            self._check_truncated(chain, response)
        await asyncio.sleep(RETRY_S[1])

    def _check_truncated(self, chain: Chain, response: LogAnswer) -> None:
        """Check logs that begin too late to continue this peer's log.

        If they prove that this peer must download the state, report that. Otherwise, reject the logs.
        """
        hard_state, own, trust = chain.hard_state, id_of(chain.hard_state.peer), self._context.trust
        voters = voters_of(own, hard_state.roster, trust.allow.listed)
        logs = {id_of(peer): log for peer, log in response.later.items()}
        self.comeback.note(logs)
        past = peers_ahead(hard_state.head.number, logs, chain.signer, voters=voters)
        level = set(map(id_of, response.level))
        if has_majority(past, voters) and not has_majority(level, voters_of(own, hard_state.roster, ())):
            self._outcomes.log_truncated(hard_state.number)
            return
        for peer, log in response.later.items():
            first = log[0].commit.number
            reason = f"sent commits from {first} on without proof, although this peer needs commit {hard_state.number}"
            trust.rejections.note("ballots", peer, reason)


def _is_idle(running: Mapping[str, asyncio.Task[None]], peer: str) -> bool:
    """Return whether `running` has no unfinished task for `peer`."""
    return peer not in running or running[peer].done()
