"""The state of a run from those who have it to one that comes late, or was away for too long.

the newest commit h that can be believed   ->   its roster is asked for the state as of commit h + 1 (donor.py)
commit h + 1 is decided, h's roster signed ->   the newcomer follows the chain from there, and keeps what comes
the state is here (download.py)            ->   its trainer goes on from that, and lands what has come meanwhile

Before the first round, the state that the run begins with goes the same way to those that hold another one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence

from outerloop.swarm.ballots import Decided
from outerloop.swarm.commits import Commit
from outerloop.swarm.disk import Disk
from outerloop.swarm.donor import Donor
from outerloop.swarm.download import Download, Progress
from outerloop.swarm.fields import MAX_NUMBER, BadMessage
from outerloop.swarm.framing import BrokenStream
from outerloop.swarm.holders import Unobtainable
from outerloop.swarm.manifest import Manifest
from outerloop.swarm.notary import Keys
from outerloop.swarm.pace import Pace
from outerloop.swarm.proof import newest, objections, unproven
from outerloop.swarm.roster import id_of
from outerloop.swarm.rounds import Rounds
from outerloop.swarm.timeouts import RETRY_S
from outerloop.swarm.transport import Transport, Unreachable

logger = logging.getLogger(__name__)
START = MAX_NUMBER
"""The number of a commit that never is: the state that a run begins with goes by it."""


class Handover:
    """Both sides of it. `own`: this peer's name; `disk`: for chunks alone; `pace`: how fast state may leave.

    `given` and `taken` carry and count it.
    """

    def __init__(
        self,
        transport: Transport,
        rounds: Rounds,
        *,
        run: str,
        own: str,
        allowed: Callable[[str], bool],
        disk: Disk,
        pace: Pace | None = None,
    ) -> None:
        self._trust = transport.trust
        self._rounds = rounds
        self._own = own
        self._donor = Donor(transport, run=run, allowed=allowed, pace=pace)
        self._download = Download(transport, run=run, disk=disk)
        self.given, self.taken = self._donor.bulk, self._download.bulk
        self._heard_s, self._moved = time.monotonic(), 0

    async def serve(self) -> None:
        await self._donor.serve()

    def wants(self, number: int) -> bool:
        """Whether somebody waits for the state as of this commit; for the trainer's thread."""
        return self._donor.wants(number)

    async def give_start(self, content: bytes) -> None:
        """Give this state, which is as of no commit but the start of the run, to who asks for it."""
        self._donor.hold(content, await asyncio.to_thread(Manifest.of, content, number=START, head=bytes(32)))

    async def take_start(self, givers: Iterable[str], *, at_most: int, progress: Progress) -> bytes:
        """The state of at most so many bytes that these peers (names) begin with.

        Tries until it succeeds: the caller limits the time.
        """
        ids = [id_of(giver) for giver in givers]
        while True:
            try:
                return (await self._download.get(START, ids, progress, at_most=at_most))[1]
            except (Unobtainable, BadMessage) as error:
                logger.warning("no state to begin with: %s; asking again", error)
            await asyncio.sleep(RETRY_S[1])

    async def end_start(self) -> None:
        """All have it: the copy may go."""
        self._donor.release(START)

    async def landed(self, number: int, content: bytes | None) -> None:
        """The trainer has landed a commit, and copied its state if that was wanted."""
        head = self._rounds.head_of(number)
        self._donor.landed(number, copied=content is not None and head is not None)
        if content is not None and head is not None:
            self._donor.hold(content, await asyncio.to_thread(Manifest.of, content, number=number, head=head))

    def silent_s(self) -> float:
        """Seconds since a peer last told this one something of the run, or state came from one or went to one."""
        moved = self.taken.bytes_received + self.given.bytes_sent
        if moved > self._moved:
            self._heard_s, self._moved = time.monotonic(), moved
        return time.monotonic() - self._heard_s

    def listen(self) -> None:
        """Silence counts from now on."""
        self._heard_s = time.monotonic()

    async def take_over(
        self, peers: Iterable[str], *, sitting: str, at_most: int, progress: Progress
    ) -> tuple[int, bytes]:
        """The commit that counts as landed from now on, and the state of at most so many bytes as of it.

        `peers`: names of those who may know of the run. Tries until it succeeds: the caller limits the time.
        """
        others = [peer for peer in peers if peer != self._own and id_of(peer) in self._trust.allow]
        notary = Keys(self._trust.signatures, sitting=sitting, own=self._own)
        while True:
            head = await self._newest(others, notary)
            number, donors = head.number + 1, [peer for peer in head.roster if peer != self._own]
            ids = list(map(id_of, donors))
            getting = asyncio.create_task(self._download.get(number, ids, progress, at_most=at_most))
            try:
                decided = await self._decided(head, donors, notary, getting)
                await self._rounds.go_on_from(decided, run=sitting)
                manifest, content = await getting
                if manifest.head == decided.commit.digest:
                    self._rounds.arrived()
                    return number, content
                logger.warning("the state that was given is of another history; asking again")
            except (Unobtainable, BadMessage) as error:
                logger.warning("no state as of commit %d: %s; asking for a later one", number, error)
            finally:
                getting.cancel()
            await asyncio.sleep(RETRY_S[1])

    async def _newest(self, peers: Sequence[str], notary: Keys) -> Commit:
        """The newest commit that can be believed (proof.py), as soon as there is one; who tells another is refused."""
        while True:
            answers = zip(peers, await asyncio.gather(*(self._ask(peer, None) for peer in peers)), strict=True)
            logs = {peer: log for peer, log in answers if log}
            if head := newest(logs, notary):
                for peer, why in objections(logs, head).items():
                    self._refuse(peer, why)
                logger.info(
                    "commit %d is what most of %d peers that answered hold, or follows it", head.number, len(logs)
                )
                return head
            if logs:
                logger.warning("most of %d peers that answer hold no commit in common: asking again", len(logs))
            await asyncio.sleep(RETRY_S[1])

    async def _decided(self, head: Commit, peers: Sequence[str], notary: Keys, getting: asyncio.Task) -> Decided:
        """The commit after `head`, as soon as one of them proves it. Raises what `getting` failed of."""
        while True:
            for peer in peers:
                for one in (await self._ask(peer, head.number))[:1]:
                    if not (why := unproven(head, one, notary)):
                        return one
                    self._refuse(peer, why)
            await asyncio.wait([getting], timeout=RETRY_S[1])
            if getting.done():
                getting.result()

    def _refuse(self, peer: str, why: str) -> None:
        self._trust.refusals.note("ballots", peer, why)

    async def _ask(self, peer: str, after: int | None) -> Sequence[Decided]:
        """What a peer knows, nothing when it does not answer."""
        try:
            told = await self._rounds.history.ask(peer, after)
            if told is not None:
                self._heard_s = time.monotonic()
            return told or ()
        except (BrokenStream, Unreachable, TimeoutError) as error:
            logger.debug("%s does not tell its commits: %s", peer, error)
            return ()
