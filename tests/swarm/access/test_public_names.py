"""Public names: what may be one, who may state it, and which of several statements counts."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outerloop.swarm.access.public_names import (
    MAX_BYTES,
    MAX_CHARACTERS,
    KnownNames,
    PublicName,
    flaw,
    normal_form,
    normalized,
)
from outerloop.swarm.validation import MalformedMessage
from outerloop.types import UserError
from tests.support.swarm.dht_scene import id_of, trust

A, B = 1, 2
HOSTILE = {
    "a line break": "Ada\nroot@host:~# ",
    "an escape sequence": "\x1b[2J\x1b[31mAda",
    "a bell": "Ada\a",
    "a zero byte": "Ada\0",
    "text from right to left": "\u202egnp.ada",
    "an isolate of directions": "\u2066Ada\u2069",
    "an invisible character": "A\u200bda",
    "a line separator": "Ada\u2028Bob",
    "a soft hyphen": "A\u00adda",
    "a private character": "\ue000",
    "an unassigned character": "\U0010fffe",
    "half of a pair": "\ud800",
    "marks over the line": "a" + "\u0300" * 4,
    "an enclosing mark too much": "a" + "\u20dd" * 3,
    "10 kB": "a" * 10_000,
    "a character too much": "a" * (MAX_CHARACTERS + 1),
}
ALLOWED = ["", "Ada's laptop", "GPU #3 (Zürich)", "<script>alert(1)</script>", "[red]x[/red]", "nan", "深圳", "🙂" * 64]


def statement(text: Any, *, by: int = A, run: str = "r", time_s: Any = 7) -> bytes:
    """A correctly signed statement, whatever its text."""
    signed = trust(by).signatures.sign("public_name", run, text, time_s)
    return msgpack.packb([text, time_s, signed], unicode_errors="surrogatepass")


def learned(*statements: bytes, peer: int = A) -> dict[str, str]:
    names = KnownNames(trust(B).signatures, run="r")
    for one in statements:
        names.learn(id_of(peer), one)
    return names.texts()


@pytest.mark.parametrize("text", ALLOWED)
def test_a_printable_text_is_a_name_and_stays_as_it_is(text: str) -> None:
    """Markup is no danger by itself: every place that shows a name shows it as text."""
    assert normalized(text) == text
    assert PublicName.from_bytes(statement(text)).text == text
    assert learned(statement(text)) == ({id_of(A): text} if text else {})


@pytest.mark.parametrize("what", HOSTILE)
def test_a_text_that_would_not_be_shown_as_one_short_line_is_no_name(what: str) -> None:
    with pytest.raises(UserError) as refused:
        normalized(HOSTILE[what])
    assert str(refused.value).isprintable() and len(str(refused.value)) < 1000
    if what != "half of a pair":
        with pytest.raises(MalformedMessage):
            PublicName.from_bytes(statement(HOSTILE[what]))
        assert learned(statement(HOSTILE[what])) == {}


def test_what_a_user_types_is_brought_into_normal_form_and_nothing_else_is_accepted() -> None:
    assert normalized("  Ada   Lovelace ") == "Ada Lovelace"
    assert normalized("Zu\u0308rich") == "Z\u00fcrich"
    for text in (" Ada", "Ada  Lovelace", "Zu\u0308rich"):
        assert learned(statement(text)) == {}


@given(st.text(max_size=200))
def test_every_name_is_one_printable_line(text: str) -> None:
    chosen = normal_form(text)
    assert flaw(chosen) or (chosen.isprintable() and len(chosen) <= MAX_CHARACTERS and normal_form(chosen) == chosen)


def test_a_name_counts_for_the_peer_that_signed_it_in_this_run_only() -> None:
    assert learned(statement("Ada")) == {id_of(A): "Ada"}
    assert learned(statement("Ada", by=B)) == {}, "of another peer"
    assert learned(statement("Ada", run="s")) == {}, "of another run"
    text, time_s, signed = msgpack.unpackb(statement("Ada"))
    assert learned(msgpack.packb(["Eve", time_s, signed])) == {}, "changed on its way"
    assert learned(msgpack.packb([text, time_s + 1, signed])) == {}, "with another time"


def test_of_two_statements_the_later_counts_and_an_empty_one_takes_the_name_back() -> None:
    first, second, nameless = (statement(text, time_s=n) for n, text in enumerate(["Ada", "Ada L", ""], 7))
    assert learned(first, second) == learned(second, first) == {id_of(A): "Ada L"}
    assert learned(first, second, nameless) == learned(nameless, second) == {}


def test_two_peers_may_have_one_name() -> None:
    names = KnownNames(trust(A).signatures, run="r")
    assert names.learn(id_of(A), statement("Ada")) and names.learn(id_of(B), statement("Ada", by=B))
    assert names.texts() == {id_of(A): "Ada", id_of(B): "Ada"}
    names.keep_only([id_of(B)])
    assert names.texts() == {id_of(B): "Ada"} and list(names.statements()) == [id_of(B)]


@pytest.mark.parametrize(
    "content",
    [
        None,
        "Ada",
        b"",
        b"\xc1",
        b"x" * (MAX_BYTES + 1),
        msgpack.packb({"text": "Ada"}),
        msgpack.packb(["Ada", 7]),
        msgpack.packb([float("nan"), 7, b"s" * 64]),
        msgpack.packb([b"Ada", 7, b"s" * 64]),
        msgpack.packb(["Ada", float("nan"), b"s" * 64]),
        msgpack.packb(["Ada", -1, b"s" * 64]),
        msgpack.packb(["Ada", 7, b"s" * 63]),
        msgpack.packb(["Ada", 7, "s" * 64]),
    ],
)
def test_a_malformed_statement_is_refused(content: Any) -> None:
    with pytest.raises(MalformedMessage):
        PublicName.from_bytes(content)
    assert learned(content) == {}


def test_the_longest_name_fits() -> None:
    longest = PublicName.signed(trust(A).signatures, run="r", text="🙂" * MAX_CHARACTERS, time_s=1 << 40)
    assert len(longest.to_bytes()) <= MAX_BYTES and PublicName.from_bytes(longest.to_bytes()) == longest
