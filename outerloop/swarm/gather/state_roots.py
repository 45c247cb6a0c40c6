"""Certify states of the run: a state is valid if a majority names it in the chain of commits.

    copy          a donor copies its state as of commit n (donor.py). Each of its next payloads names the state as
                  (n, sha256 of the manifest), until a commit counts one of them; the payload's signature covers it
    count         each commit m > n lists the states that its payloads name (commit.Participant)
    certify       a state is certified once more than half of the other peers in commit m's roster have named it in the
                  commits n + 1 .. m, each peer counted once
    forget        a peer that moves to another chain (forks.py) forgets its states as of the commits that it rolls back,
                  and which peers have named such states

States are named only after a peer has asked for one. Other rounds carry no extra bytes.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from outerloop.swarm.consensus.commit import Commit, State
from outerloop.swarm.consensus.proof import has_majority, voters_of
from outerloop.swarm.notifier import Notifier
from outerloop.swarm.timeouts import HASHED_S, limit
from outerloop.swarm.transfer.sources import ContentUnavailable
from outerloop.swarm.validation import id_of

CERTIFY_ROUNDS = 8
"""Number of commits after commit n that may name the state as of commit n. If one of these commits does not count the
donor's payload, the donor's next payload names the state again."""


class StateRoots:
    """The states that the commits so far have named and certified. Use it from the network thread only.

    `own` is this peer's name.

    own_state          (commit number, sha256) of the state that this peer's payloads name, or None
    votes              state -> ids of the peers that have named it
    certified_states   commit number -> sha256 of the manifest of the certified state as of that commit
    """

    def __init__(self, *, own: str) -> None:
        self._own = own
        self.own_state: State | None = None
        self._hashing = 0  # number of states being hashed
        self._withdrawn_from: int | None = None  # the first commit rolled back while states were being hashed
        self._hashed = asyncio.Event()
        self._hashed.set()
        self.votes: defaultdict[State, set[str]] = defaultdict(set)
        self.certified_states: dict[int, bytes] = {}
        self._last = -1
        self._news = Notifier()

    @contextmanager
    def hashing(self) -> Iterator[None]:
        """Mark the body of a `with` statement as hashing a state. The next payload waits for it, up to HASHED_S."""
        self._hashing += 1
        self._hashed.clear()
        try:
            yield
        finally:
            self._hashing -= 1
            if not self._hashing:
                self._withdrawn_from = None
                self._hashed.set()

    def name(self, number: int, sha: bytes) -> None:
        """Name this peer's state as of commit `number` in its next payloads, until a commit counts one of them.

        `sha`: sha256 of the state's manifest. Does nothing if this peer moved to a chain without this commit while the
        state was being hashed.
        """
        if self._withdrawn_from is None or number < self._withdrawn_from:
            self.own_state = number, sha

    def withdraw(self, number: int) -> None:
        """Stop naming this peer's state if it is as of commit `number` or later, as it may belong to another chain."""
        if self.own_state is not None and self.own_state[0] >= number:
            self.own_state = None
        if self._hashing:
            self._withdrawn_from = number if self._withdrawn_from is None else min(number, self._withdrawn_from)

    def leave(self, number: int) -> None:
        """Forget all states as of commit `number` and later ones, because another chain replaces these commits."""
        self.withdraw(number)
        self._last = min(self._last, number - 1)
        for state in [state for state in self.votes if state[0] >= number]:
            del self.votes[state]
        self.certified_states = {known: sha for known, sha in self.certified_states.items() if known < number}

    async def named_in(self, number: int) -> State | None:
        """Return the state that this peer's payload of round `number` must name, or None.

        Waits up to HASHED_S if a state is being hashed.
        """
        try:
            async with limit(HASHED_S):
                await self._hashed.wait()
        except TimeoutError:
            pass  # a later payload will name the state
        return self.own_state if self.own_state and number_fits(self.own_state, number) else None

    def add(self, commit: Commit) -> None:
        """Count the states that `commit`, the next commit of the chain, names."""
        self._last = commit.number
        for participant in commit.participants:
            if participant.state and number_fits(participant.state, commit.number):
                self.votes[participant.state].add(id_of(participant.peer))
            if participant.state and participant.peer == self._own and participant.state == self.own_state:
                self.own_state = None
        voters = voters_of(id_of(self._own), commit.roster, ())
        for (number, sha), peers in self.votes.items():
            if has_majority(peers, voters):
                self.certified_states.setdefault(number, sha)
        self._forget()
        self._news.notify()

    async def certified(self, number: int) -> bytes:
        """Wait until the state as of commit `number` is certified. Return the sha256 of its manifest.

        Raises ContentUnavailable if it is not certified within CERTIFY_ROUNDS commits.
        """
        while number not in self.certified_states:
            if self._last > number + CERTIFY_ROUNDS:
                raise ContentUnavailable(
                    f"no majority named the same state as of commit {number} within {CERTIFY_ROUNDS} rounds"
                )
            await self._news.wait()
        return self.certified_states[number]

    def describe(self, number: int) -> str:
        """Return a one-line message about how many peers have named the same state as of commit `number`."""
        named = max((len(peers) for (of, _), peers in self.votes.items() if of == number), default=0)
        return f"{named} peers have named the same state in a commit; more than half of the other roster peers must"

    def _forget(self) -> None:
        oldest = self._last - CERTIFY_ROUNDS
        for state in [state for state in self.votes if state[0] < oldest]:
            del self.votes[state]
        self.certified_states = {number: sha for number, sha in self.certified_states.items() if number >= oldest}


def number_fits(state: State, number: int) -> bool:
    """Return whether commit `number` may name `state`: it is 1 to CERTIFY_ROUNDS commits after that of the state."""
    return number - CERTIFY_ROUNDS <= state[0] < number
