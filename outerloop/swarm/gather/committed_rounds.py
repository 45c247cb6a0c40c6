"""Queue of committed rounds for the trainer: the decided commits, and every payload that they name.

The consensus may be many rounds ahead of the trainer. A round is kept until the trainer has taken it and the other
peers can no longer request it. If the trainer is more than ROUNDS_BEHIND rounds behind, e.g. because it hangs, the
rounds are no longer kept for it, and it has to download the run's state instead.
"""

from __future__ import annotations

import asyncio
import logging

from outerloop.swarm.consensus.commit import Commit, Participant
from outerloop.swarm.consensus.state import ROUNDS_KEPT, HardState
from outerloop.swarm.gather.payload_downloads import PayloadDownloads
from outerloop.swarm.gather.round_store import RoundStore
from outerloop.swarm.notifier import Notifier
from outerloop.swarm.storage import Buffer
from outerloop.swarm.timeouts import RETRY_S

logger = logging.getLogger(__name__)
ROUNDS_BEHIND = 128
"""Maximum number of decided rounds that are stored for the trainer: 16 times as many as every peer stores for others
(ROUNDS_KEPT). A newcomer lands all rounds that are decided while it downloads the state. So a download that takes more
rounds than this fails, however often it is tried."""


class LogTruncated(Exception):
    """This peer must download the run's state: no log reaches back to its last commit, or it has changed chains."""


class CommittedRounds:
    """The decided rounds that the trainer has not taken yet or that other peers may still request.

    `own` is this peer's name.
    """

    def __init__(self, store: RoundStore, downloads: PayloadDownloads, *, own: str) -> None:
        self._store = store
        self._downloads = downloads
        self._own = own
        self._commits: dict[int, Commit] = {}
        self._to_land: dict[int, bytes] = {}  # number -> digest of each commit that the trainer has yet to land
        self._open = 0  # the first round whose commit is unknown
        self._landed: int | None = None  # the last round that the trainer has taken; None: unknown
        self._error: Exception | None = LogTruncated()  # replaced once the start of the chain is known
        self._news = Notifier()

    def begin(self, hard_state: HardState) -> None:
        """Start from the saved log. Skip the genesis commit, which is not a round and which no peer accepted."""
        self._commits = {decided.commit.number: decided.commit for decided in hard_state.log if decided.accepts}
        self._open, self._error = hard_state.number, None

    def add(self, commit: Commit) -> None:
        """Add the commit of the next round, and drop downloads that it does not need."""
        self._commits[commit.number] = commit
        self._open = commit.number + 1
        self._downloads.drop_all_but(commit.number, commit.participants)
        if self._error is None and len(self._commits) > ROUNDS_BEHIND:
            logger.warning(
                "training is more than %d rounds behind, e.g. because it hangs: once it continues, it downloads the"
                " run's state",
                ROUNDS_BEHIND,
            )
            self._error = LogTruncated()
            self.forget()
        self._news.notify()

    def fail(self, error: Exception) -> None:
        """Stop the rounds: raise `error` in every caller that waits for a round."""
        self._error = error
        self._news.notify()

    def leave(self, number: int) -> None:
        """Drop the commits from round `number` on, because another chain replaces them.

        If the trainer has landed one of them, or may have, its state is invalid, and it must download the run's state.
        """
        self._commits = {known: commit for known, commit in self._commits.items() if known < number}
        self._open = number
        if self._landed is None or self._landed >= number:
            self.fail(LogTruncated())

    def log_truncated(self, number: int) -> None:
        """Record that no peer's log reaches back to round `number`, the first one whose commit this peer lacked.

        Does nothing if that commit has arrived since the logs were requested.
        """
        if number >= self._open:
            self.fail(LogTruncated())

    @property
    def needs_state(self) -> bool:
        """Return whether this peer must download the run's state, because it fell too far behind or changed chains."""
        return isinstance(self._error, LogTruncated)

    def skip_to(self, number: int) -> None:
        """Continue after commit `number`. The trainer downloads the state as of that commit instead of landing rounds.

        Keep later commits that are already known.
        """
        self._commits = {later: commit for later, commit in self._commits.items() if later > number}
        self._open, self._landed, self._error = max(self._open, number + 1), number, None
        self._news.notify()

    def digest(self, number: int) -> bytes | None:
        """Return the digest of the commit of round `number`, or None if that commit is not stored."""
        commit = self._commits.get(number)
        return None if commit is None else commit.digest

    def about_to_land(self, commit: Commit) -> None:
        """Record that the trainer is about to land a commit, by its payloads or by the state as of that commit."""
        self._to_land[commit.number] = commit.digest

    def pop_landed_digest(self, number: int) -> bytes:
        """Return the digest of a commit that the trainer has just landed, and forget it.

        The digest is known even if the commit is no longer stored. The trainer's thread calls this once per landing.
        """
        return self._to_land.pop(number)

    def decided(self, number: int) -> bool:
        """Return whether round `number` is decided.

        Raises LogTruncated if this peer is too far behind to know the round's commit. After a call of `fail`, raises
        the error that was passed to it.
        """
        if self._error is not None:
            raise self._error
        if number < self._open and number not in self._commits:
            raise LogTruncated
        return number < self._open

    async def take(self, number: int) -> list[tuple[str, Buffer]]:
        """Wait for the outcome of round `number`. Return (name, stored content) for each participant, sorted by name.

        If this peer moves to another chain while waiting, return the outcome on that chain. Raises LogTruncated if this
        peer is too far behind to get the outcome.
        """
        while not self.decided(number):
            await self._news.wait()
        commit = self._commits[number]
        await self.complete(commit)
        if not self._is_current(commit):
            return await self.take(number)
        if self._missing(commit):
            raise LogTruncated
        contents = [(participant.peer, self._store.take(number, participant)) for participant in commit.participants]
        self._landed = number
        self.about_to_land(commit)
        self.forget()
        return contents

    async def complete(self, commit: Commit) -> None:
        """Download the missing payloads of a commit from their owners or any peer that may have accepted the commit.

        Returns with payloads still missing if the chain is so far ahead that no peer stores them any longer, or if the
        commit is dropped because this peer moved to another chain or skipped the round.
        """
        while self._error is None and self._is_current(commit) and (missing := self._missing(commit)):
            others = [peer for peer in commit.roster if peer != self._own]
            downloads = [
                self._downloads.start(commit.number, participant, [participant.peer, *others], decided=True)
                for participant in missing
            ]
            await asyncio.wait(downloads)
            if self._missing(commit):
                if commit.number < self._open - ROUNDS_KEPT:
                    return
                await asyncio.sleep(RETRY_S[1])

    def begin_round(self, number: int) -> None:
        """Remove the rounds that no peer needs any longer."""
        self.forget()

    def forget(self) -> None:
        """Remove rounds that the trainer has taken, or will not take, and that no other peer can request any longer."""
        first = self._open - ROUNDS_KEPT
        if not self.needs_state:
            if self._landed is None:
                return
            first = min(first, self._landed + 1)
        self._store.forget_before(first)
        self._commits = {number: commit for number, commit in self._commits.items() if number >= first}

    def lacks(self, number: int) -> str:
        """Return one line with the payloads that a decided round still lacks, or "" if the round is not decided."""
        if number not in self._commits:
            return ""
        missing = [participant.peer for participant in self._missing(self._commits[number])]
        if not missing:
            return "decided, all payloads have arrived"
        return f"decided, payloads of {', '.join(missing)} have not arrived yet"

    def _is_current(self, commit: Commit) -> bool:
        """Return whether this commit is still part of the current chain."""
        return self._commits.get(commit.number) is commit

    def _missing(self, commit: Commit) -> list[Participant]:
        return [participant for participant in commit.participants if (commit.number, participant) not in self._store]
