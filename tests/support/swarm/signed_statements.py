"""Statements of peers in memory, signed with the key that each name gives: of honest ones, and of ones that lie."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from outerloop.swarm.access.signatures import KeySigner, Signatures
from outerloop.swarm.accountability.evidence import Evidence
from outerloop.swarm.accountability.signed_statement import PAYLOAD, Signed
from outerloop.swarm.consensus.statements import Statement, accept, promise
from outerloop.swarm.validation import id_of
from tests.support.swarm.memory_keys import key_of, public_of

SESSION = "r/0123456789abcdef"
HEAD = hashlib.sha256(b"head").digest()


def commit(letter: str) -> bytes:
    """A digest."""
    return hashlib.sha256(letter.encode()).digest()


def signatures_of(name: str) -> Signatures:
    return Signatures(key_of(id_of(name)), public_of=public_of)


def sign(name: str, statement: Statement, *, session: str = SESSION) -> Signed:
    """As signatures.py and signed_payload.py do."""
    if statement[0] != PAYLOAD:
        return Signed(statement, KeySigner(signatures_of(name), session=session, own=name).sign(statement))
    context, number, *said = statement
    return Signed(statement, signatures_of(name).sign(str(context), session, number, name, *said))


def two_accepts(name: str, *, number: int = 3, view: int = 0, session: str = SESSION) -> Evidence:
    """What a peer leaves that accepts X and Y in one view."""
    pair = [sign(name, accept(number, HEAD, view, commit(letter)), session=session) for letter in "XY"]
    return Evidence.of(session, name, *pair)


@dataclass
class Honest:
    """A peer that votes by the rules of paxos/__init__.py in one session. `disk` is saved before anything is said.

    `said` is all that it ever signs: of its present life and of those before a crash.
    """

    name: str
    session: str = SESSION
    number: int = 0
    promised: int = 0
    accepted: tuple[int, bytes] | None = None
    head: bytes = HEAD
    sealed: dict[int, bytes] = field(default_factory=dict)
    said: list[Signed] = field(default_factory=list)

    def take(self, view: int, digest: bytes) -> None:
        """A proposal: accepted when it is of no earlier view than promised, and no second one of a view."""
        told = self.accepted
        if view >= self.promised and (told is None or told[0] < view or told == (view, digest)):
            self.promised, self.accepted = view, (view, digest)
            self._say(accept(self.number, self.head, view, digest))

    def promise(self, view: int) -> None:
        if view > self.promised:
            self.promised = view
            self._say(promise(self.number, self.head, view, self.accepted))

    def seal(self, digest: bytes) -> None:
        """One payload a round, whatever the trainer offers after a restart."""
        self._say((PAYLOAD, self.number, self.sealed.setdefault(self.number, digest)))

    def crash(self) -> None:
        """It says again what it finds on disk."""
        if self.accepted is not None:
            self._say(accept(self.number, self.head, *self.accepted))

    def go_on(self) -> None:
        """The round came to something."""
        self._begin(self.number + 1)

    def leave(self) -> None:
        """For another chain, which parted from this one some rounds ago."""
        self._begin(max(0, self.number - 2))

    def _begin(self, number: int) -> None:
        """After a head that it has not had before."""
        self.number, self.promised, self.accepted = number, 0, None
        self.head = hashlib.sha256(self.head).digest()

    def _say(self, statement: Statement) -> None:
        self.said.append(sign(self.name, statement, session=self.session))
