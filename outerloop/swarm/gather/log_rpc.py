"""RPC that fetches the commits that a peer has missed, from the logs of other peers.

{after} ->   <- {commits: number of commits}, then each commit as a message in the format of messages.py

{after: nil} requests the whole log. The whole log is also sent if it begins after the first requested commit.

Any peer may be silent, so several are asked concurrently. Malformed answers are rejected and logged with the sender's
name.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from outerloop.swarm.consensus.commit import Commit
from outerloop.swarm.consensus.proof import Logs
from outerloop.swarm.consensus.state import ROUNDS_KEPT
from outerloop.swarm.consensus.votes import CommitCertificate
from outerloop.swarm.gather.ballot_rpc import receive_message, send_message
from outerloop.swarm.p2p.framing import BrokenStream, Stream, Unreadable
from outerloop.swarm.p2p.transport import Request, RpcService, Transport, Unreachable
from outerloop.swarm.timeouts import HEDGE_S, HISTORY_S, limit
from outerloop.swarm.validation import id_of, quote

logger = logging.getLogger(__name__)
Since = Callable[[int | None], Sequence[CommitCertificate]]
Check = Callable[[CommitCertificate], str]
Answer = tuple[str, list[CommitCertificate] | None]
"""(peer, the commits that it sent, or None if it did not answer or its answer was malformed)."""


@dataclass
class LogAnswer:
    """The answers of several peers (names) to a request for the commits after this peer's last commit, its head.

    source           a peer whose log begins with the commit after the head and proves it, or "" if there is none
    proven           the log of `source`
    later            peer -> its log, for each peer whose log begins later than the commit after the head
    level            the peers that have no commit after the head
    on_other_chain   the peers whose next commit does not follow the head: they are on another chain, or they lie
    """

    source: str = ""
    proven: Sequence[CommitCertificate] = ()
    later: dict[str, Sequence[CommitCertificate]] = field(default_factory=dict)
    level: set[str] = field(default_factory=set)
    on_other_chain: set[str] = field(default_factory=set)

    def add(self, peer: str, log: Sequence[CommitCertificate], head: Commit, error: Check) -> str:
        """Add a peer's log of the commits after `head`. Return why the log is rejected, or "" if it is not.

        `error`: returns why a commit cannot be the one after `head`, or "".
        """
        if not log:
            self.level.add(peer)
        elif log[0].commit.number > head.number + 1:
            self.later[peer] = log
        elif why := error(log[0]):
            if log[0].commit.parent != head.digest:
                self.on_other_chain.add(peer)
            return why
        else:
            self.source, self.proven = peer, log
        return ""


class LogRpc(RpcService):
    """Client and server of the log RPC. `since(n)` returns the commits after commit n from this peer's log."""

    service = "commits"

    def __init__(self, transport: Transport, *, run: str, allowed: Callable[[str], bool], since: Since) -> None:
        super().__init__(transport, run=run, allowed=allowed)
        self._since = since

    async def ask(self, peer: str, after: int | None) -> list[CommitCertificate]:
        """Return a peer's commits after commit `after`, or its whole log if `after` is None. The commits have no gaps.

        If the peer's log does not reach back that far, the result begins later than commit `after` + 1. Raises
        BrokenStream, Unreachable or TimeoutError if the peer does not answer or its answer is malformed.
        """
        async with limit(HISTORY_S), self._stream_to(id_of(peer)) as stream:
            await stream.send_object({"after": after})
            count = (await stream.receive_object()).get("commits")
            if type(count) is not int or not 0 <= count <= ROUNDS_KEPT:
                raise Unreadable(f"a log with an invalid number of commits: {quote(count)}")
            log: list[CommitCertificate] = []
            for _ in range(count):
                log.append(_decided(await receive_message(stream), after, log))
            return log

    async def after(self, head: Commit, peers: Sequence[str], error: Check) -> LogAnswer:
        """Ask these peers (names) for the commits after `head`. Return as soon as one log proves the next commit.

        `error`: returns why a commit cannot be the one after `head`, or "".

        The first peer has HEDGE_S to answer before others are asked too. Its answer is awaited until the request times
        out, because it may be the only peer that knows more. Once it and more than half of the peers have answered, the
        remaining answers are awaited for 2 * HEDGE_S.
        """
        answer, answered = LogAnswer(), set[str]()
        answers = self.answers(
            peers, head.number, enough=lambda: peers[0] in answered and 2 * len(answered) > len(peers), pause_s=HEDGE_S
        )
        async with aclosing(answers):
            async for peer, log in answers:
                answered.add(peer)
                if log is not None and (why := answer.add(peer, log, head, error)):
                    self._reject(peer, why)
                if answer.proven:
                    break
        return answer

    async def logs(self, peers: Sequence[str], *, enough: Callable[[Logs], bool]) -> Logs:
        """Return peer id -> whole log of each of these peers (names) that answers; the log may be empty.

        Return soon after `enough`, given the logs so far, returns True.
        """
        logs = dict[str, Sequence[CommitCertificate]]()
        async with aclosing(self.answers(peers, None, enough=lambda: enough(logs))) as answers:
            async for peer, log in answers:
                if log is not None:
                    logs[id_of(peer)] = log
        return logs

    async def answers(
        self, peers: Sequence[str], after: int | None, *, enough: Callable[[], bool], pause_s: float = 0.0
    ) -> AsyncGenerator[Answer, None]:
        """Ask peers for their commits after `after`. Yield answers as they arrive. The caller must close the generator.

        The first peer is asked at once. After each pause of `pause_s`, the number of peers asked doubles. Once `enough`
        returns True, the remaining answers are awaited for 2 * HEDGE_S.
        """
        clock, until_s = asyncio.get_running_loop().time, None
        asking = [
            asyncio.create_task(self._ask_later(peer, after, wait_s=pause_s * turn.bit_length()))
            for turn, peer in enumerate(peers)
        ]
        try:
            while asking:
                patience_s = None if until_s is None else until_s - clock()
                done, _ = await asyncio.wait(asking, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    return
                for task in [task for task in asking if task in done]:
                    asking.remove(task)
                    yield task.result()
                if until_s is None and enough():
                    until_s = clock() + 2 * HEDGE_S
        finally:
            for task in asking:
                task.cancel()

    async def _ask_later(self, peer: str, after: int | None, *, wait_s: float) -> Answer:
        await asyncio.sleep(wait_s)
        try:
            return peer, await self.ask(peer, after)
        except (BrokenStream, Unreachable, TimeoutError) as error:
            if isinstance(error, Unreadable):
                self._reject(peer, str(error))
            logger.debug("asking %s for the commits after %s failed: %s", peer, after, error)
            return peer, None

    def _reject(self, peer: str, why: str) -> None:
        self._transport.trust.rejections.note("ballots", peer, why)

    async def _answer(self, remote: str, request: Request, stream: Stream) -> None:
        after = request.get("after")
        if not isinstance(after, int | None):
            raise Unreadable("a request whose `after` is not a number")
        found = self._since(after)
        await stream.send_object({"commits": len(found)})
        for decided in found:
            await send_message(stream, decided)
        await stream.ended()


def _decided(message: object, after: int | None, log: Sequence[CommitCertificate]) -> CommitCertificate:
    """Return `message` if it is a commit that may come next in `log`, a log of commits after `after`.

    Raises Unreadable if it is not.
    """
    if not isinstance(message, CommitCertificate):
        raise Unreadable("a log with a message that is not a commit")
    if after is not None and message.commit.number <= after:
        raise Unreadable(f"commit {message.commit.number}, although only commits after {after} were requested")
    if log and (message.commit.number, message.commit.parent) != (log[-1].commit.number + 1, log[-1].commit.digest):
        raise Unreadable(f"a log in which commit {message.commit.number} does not follow the one before it")
    return message
