"""Public names of peers: short texts that peers choose, signed by their keys so that other peers can pass them on.

    statement   msgpack of [text, time, signature];  signature over ["public_name", run, text, time]
    text        the name. An empty text withdraws an earlier name
    time        Unix time in seconds of the start of the process that signed. Of two statements of a peer, the later one
                counts

A name does not prove who holds the key: any number of peers may have the same name, and no name is reserved. So a name
is always shown together with the peer id. Names are shown in terminals, logs and pages. So a text is refused unless it

    is printable, which excludes line breaks, escape sequences, invisible characters, and characters that change the
        direction of text
    has at most MAX_CHARACTERS characters
    is in Unicode's normal form C, without spaces at its ends or several spaces in a row
    has at most MAX_MARKS combining marks in a row
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection
from dataclasses import dataclass

import msgpack

from outerloop.swarm.access.signatures import Signatures
from outerloop.swarm.validation import MAX_NUMBER, MalformedMessage, checked_int, quote, row, signature, unpacked
from outerloop.types import UserError, printable

CONTEXT = "public_name"
MAX_CHARACTERS = 64
"""Maximum number of characters of a name."""
MAX_MARKS = 2
"""Maximum number of combining marks in a row. Languages need up to two; more draw over the lines above and below."""
MAX_BYTES = 512
"""Maximum size of a statement: 64 characters of up to 4 bytes each, the time and the signature."""


@dataclass(frozen=True)
class PublicName:
    """A peer's statement of its public name. `time_s`: Unix time of the statement. `signature`: of that peer."""

    text: str
    time_s: int
    signature: bytes

    @staticmethod
    def signed(signatures: Signatures, *, run: str, text: str, time_s: int) -> PublicName:
        """Sign a name as this peer. `text`: what `normalized` returned."""
        return PublicName(text, time_s, signatures.sign(CONTEXT, run, text, time_s))

    def is_signed(self, signatures: Signatures, *, run: str, by: str) -> bool:
        """Return whether the peer `by` (id) has signed this statement for this run."""
        return signatures.verify(self.signature, CONTEXT, run, self.text, self.time_s, by=by)

    def to_bytes(self) -> bytes:
        return msgpack.packb([self.text, self.time_s, self.signature])

    @staticmethod
    def from_bytes(content: object) -> PublicName:
        """Parse a statement from another peer. The signature is not verified.

        Raises MalformedMessage if it is invalid.
        """
        if type(content) is not bytes or len(content) > MAX_BYTES:
            raise MalformedMessage(f"a public name must be at most {MAX_BYTES} bytes; got {quote(content)}")
        value = unpacked(content, "a public name")
        text, time_s, signed = row(value, 3, "a public name must be [text, time, signature]")
        if type(text) is not str or flaw(text) or text != normal_form(text):
            raise MalformedMessage(f"a public name must be a short printable text; got {quote(text)}")
        return PublicName(
            text,
            checked_int(time_s, "the time of a public name", maximum=MAX_NUMBER),
            signature(signed, "the signature of a public name"),
        )


def normalized(text: str) -> str:
    """Return a user's choice of a public name in normal form. Raises UserError if it cannot be shown safely."""
    chosen = normal_form(text)
    if why := flaw(chosen):
        raise UserError(f"exchange.public_name={printable(chosen)[:MAX_CHARACTERS]} {why}: set a short, plain name")
    return chosen


def normal_form(text: str) -> str:
    """Return a text in Unicode's normal form C, without spaces at its ends or several spaces in a row."""
    return re.sub(" +", " ", unicodedata.normalize("NFC", text)).strip(" ")


def flaw(text: str) -> str:
    """Return why a text may not be a public name, or "" if it may."""
    if len(text) > MAX_CHARACTERS:
        return f"has {len(text)} characters, more than {MAX_CHARACTERS}"
    if not text.isprintable():
        return "contains characters that are not printable"
    marks = "".join("m" if unicodedata.category(character) in ("Mn", "Me") else "." for character in text)
    return f"has more than {MAX_MARKS} combining marks in a row" if "m" * (MAX_MARKS + 1) in marks else ""


class KnownNames:
    """The latest statement of each peer whose name this peer has learned.

    `signatures` verifies the statements. `run`: the run id, which the signatures cover. `texts` may be called from any
    thread.
    """

    def __init__(self, signatures: Signatures, *, run: str) -> None:
        self._signatures, self._run = signatures, run
        self._known: dict[str, PublicName] = {}

    def learn(self, peer: str, statement: bytes) -> bool:
        """Store the statement of a peer (id) if it is valid and later than the stored one. Return whether it is new."""
        try:
            name = PublicName.from_bytes(statement)
        except MalformedMessage:
            return False
        known = self._known.get(peer)
        if known is not None and known.time_s >= name.time_s:
            return False
        if not name.is_signed(self._signatures, run=self._run, by=peer):
            return False
        self._known = {**self._known, peer: name}
        return True

    def keep_only(self, peers: Collection[str]) -> None:
        """Forget the names of all peers except these (ids)."""
        self._known = {peer: name for peer, name in self._known.items() if peer in peers}

    def statements(self) -> dict[str, bytes]:
        """Return peer id -> statement, for all peers whose statements are known."""
        return {peer: name.to_bytes() for peer, name in self._known.items()}

    def texts(self) -> dict[str, str]:
        """Return peer id -> public name, for all peers that have a name."""
        return {peer: name.text for peer, name in self._known.items() if name.text}
