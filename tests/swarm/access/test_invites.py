"""Tokens and admissions: what is signed by whom, and that nothing in them can be changed."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Any

import msgpack
import pytest

from outerloop.swarm.access.admissions import Removal, Statement
from outerloop.swarm.access.invites import MAX_RUN, MAX_TOKEN, PREFIX, Binding, Invite, Token, digest_of_list, may_look
from outerloop.swarm.access.register_files import packed, parsed
from outerloop.swarm.invites.invite_client import STATEMENT_BYTES
from outerloop.swarm.p2p.stream_gate import REQUEST_BYTES
from outerloop.swarm.validation import MAX_NUMBER, MalformedMessage
from tests.support.swarm.dht_scene import id_of, trust
from tests.support.swarm.invite_scene import LISTED, NOW_S, RUN, A, B, X, Y, admission, token, withdrawal

OWN = trust(B).signatures
LONGEST: dict[str, Any] = {"run": "r" * MAX_RUN, "name": "n" * 32, "expires_s": 1 << 40, "rounds": MAX_NUMBER}


def test_a_token_survives_being_copied() -> None:
    one = token(rounds=5)
    assert Token.from_text(one.to_text()) == one
    assert one.invite.issuer == id_of(A) and one.invite.name == "lab" and one.invite.rounds == 5
    assert one.invite.listed == digest_of_list(reversed(LISTED)) != digest_of_list(LISTED[:2])


def test_two_tokens_differ() -> None:
    assert token().invite.digest != token().invite.digest


def resigned(invite: Invite, seed: bytes) -> str:
    return PREFIX + base64.urlsafe_b64encode(msgpack.packb([invite.to_list(), seed])).decode().rstrip("=")


def test_a_token_with_the_longest_values_fits_the_limits() -> None:
    one = token(**LONGEST)
    assert len(one.to_text()) <= MAX_TOKEN
    row = msgpack.packb(packed(admission(one, number=MAX_NUMBER, at_s=1 << 40)))
    assert len(row) <= STATEMENT_BYTES and len(msgpack.packb({"tell": None})) + len(row) <= REQUEST_BYTES


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "starts with"),
        ("hello", "starts with"),
        (token().to_text()[1:], "starts with"),
        (token().to_text()[:-9], "incomplete"),
        (PREFIX + "A" * MAX_TOKEN, "at most"),
        (PREFIX + "é", "starts with"),
        (PREFIX, "incomplete"),
        (PREFIX + "gA", "two parts"),
        (resigned(replace(token().invite, name="other"), token().seed), "damaged"),
        (resigned(token().invite, token().seed), "damaged"),
        (resigned(replace(token().invite, issuer=id_of(B)), bytes(32)), "damaged"),
    ],
)
def test_any_other_text_is_refused(text: str, reason: str) -> None:
    with pytest.raises(MalformedMessage, match=reason):
        Token.from_text(text)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("run", "winter"),
        ("issuer", id_of(B)),
        ("key", id_of(X)),
        ("listed", bytes(32)),
        ("name", "x"),
        ("expires_s", NOW_S + 10**6),
        ("rounds", 9),
        ("signature", bytes(64)),
    ],
)
def test_every_value_of_an_invite_is_signed(field: str, value: Any) -> None:
    one = admission(token())
    assert one.is_signed(OWN)
    changed = replace(one, binding=replace(one.binding, invite=replace(one.invite, **{field: value})))
    assert not changed.invite.is_signed(OWN) and not changed.is_signed(OWN)


@pytest.mark.parametrize(
    ("field", "value"), [("receiver", id_of(A)), ("at_s", NOW_S - 1), ("number", 1), ("signature", bytes(64))]
)
def test_every_value_of_an_admission_is_signed(field: str, value: Any) -> None:
    assert not replace(admission(token()), **{field: value}).is_signed(OWN)


def test_only_the_token_names_a_peer() -> None:
    """Whoever sees the binding of one peer cannot make that of another."""
    one = admission(token())
    assert not replace(one, binding=replace(one.binding, peer=id_of(Y))).is_signed(OWN)
    of_another_token = Binding(one.invite, id_of(Y), token().binding(id_of(Y)).signature)
    assert not of_another_token.is_signed(OWN)


def test_a_look_proves_the_token_of_one_visitor() -> None:
    one = token()
    assert may_look(one.invite, id_of(X), one.look(id_of(X)), OWN)
    assert not may_look(one.invite, id_of(Y), one.look(id_of(X)), OWN)
    assert not may_look(one.invite, id_of(X), one.binding(id_of(X)).signature, OWN), "another purpose"
    assert not may_look(one.invite, id_of(X), None, OWN)


def test_the_number_of_rounds_counts_from_the_admission() -> None:
    assert admission(token(rounds=3), number=10).last == 12
    assert admission(token(), number=10).last is None


def test_a_removal_is_signed() -> None:
    one = Removal.new(trust(A).signatures, run=RUN, peer=id_of(X), lifted=False, at_s=NOW_S)
    assert one.is_signed(OWN)
    for change in ({"lifted": True}, {"peer": id_of(Y)}, {"by": id_of(B)}, {"at_s": NOW_S + 1}, {"run": "winter"}):
        assert not replace(one, **change).is_signed(OWN)


@pytest.mark.parametrize(
    ("field", "value"),
    [("issuer", id_of(B)), ("digest", bytes(32)), ("expires_s", NOW_S), ("at_s", 1), ("run", "winter")],
)
def test_every_value_of_a_withdrawal_is_signed(field: str, value: Any) -> None:
    one = withdrawal(token())
    assert one.is_signed(OWN) and not replace(one, **{field: value}).is_signed(OWN)


STATEMENTS: list[Statement] = [
    admission(token()),
    Removal.new(trust(A).signatures, run=RUN, peer=id_of(X), lifted=True, at_s=1),
    withdrawal(token()),
]


@pytest.mark.parametrize("statement", STATEMENTS)
def test_statements_survive_the_wire(statement: Statement) -> None:
    assert parsed(msgpack.unpackb(msgpack.packb(packed(statement)))) == statement


@pytest.mark.parametrize("statement", STATEMENTS)
def test_statements_of_another_form_are_refused(statement: Statement) -> None:
    kind, content = packed(statement)
    for value in (None, [], [kind], [kind, None], ["other", content], [kind, content[1:]], [content, kind]):
        with pytest.raises(MalformedMessage):
            parsed(value)
    for index in range(len(content)):
        with pytest.raises(MalformedMessage):
            parsed([kind, [*content[:index], {}, *content[index + 1 :]]])


@pytest.mark.parametrize(("index", "value"), [(0, "r" * 65), (0, ""), (0, "\x1b"), (4, "a b"), (4, "n" * 33), (5, -1)])
def test_an_invite_of_another_form_is_refused(index: int, value: Any) -> None:
    content = token().invite.to_list()
    content[index] = value
    with pytest.raises(MalformedMessage):
        Invite.from_list(content)
