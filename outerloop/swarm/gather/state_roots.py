"""Which state of the run is the right one: the one that a majority names in the chain of commits.

    donor            has copied its state as of commit n (donor.py): its payloads name (n, sha256 of the manifest) under
                     their seals until one is counted
    commit m > n     has what each of its payloads names (commits.Participant); a majority has accepted it
    certified        the state that more than half of the other peers of commit m's roster have named in the commits
                     n + 1 .. m, each peer counted once
    left             when the peer goes over to another chain (forks.py), its states as of the commits that it leaves,
                     and who has named such states, are forgotten

Nothing is named where nobody asked for a state, so a calm round has no byte of this.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from outerloop.swarm.consensus.commit import Commit, State
from outerloop.swarm.gather.proof import most, voters_of
from outerloop.swarm.timeouts import HASHED_S, limit
from outerloop.swarm.transfer.sources import ContentUnavailable
from outerloop.swarm.validation import id_of

CERTIFY_ROUNDS = 8
"""Commits after a state's in which it may be named: a donor that is left out of some names it again in the next."""


class StateRoots:
    """What the commits say; `own` is this peer's name. All of it belongs to the network's thread."""

    def __init__(self, *, own: str) -> None:
        self._own = own
        self._to_name: State | None = None
        self._hashing = 0  # states
        self._left: int | None = None  # the first commit that was left while these are hashed
        self._hashed = asyncio.Event()
        self._hashed.set()
        self._named: defaultdict[State, set[str]] = defaultdict(set)  # the ids of those that name it
        self._certified: dict[int, bytes] = {}
        self._last = -1
        self._news = asyncio.Event()

    @contextmanager
    def hashing(self) -> Iterator[None]:
        """A copied state is being hashed in here: the next payload waits for it, for HASHED_S."""
        self._hashing += 1
        self._hashed.clear()
        try:
            yield
        finally:
            self._hashing -= 1
            if not self._hashing:
                self._left = None
                self._hashed.set()

    def name(self, number: int, sha: bytes) -> None:
        """This peer's payloads name its state as of this commit from now on, until one of them is counted.

        Not if the commit was left while the state was being hashed.
        """
        if self._left is None or number < self._left:
            self._to_name = number, sha

    def take_back(self, number: int) -> None:
        """Name no state of this peer as of this commit or a later one: it may be of another chain."""
        if self._to_name is not None and self._to_name[0] >= number:
            self._to_name = None
        if self._hashing:
            self._left = number if self._left is None else min(number, self._left)

    def leave(self, number: int) -> None:
        """From this commit on the chain is another one."""
        self.take_back(number)
        self._last = min(self._last, number - 1)
        for state in [state for state in self._named if state[0] >= number]:
            del self._named[state]
        self._certified = {known: sha for known, sha in self._certified.items() if known < number}

    async def named_in(self, number: int) -> State | None:
        """Return what this peer's payload of a round names, if anything."""
        try:
            async with limit(HASHED_S):
                await self._hashed.wait()
        except TimeoutError:
            pass  # the payload after it names the state
        return self._to_name if self._to_name and number_fits(self._to_name, number) else None

    def add(self, commit: Commit) -> None:
        """The next commit is known."""
        self._last = commit.number
        for one in commit.participants:
            if one.state and number_fits(one.state, commit.number):
                self._named[one.state].add(id_of(one.peer))
            if one.state and one.peer == self._own and one.state == self._to_name:
                self._to_name = None
        voters = voters_of(id_of(self._own), commit.roster, ())
        for (number, sha), peers in self._named.items():
            if most(peers, voters):
                self._certified.setdefault(number, sha)
        self._forget()
        self._news.set()
        self._news = asyncio.Event()

    async def certified(self, number: int) -> bytes:
        """Return the sha256 of the manifest of the state as of this commit, as soon as it is certified.

        Raises ContentUnavailable when it was not in CERTIFY_ROUNDS commits.
        """
        while number not in self._certified:
            if self._last > number + CERTIFY_ROUNDS:
                raise ContentUnavailable(
                    f"no majority named one state as of commit {number} in {CERTIFY_ROUNDS} rounds"
                )
            await self._news.wait()
        return self._certified[number]

    def told(self, number: int) -> str:
        """How many name a state as of this commit, in one line."""
        named = max((len(peers) for (of, _), peers in self._named.items() if of == number), default=0)
        return f"{named} peers have named it in a commit, and more than half of the roster have to"

    def _forget(self) -> None:
        oldest = self._last - CERTIFY_ROUNDS
        for state in [state for state in self._named if state[0] < oldest]:
            del self._named[state]
        self._certified = {number: sha for number, sha in self._certified.items() if number >= oldest}


def number_fits(state: State, number: int) -> bool:
    """Whether a commit of this number may count who names a state."""
    return number - CERTIFY_ROUNDS <= state[0] < number
