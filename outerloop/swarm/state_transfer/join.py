"""Transfer the run's state from its peers to a newcomer: a peer that joins late or was away for too long.

newest proven commit h is found           ->   ask its roster for the state as of commit n = h + 1 (donor.py)
commit n is decided, proven by the chain  ->   follow the chain from there and keep the commits that arrive
donors name their states in the chain     ->   the state that a majority of them names is the run's (state_roots.py)
that very state has arrived (download.py) ->   the trainer resumes from it and lands the commits kept meanwhile

If no state can be had as of commit n, the next n is one at which every donor copies. Before the first round, the run's
initial state is transferred the same way to peers that hold a different one; more than half of its donors must name it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import aclosing
from functools import partial
from itertools import count

from outerloop.swarm.access.signer import KeySigner
from outerloop.swarm.consensus.commit import GENESIS, Commit
from outerloop.swarm.consensus.proof import Voters, contradictions, majority_anchor, newest_provable_commit, voters_of
from outerloop.swarm.consensus.votes import CommitCertificate
from outerloop.swarm.gather.runner import GatherRunner
from outerloop.swarm.p2p.framing import BrokenStream
from outerloop.swarm.p2p.transport import Transport, Unreachable
from outerloop.swarm.state_transfer.donor import Donor, next_common
from outerloop.swarm.state_transfer.download import Download, Progress
from outerloop.swarm.state_transfer.manifest import Manifest
from outerloop.swarm.storage import Disk
from outerloop.swarm.timeouts import CERTIFY_S, RETRY_S, VIEW_S, limit
from outerloop.swarm.transfer.rate_limiter import RateLimiter
from outerloop.swarm.transfer.sources import ContentUnavailable
from outerloop.swarm.validation import MAX_NUMBER, MalformedMessage, id_of

logger = logging.getLogger(__name__)
START = MAX_NUMBER
"""Not the number of any commit: it denotes the run's initial state."""


class StateTransfer:
    """Both sides of state transfer. `own`: this peer's name; `session`: returns the session that donors sign for;
    `disk`: holds nothing but chunks; `pace`: rate limit of uploads.

    `given` and `taken` transfer the bytes and count them. `donor` serves states.
    """

    def __init__(
        self,
        transport: Transport,
        rounds: GatherRunner,
        *,
        run: str,
        own: str,
        session: Callable[[], str],
        allowed: Callable[[str], bool],
        disk: Disk,
        pace: RateLimiter | None = None,
    ) -> None:
        self._trust = transport.trust
        self._rounds = rounds
        self._own = own
        self.donor = Donor(transport, run=run, session=session, allowed=allowed, pace=pace)
        self._download = Download(transport, run=run, session=session, disk=disk)
        self.given, self.taken = self.donor.bulk, self._download.bulk
        self._heard_s, self._moved = time.monotonic(), 0
        self._turns = count()
        self._warned = ""

    async def serve(self) -> None:
        await self.donor.serve()

    def wants(self, number: int) -> bool:
        """Return whether a peer waits for the state as of this commit. Called from the trainer's thread."""
        return self.donor.wants(number)

    async def give_start(self, content: bytes) -> None:
        """Serve the run's initial state."""
        self.donor.hold(content, await asyncio.to_thread(Manifest.of, content, number=START, head=bytes(32)))

    async def take_start(self, givers: Iterable[str], *, at_most: int, progress: Progress) -> bytes:
        """Return the initial state, at most `at_most` bytes, from these peers (names).

        Retries until it succeeds: the caller limits the time.
        """
        ids = [id_of(giver) for giver in givers]
        while True:
            try:
                return (await self._download.get(START, ids, progress, at_most=at_most))[1]
            except (ContentUnavailable, MalformedMessage) as error:
                logger.warning("no initial state: %s; retrying", error)
            await asyncio.sleep(RETRY_S[1])

    async def end_start(self) -> None:
        """Drop the initial state once all peers have it."""
        self.donor.release(START)

    async def landed(self, number: int, content: bytes | None) -> None:
        """Note that the trainer has landed a commit, and serve `content`, its copied state, if one was wanted.

        This peer's next payload names that state.
        """
        head = self._rounds.head_of(number)
        self.donor.landed(number, copied=content is not None and head is not None)
        if content is not None and head is not None:
            with self._rounds.roots.hashing():
                manifest = await asyncio.to_thread(Manifest.of, content, number=number, head=head)
                self._rounds.roots.name(number, manifest.sha)
            self.donor.hold(content, manifest)

    def silent_s(self) -> float:
        """Return the seconds since a peer last answered about the run, or state was last received or sent."""
        moved = self.taken.bytes_received + self.given.bytes_sent
        if moved > self._moved:
            self._heard_s, self._moved = time.monotonic(), moved
        return time.monotonic() - self._heard_s

    def listen(self) -> None:
        """Restart the clock of `silent_s`."""
        self._heard_s = time.monotonic()

    async def take_over(
        self, peers: Callable[[], Iterable[str]], *, session: str, at_most: int, progress: Progress
    ) -> tuple[int, bytes]:
        """Return the number of the commit to resume after, and the state of at most `at_most` bytes as of it.

        `peers` returns the names of the peers that may know the run; it is called before each attempt, since more may
        have become known. Retries until it succeeds: the caller limits the time.
        """
        signer = KeySigner(self._trust.signatures, session=session, own=self._own)
        number = None
        while True:
            head = await self._newest(peers, signer)
            if number is None or number <= head.number:
                number = head.number + 1 if number is None else next_common(head.number + 1)
            donors = [peer for peer in head.roster if peer != self._own]
            root = asyncio.create_task(self._certified(number, head, donors, signer, session))
            getting = asyncio.create_task(
                self._download.get(
                    number, list(map(id_of, donors)), progress, at_most=at_most, certified=partial(asyncio.shield, root)
                )
            )
            try:
                sha, (manifest, content) = await asyncio.gather(root, getting)
                if manifest.sha == sha:
                    self._rounds.state_arrived()
                    return number, content
                self._warn("the state that most donors sent is not the one that the commits certify; retrying")
            except (ContentUnavailable, MalformedMessage) as error:
                self._warn(f"no state as of commit {number}: {error}; retrying, or asking for a later one")
            finally:
                getting.cancel()
                root.cancel()
            await asyncio.sleep(RETRY_S[1])

    async def _newest(self, peers: Callable[[], Iterable[str]], signer: KeySigner) -> Commit:
        """Wait for the newest proven commit (proof.py) and return it. Log peers that report a different one.

        Without a known roster or an allow-list there are no voters. Then more than half of the peers asked must hold
        the commit, or else more than half of those that answer.
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
                self._heard_s = time.monotonic()
            if head := newest_provable_commit(
                logs, signer, voters=counted, known=None if self._rounds.needs_state else known
            ):
                for peer, why in contradictions(logs, head).items():
                    self._trust.refusals.note("ballots", others[peer], why)
                rests_on = _told(voters) or f"the {len(logs)} peers that answered (exchange.allow is not set)"
                logger.info("commit %d is held by more than half of %s, or follows it", head.number, rests_on)
                return head
            if logs:
                whom = _told(voters) or f"the {len(logs)} peers that answer"
                self._warn(
                    f"{len(logs)} peers report their commits, but more than half of {whom} must hold the same: waiting"
                )
            await asyncio.sleep(RETRY_S[1])

    async def _logs(self, peers: Sequence[str], voters: Voters) -> dict[str, Sequence[CommitCertificate]]:
        """Return the logs of `peers` by peer id. Stop waiting for the rest once most voters hold one commit."""
        logs: dict[str, Sequence[CommitCertificate]] = {}
        answers = self._rounds.log_rpc.answers(peers, None, enough=lambda: majority_anchor(logs, voters) is not None)
        async with aclosing(answers):
            async for peer, log in answers:
                if log:
                    logs[id_of(peer)] = log
        return logs

    async def _certified(
        self, number: int, head: Commit, donors: Sequence[str], signer: KeySigner, session: str
    ) -> bytes:
        """Follow the chain from `head`. Return the sha256 of the manifest of the run's state as of commit `number`.

        Raises ContentUnavailable if it does not get certified, UserError if this peer may not follow.
        """
        decided = await self._decided(head, donors, signer)
        while decided.commit.number < number:
            decided = await self._decided(decided.commit, donors, signer)
        await self._rounds.follow_from(decided, run=session)
        certified = asyncio.create_task(self._rounds.roots.certified(number))
        try:
            await self._follow(number, donors, certified)
            return await certified
        finally:
            certified.cancel()

    async def _follow(self, number: int, peers: Sequence[str], certified: asyncio.Task[bytes]) -> None:
        """Follow these peers, one after the other, until the state is certified. Log it if that takes long."""
        clock = asyncio.get_running_loop().time
        began_s, said_s, turn = clock(), CERTIFY_S, 0
        while not certified.done():
            if self._rounds.needs_state:
                raise ContentUnavailable(f"the other peers are already too far past commit {number}")
            await self._look_at(peers[turn % len(peers)])
            turn += 1
            if clock() - began_s > said_s:
                said_s *= 2
                named = self._rounds.roots.describe(number)
                self._warn(
                    f"the state as of commit {number} waits for the rounds after it: {named}."
                    " If the run ends before that, no state is transferred"
                )
            await asyncio.wait([certified], timeout=RETRY_S[1])

    async def _decided(self, head: Commit, peers: Sequence[str], signer: KeySigner) -> CommitCertificate:
        """Wait until a peer proves the commit after `head`, and return it.

        Raises ContentUnavailable if most of the peers that answer will never have it: their logs begin after it, or
        they are on another chain.
        """
        while True:
            first = next(self._turns) % max(1, len(peers))  # start with a different peer each time: one may be silent
            told = await self._rounds.log_rpc.after(head, [*peers[first:], *peers[:first]], signer)
            if told.proven:
                self._heard_s = time.monotonic()
                return told.proven[0]
            if len(told.later) + len(told.on_other_chain) > len(told.level):
                raise ContentUnavailable(f"the other peers no longer have the commit that follows commit {head.number}")
            if told.level:
                self._heard_s = time.monotonic()
            await asyncio.sleep(RETRY_S[1])

    def _warn(self, line: str) -> None:
        """Log a warning unless it repeats the last one."""
        if line != self._warned:
            logger.warning("%s", line)
        self._warned = line

    async def _look_at(self, peer: str) -> None:
        """Ask a peer how far it is, and follow it if it is ahead."""
        try:
            async with limit(VIEW_S):
                await self._rounds.look_at(peer)
            self._heard_s = time.monotonic()
        except (BrokenStream, Unreachable, TimeoutError) as error:
            logger.debug("%s does not answer: %s", peer, error)


def _told(voters: Sequence[frozenset[str]]) -> str:
    """Describe the groups of voters for a log line; empty without voters."""
    return " or ".join(f"{len(group)} peers" for group in voters)
