"""Find the newest proven commit of a run, and follow the chain from it. For peers that do not have the run's state."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import count

from outerloop.swarm.access.access_control import AccessControl
from outerloop.swarm.access.signatures import KeySigner
from outerloop.swarm.consensus.commit import GENESIS, Commit
from outerloop.swarm.consensus.proof import (
    Logs,
    Voters,
    contradictions,
    majority_anchor,
    newest_provable_commit,
    proof_error,
    voters_of,
)
from outerloop.swarm.consensus.votes import CommitCertificate
from outerloop.swarm.gather.runner import GatherRunner
from outerloop.swarm.p2p.framing import BrokenStream
from outerloop.swarm.p2p.transport import Unreachable
from outerloop.swarm.timeouts import CERTIFY_S, RETRY_S, VIEW_S, limit
from outerloop.swarm.transfer.sources import ContentUnavailable
from outerloop.swarm.validation import id_of

logger = logging.getLogger(__name__)


class ChainFollower:
    """Follows a run's chain of commits. `own`: this peer's name.

    `heard_s`: the time (time.monotonic) of the last answer from a peer to a request about the run.
    """

    def __init__(self, trust: AccessControl, rounds: GatherRunner, *, own: str) -> None:
        self._trust = trust
        self._rounds = rounds
        self._own = own
        self._turns = count()
        self._warned = ""
        self.heard_s = time.monotonic()

    async def newest_commit(self, peers: Callable[[], Iterable[str]], signer: KeySigner) -> Commit:
        """Wait for the newest proven commit (proof.py), and return it. Log peers whose commits contradict it.

        If neither the roster nor an allow-list is known, the voters are unknown. Then more than half of the peers asked
        must hold the commit or, if there is no such majority, more than half of the peers that answer. The same holds
        for a peer that returns to an open run after its roster has been replaced (gather/comeback.py).
        """
        while True:
            others = {id_of(peer): peer for peer in peers() if peer != self._own and id_of(peer) in self._trust.allow}
            known = self._rounds.last_commit
            later = GENESIS - 1 if known is None else known.number
            voters = voters_of(id_of(self._own), known.roster if known else (), self._trust.allow.listed)
            counted = voters or [frozenset(others)]
            logs = await self._logs(list(others.values()), counted)
            if not voters and majority_anchor(logs, counted) is None:
                counted = [frozenset(logs)]
            if any(log[-1].commit.number > later for log in logs.values()):
                self.heard_s = time.monotonic()
            if head := newest_provable_commit(
                logs, signer, voters=counted, known=None if self._rounds.needs_state else known
            ):
                for peer, why in contradictions(logs, head).items():
                    self._trust.rejections.note("ballots", others[peer], why)
                rests_on = _describe(voters) or f"the {len(logs)} peers that answered (exchange.allow is not set)"
                logger.info(
                    "newest proven commit: %d; more than half of %s hold it or an earlier commit of its chain",
                    head.number,
                    rests_on,
                )
                return head
            if known is not None and (head := self._rounds.comeback.believed(logs)):
                logger.warning(
                    "most peers of this peer's last roster are absent, and the run continued without them: believing"
                    " the %d peers that answer, whose newest commit is %d (exchange.allow is not set)",
                    len(logs),
                    head.number,
                )
                return head
            if logs:
                whom = _describe(voters) or f"the {len(logs)} peers that answer"
                self.warn(
                    f"waiting: {len(logs)} peers report their commits, but more than half of {whom} must hold the same"
                    " commit"
                )
            await asyncio.sleep(RETRY_S[1])

    async def _logs(self, peers: Sequence[str], voters: Voters) -> Logs:
        """Ask these peers (names) for their logs. Return those that contain a commit, by peer id.

        Stop soon after a majority of the voters has shown the same commit. The logs of peers that have not answered by
        then are not included.
        """
        logs = await self._rounds.log_rpc.logs(peers, enough=lambda logs: majority_anchor(logs, voters) is not None)
        return {peer: log for peer, log in logs.items() if log}

    async def certified_root(
        self, number: int, head: Commit, donors: Sequence[str], signer: KeySigner, session: str
    ) -> bytes:
        """Follow the chain from `head`. Return the manifest sha256 of the run's state as of commit `number`.

        Waits until the state is certified. Raises ContentUnavailable if it will not be, and UserError if this peer may
        not follow the chain.
        """
        decided = await self._decided(head, donors, signer)
        while decided.commit.number < number:
            decided = await self._decided(decided.commit, donors, signer)
        await self._rounds.follow_from(decided, session=session)
        certified = asyncio.create_task(self._rounds.roots.certified(number))
        try:
            await self._follow(number, donors, certified)
            return await certified
        finally:
            certified.cancel()

    async def _follow(self, number: int, peers: Sequence[str], certified: asyncio.Task[bytes]) -> None:
        """Ask the peers in turn for commits until the state is certified. Warn if certification takes long."""
        clock = asyncio.get_running_loop().time
        began_s, warn_after_s, turn = clock(), CERTIFY_S, 0
        while not certified.done():
            if self._rounds.needs_state:
                raise ContentUnavailable(f"the other peers are already too far past commit {number}")
            await self._look_at(peers[turn % len(peers)])
            turn += 1
            if clock() - began_s > warn_after_s:
                warn_after_s *= 2
                named = self._rounds.roots.describe(number)
                self.warn(
                    f"waiting for later rounds to certify the state as of commit {number}: {named}."
                    " If the run ends before the state is certified, it is not transferred"
                )
            await asyncio.wait([certified], timeout=RETRY_S[1])

    async def _decided(self, head: Commit, peers: Sequence[str], signer: KeySigner) -> CommitCertificate:
        """Wait until a peer proves the commit after `head`, and return that commit.

        Raises ContentUnavailable if most of the peers that answer cannot provide it, because their logs begin after it
        or contain another chain.
        """

        def error(decided: CommitCertificate) -> str:
            return proof_error(head, decided, signer)

        while True:
            first = next(self._turns) % max(1, len(peers))  # a different first peer each time, as one may be silent
            logs = await self._rounds.log_rpc.after(head, [*peers[first:], *peers[:first]], error)
            if logs.proven:
                self.heard_s = time.monotonic()
                return logs.proven[0]
            if len(logs.later) + len(logs.on_other_chain) > len(logs.level):
                raise ContentUnavailable(f"the other peers no longer have the commit that follows commit {head.number}")
            if logs.level:
                self.heard_s = time.monotonic()
            await asyncio.sleep(RETRY_S[1])

    def warn(self, line: str) -> None:
        """Log a warning unless it equals the previous one."""
        if line != self._warned:
            logger.warning("%s", line)
        self._warned = line

    async def _look_at(self, peer: str) -> None:
        """Ask a peer for newer commits. If it has any, catch up with it."""
        try:
            async with limit(VIEW_S):
                await self._rounds.look_at(peer)
            self.heard_s = time.monotonic()
        except (BrokenStream, Unreachable, TimeoutError) as error:
            logger.debug("%s did not answer: %s", peer, error)


def _describe(voters: Sequence[frozenset[str]]) -> str:
    """Return a description of the groups of voters for a log line, or "" if there are no voters."""
    return " or ".join(f"{len(group)} peers" for group in voters)
