"""What the rounds came to, for the trainer to take: commits that are decided, and every payload that they name.

The agreement may be many rounds ahead of the trainer. A round stays here until the trainer has taken it, and as long as
others may ask for it.
"""

from __future__ import annotations

import asyncio

from outerloop.swarm.consensus.commit import Commit, Participant
from outerloop.swarm.consensus.hard_state import ROUNDS_KEPT, HardState
from outerloop.swarm.gather.payload_downloads import PayloadDownloads
from outerloop.swarm.gather.round_store import RoundStore
from outerloop.swarm.storage import Buffer
from outerloop.swarm.timeouts import RETRY_S


class LogTruncated(Exception):
    """The others' logs do not reach back to where this peer stands: it needs their state."""


class CommittedRounds:
    """`own` is this peer's name."""

    def __init__(self, store: RoundStore, pulls: PayloadDownloads, *, own: str) -> None:
        self._store = store
        self._pulls = pulls
        self._own = own
        self._commits: dict[int, Commit] = {}
        self._open = 0  # the round after the last one whose commit is known
        self._landed: int | None = None  # the last round that the trainer has taken; None: it has not said yet
        self._broken: Exception | None = LogTruncated()  # until it is known where the chain begins
        self._news = asyncio.Event()

    def begin(self, memory: HardState) -> None:
        """From what is remembered; genesis, which nobody accepted, is no round."""
        self._commits = {one.commit.number: one.commit for one in memory.log if one.accepts}
        self._open, self._broken = memory.number, None

    def add(self, commit: Commit) -> None:
        """The next round came to this."""
        self._commits[commit.number] = commit
        self._open = commit.number + 1
        self._pulls.drop_all_but(commit.number, commit.participants)
        self._tell()

    def fail(self, error: Exception) -> None:
        """There will be no more rounds here: who waits for one is told why."""
        self._broken = error
        self._tell()

    def leave(self, number: int) -> None:
        """The chain was left for another one that differs from this commit on: what was landed of it does not hold."""
        self._commits = {known: commit for known, commit in self._commits.items() if known < number}
        self._open = number
        if self._landed is None or self._landed >= number:
            self.fail(LogTruncated())

    def outrun(self, number: int) -> None:
        """No log of the others reaches back to this round, where the chain here ended when they were asked."""
        if number >= self._open:
            self.fail(LogTruncated())

    @property
    def too_far(self) -> bool:
        """Whether this peer needs the others' state: what it knows is old, and nobody should go by it."""
        return isinstance(self._broken, LogTruncated)

    def skip_to(self, number: int) -> None:
        """The trainer gets the state as of this commit, as if it had landed it; later ones may be known already."""
        self._commits = {later: commit for later, commit in self._commits.items() if later > number}
        self._open, self._landed, self._broken = max(self._open, number + 1), number, None
        self._tell()

    def digest(self, number: int) -> bytes | None:
        """Of a commit; None when it is forgotten."""
        commit = self._commits.get(number)
        return None if commit is None else commit.digest

    def decided(self, number: int) -> bool:
        """Whether a round came to something already. Raises LogTruncated when this peer is too far behind to know
        what.
        """
        if self._broken is not None:
            raise self._broken
        if number < self._open and number not in self._commits:
            raise LogTruncated
        return number < self._open

    async def take(self, number: int) -> list[tuple[str, Buffer]]:
        """Who took part and with what, as it lies here, in the order of names. Raises LogTruncated.

        Where the chain is left while payloads are fetched, it is what the round comes to on the other chain.
        """
        while not self.decided(number):
            await self._news.wait()
        commit = self._commits[number]
        await self.complete(commit)
        if not self._holds(commit):
            return await self.take(number)
        if self._missing(commit):
            raise LogTruncated
        contents = [(one.peer, self._store.take(number, one)) for one in commit.participants]
        self._landed = number
        self.forget()
        return contents

    async def complete(self, commit: Commit) -> None:
        """Get what a commit names and is not here: from its owner, or from anybody who may have accepted it.

        In vain once the others are so far that nobody keeps it any more: then some of it stays missing. Ends when the
        commit is left or skipped.
        """
        while self._broken is None and self._holds(commit) and (missing := self._missing(commit)):
            others = [peer for peer in commit.roster if peer != self._own]
            pulls = [self._pulls.start(commit.number, one, [one.peer, *others], decided=True) for one in missing]
            await asyncio.wait(pulls)
            if self._missing(commit):
                if commit.number < self._open - ROUNDS_KEPT:
                    return
                await asyncio.sleep(RETRY_S[1])

    def forget(self) -> None:
        """Rounds that nobody can ask for any more and the trainer has taken."""
        if self._landed is not None:
            first = min(self._open - ROUNDS_KEPT, self._landed + 1)
            self._store.forget_before(first)
            self._commits = {number: commit for number, commit in self._commits.items() if number >= first}

    def lacks(self, number: int) -> str:
        """Why a decided round cannot be taken yet, in one line; empty for one that is not decided."""
        if number not in self._commits:
            return ""
        missing = [one.peer for one in self._missing(self._commits[number])]
        return f"round {number}: decided, payloads of {', '.join(missing)} are not here yet"

    def _holds(self, commit: Commit) -> bool:
        """Whether this commit is of the chain as it is known now."""
        return self._commits.get(commit.number) is commit

    def _missing(self, commit: Commit) -> list[Participant]:
        return [one for one in commit.participants if (commit.number, one) not in self._store]

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()
