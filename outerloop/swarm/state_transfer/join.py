"""Transfer the run's state from its peers to a newcomer: a peer that joins late or was away for too long.

    1. find the newest proven commit h, and ask its roster for the state as of commit n = h + 1 (donor.py)
    2. wait until the chain proves commit n; follow the chain from there, and keep the commits that arrive
    3. wait until a majority of the roster has named the same state in the chain: it is the run's state (state_roots.py)
    4. check that the downloaded state (download.py) is this state; the trainer resumes from it and lands the commits
       kept meanwhile

If no state as of commit n is available, the next n is a commit at which every donor copies its state. Before the first
round, peers that hold a different initial state download the run's initial state in a similar way; more than half of
the donors must offer the same one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from functools import partial

from outerloop.swarm.access.signatures import KeySigner
from outerloop.swarm.gather.runner import GatherRunner
from outerloop.swarm.p2p.transport import Transport
from outerloop.swarm.state_transfer.chain_follower import ChainFollower
from outerloop.swarm.state_transfer.donor import Donor, next_common
from outerloop.swarm.state_transfer.download import Download, Progress
from outerloop.swarm.state_transfer.manifest import Manifest
from outerloop.swarm.storage import Disk
from outerloop.swarm.timeouts import RETRY_S
from outerloop.swarm.transfer.sources import ContentUnavailable
from outerloop.swarm.transfer.uploads import RateLimiter
from outerloop.swarm.validation import MAX_NUMBER, MalformedMessage, id_of

logger = logging.getLogger(__name__)
START = MAX_NUMBER
"""The commit number that stands for the run's initial state. No commit has this number."""


class StateTransfer:
    """Both sides of state transfer: serving states and downloading them.

    `own`: this peer's name. `session`: returns the session id that donors sign. `disk`: store for the chunks of
    unfinished downloads; all other content in it is deleted. `limiter`: rate limit for uploads. `uploads` and
    `downloads` transfer the bytes and count them. `donor` serves states. `chain` follows the other peers' commits.
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
        limiter: RateLimiter | None = None,
    ) -> None:
        self._signatures = transport.trust.signatures
        self._rounds = rounds
        self.chain = ChainFollower(transport.trust, rounds, own=own)
        self._own = own
        self.donor = Donor(transport, run=run, session=session, allowed=allowed, limiter=limiter)
        self._download = Download(transport, run=run, session=session, disk=disk)
        self.uploads, self.downloads = self.donor.bulk, self._download.bulk
        self._moved = 0

    async def serve(self) -> None:
        await self.donor.serve()

    def wants(self, number: int) -> bool:
        """Return whether a peer is waiting for the state as of commit `number`. The training thread may call this."""
        return self.donor.wants(number)

    async def serve_initial_state(self, content: bytes) -> None:
        """Serve the run's initial state `content` to the other peers."""
        self.donor.hold(content, await asyncio.to_thread(Manifest.of, content, number=START, head=bytes(32)))

    async def fetch_initial_state(self, peers: Iterable[str], *, at_most: int, progress: Progress) -> bytes:
        """Download the run's initial state from `peers` (names), and return it. It has at most `at_most` bytes.

        Retries until it succeeds; the caller sets the time limit.
        """
        ids = [id_of(peer) for peer in peers]
        while True:
            try:
                return (await self._download.get(START, ids, progress, at_most=at_most))[1]
            except (ContentUnavailable, MalformedMessage) as error:
                logger.warning("the run's initial state is not available yet: %s; retrying", error)
            await asyncio.sleep(RETRY_S[1])

    async def drop_initial_state(self) -> None:
        """Stop serving the run's initial state, because all peers have it."""
        self.donor.release(START)

    async def landed(self, number: int, content: bytes | None) -> None:
        """Record that the trainer has landed commit `number`, and serve the copied state.

        `content`: the state as of this commit, or None if it was not copied. If this peer serves a state, its next
        payload names that state, so that a majority can certify it.
        """
        head = self._rounds.head_of(number)
        self.donor.landed(number, copied=content is not None and head is not None)
        if content is not None and head is not None:
            with self._rounds.roots.hashing():
                manifest = await asyncio.to_thread(Manifest.of, content, number=number, head=head)
                self._rounds.roots.name(number, manifest.sha)
            self.donor.hold(content, manifest)

    def silent_s(self) -> float:
        """Return the seconds since the last answer to a request about the run or the last transfer of state data.

        If state data was transferred since the previous call, return 0, because the time of the transfer is not known.
        """
        moved = self.downloads.bytes_received + self.uploads.bytes_sent
        if moved > self._moved:
            self.chain.heard_s, self._moved = time.monotonic(), moved
        return time.monotonic() - self.chain.heard_s

    def listen(self) -> None:
        """Make `silent_s` count from now on."""
        self.chain.heard_s = time.monotonic()

    async def install_state(
        self, peers: Callable[[], Iterable[str]], *, session: str, at_most: int, progress: Progress
    ) -> tuple[int, bytes]:
        """Download the run's state. Return the number of the commit to resume after, and the state as of that commit.

        `peers` returns the names of the peers that may know the run; it is called before each attempt, to include
        newly known peers. The state has at most `at_most` bytes. Retries until it succeeds; the caller sets the time
        limit. A peer without saved votes first waits until it is no longer in the roster of the newest commit.
        """
        signer = KeySigner(self._signatures, session=session, own=self._own)
        number = None
        while True:
            head = await self.chain.newest_commit(peers, signer)
            if self._own in head.roster and self._rounds.last_commit is None:
                self.chain.warn(
                    "waiting: this peer is in the roster, but has no saved votes, e.g. because its last process ended"
                    " before its first vote; it joins by itself once the others drop it from the roster"
                )
                await asyncio.sleep(RETRY_S[1])
                continue
            if number is None or number <= head.number:
                number = head.number + 1 if number is None else next_common(head.number + 1)
            donors = [peer for peer in head.roster if peer != self._own]
            root = asyncio.create_task(self.chain.certified_root(number, head, donors, signer, session))
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
                self.chain.warn("the state that most donors sent is not the one that the commits certify; retrying")
            except (ContentUnavailable, MalformedMessage) as error:
                self.chain.warn(f"no state as of commit {number}: {error}; retrying, or asking for a later one")
            finally:
                getting.cancel()
                root.cancel()
            await asyncio.sleep(RETRY_S[1])
