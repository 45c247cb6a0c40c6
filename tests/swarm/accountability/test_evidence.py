"""Evidence: who signs what no honest peer signs is guilty for everybody, and nobody can make an honest peer guilty."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, product
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outerloop.swarm.accountability.equivocation import VIEWS_KEPT, EquivocationWatch
from outerloop.swarm.accountability.evidence import MAX_BYTES, MAX_SESSION, Evidence, guilty
from outerloop.swarm.accountability.signed_statement import PAYLOAD, VERDICT, Signed
from outerloop.swarm.consensus.state import ROUNDS_KEPT
from outerloop.swarm.consensus.statements import Statement, accept, ask, prepare, promise, resign, wish
from outerloop.swarm.consensus.statements import commit as vote2
from outerloop.swarm.transfer.signed_payload import sign_payload
from outerloop.swarm.validation import MAX_NUMBER, MAX_VIEW, MalformedMessage
from tests.support.swarm.signed_statements import HEAD, SESSION, Honest, commit, sign, signatures_of, two_accepts

X, Y = commit("X"), commit("Y")
NAME = "000-a"
ANYBODY = signatures_of("z")
"""Who checks needs no key of anybody."""


def evidence_of(one: Statement, other: Statement, *, name: str = NAME) -> Evidence:
    return Evidence.of(SESSION, name, sign(name, one), sign(name, other))


LIES = [
    (accept(3, HEAD, 1, X), accept(3, HEAD, 1, Y), "accepted two proposals for commit 3, view 1"),
    (accept(3, HEAD, 1, X), promise(3, HEAD, 2, None), "promised view 2 of commit 3 and left out"),
    (accept(3, HEAD, 1, X), promise(3, HEAD, 7, (0, X)), "promised view 7 of commit 3 and left out"),
    (accept(3, HEAD, 1, X), promise(3, HEAD, 7, (1, Y)), "left out the proposal that it had accepted in view 1"),
    (prepare(3, HEAD, 1, X, 0), prepare(3, HEAD, 1, Y, 0), "voted twice for commit 3, view 1"),
    (prepare(3, HEAD, 1, X, 0), prepare(3, HEAD, 1, X, -1), "voted twice for commit 3, view 1"),
    (vote2(3, HEAD, 1, X), vote2(3, HEAD, 1, Y), "voted to decide two proposals for commit 3, view 1"),
    (vote2(3, HEAD, 1, X), prepare(3, HEAD, 2, Y, -1), "was locked on a proposal of view 1"),
    (vote2(3, HEAD, 1, X), prepare(3, HEAD, 4, X, 0), "was locked on a proposal of view 1"),
    (resign(3, HEAD), accept(3, HEAD, 1, X), "resigned for commit 3, and voted or promised in view 1"),
    (resign(3, HEAD), promise(3, HEAD, 2, None), "resigned for commit 3, and voted or promised in view 2"),
    (resign(3, HEAD), prepare(3, HEAD, 0, X, -1), "resigned for commit 3, and voted or promised in view 0"),
    (resign(3, HEAD), vote2(3, HEAD, 1, X), "resigned for commit 3, and voted or promised in view 1"),
    ((PAYLOAD, 3, X), (PAYLOAD, 3, Y), "signed two payloads for commit 3"),
    ((PAYLOAD, 3, X, 2, X), (PAYLOAD, 3, X, 2, Y), "signed two payloads for commit 3"),
]
TRUTHS = [
    (resign(3, HEAD), resign(3, HEAD)),
    (resign(3, HEAD), resign(4, HEAD)),
    (resign(3, HEAD), accept(3, Y, 1, X)),
    (resign(3, HEAD), accept(5, HEAD, 1, X)),
    (resign(3, HEAD), (PAYLOAD, 3, X)),
    (accept(3, HEAD, 1, X), accept(3, HEAD, 1, X)),
    (accept(3, HEAD, 1, X), accept(3, HEAD, 2, Y)),
    (prepare(3, HEAD, 1, X, 0), prepare(3, HEAD, 2, Y, 0)),
    (prepare(3, HEAD, 1, X, 0), prepare(3, Y, 1, Y, 0)),
    (vote2(3, HEAD, 1, X), prepare(3, HEAD, 1, Y, 0)),
    (vote2(3, HEAD, 1, X), prepare(3, HEAD, 2, Y, 1)),
    (vote2(3, HEAD, 1, X), prepare(4, HEAD, 2, Y, -1)),
    (vote2(3, HEAD, 1, X), vote2(3, HEAD, 2, Y)),
    (accept(3, HEAD, 1, X), accept(3, Y, 1, Y)),
    (accept(3, HEAD, 1, X), promise(3, Y, 2, None)),
    (accept(3, HEAD, 1, X), accept(4, HEAD, 1, Y)),
    (accept(3, HEAD, 1, X), promise(3, HEAD, 1, None)),
    (accept(3, HEAD, 1, X), promise(4, HEAD, 2, None)),
    (accept(3, HEAD, 1, X), promise(3, HEAD, 2, (1, X))),
    (accept(3, HEAD, 1, X), promise(3, HEAD, 7, (4, Y))),
    (promise(3, HEAD, 1, None), promise(3, HEAD, 2, (1, X))),
    ((PAYLOAD, 3, X), (PAYLOAD, 4, Y)),
    ((PAYLOAD, 3, X), (PAYLOAD, 3, X)),
    ((PAYLOAD, 3, X), accept(3, HEAD, 0, Y)),
]


@pytest.mark.parametrize(("one", "other", "why"), LIES)
def test_two_statements_that_no_honest_peer_makes_prove_its_guilt(one: Statement, other: Statement, why: str) -> None:
    for evidence in (evidence_of(one, other), evidence_of(other, one)):
        assert why in evidence.why and evidence.number == 3
        assert guilty(evidence, ANYBODY) == NAME
        assert Evidence.from_map(msgpack.unpackb(msgpack.packb(evidence.to_map()))) == evidence


@pytest.mark.parametrize(("one", "other"), TRUTHS)
def test_statements_that_an_honest_peer_may_make_prove_nothing(one: Statement, other: Statement) -> None:
    for evidence in (evidence_of(one, other), evidence_of(other, one)):
        assert not evidence.why and not guilty(evidence, ANYBODY)
        with pytest.raises(MalformedMessage, match="contradict"):
            Evidence.from_map(evidence.to_map())


@pytest.mark.parametrize(("auditor", "why"), [("001-b", "reported other inner steps for commit 3"), ("001-a", "")])
def test_the_verdicts_of_two_auditors_are_needed(auditor: str, why: str) -> None:
    """000-a and 001-a are two names of one key."""
    pair = [Signed((VERDICT, 3, name, X, Y, 1), bytes(64)) for name in ("000-a", auditor)]
    found = Evidence.of(SESSION, NAME, *pair).why
    assert found.startswith(why) and bool(found) == bool(why)


def test_the_seal_of_a_payload_is_the_statement_that_counts() -> None:
    """That is: the fields and their order are those of signed_payload.py, without which two payloads would prove
    nothing.
    """
    contents = [
        sign_payload(blob, signatures_of(NAME), session=SESSION, number=3, peer=NAME) for blob in (b"one", b"two")
    ]
    pair = [
        Signed((PAYLOAD, 3, commit(text)), content[:64]) for text, content in zip(("one", "two"), contents, strict=True)
    ]
    assert guilty(Evidence.of(SESSION, NAME, *pair), ANYBODY) == NAME


# nobody is framed


@pytest.mark.parametrize(("one", "other", "why"), LIES)
def test_a_signature_of_another_kind_proves_nothing(one: Statement, other: Statement, why: str) -> None:
    evidence = evidence_of(one, other)
    elsewhere = sign(NAME, evidence.second.statement, session="r/another")
    by_another = sign("001-b", evidence.second.statement)
    as_another = sign("001-a", evidence.second.statement)
    for wrong in (
        replace(evidence, session="r/another"),
        replace(evidence, peer="001-b"),
        replace(evidence, peer="001-a"),
        replace(evidence, second=elsewhere),
        replace(evidence, second=by_another),
        replace(evidence, second=as_another),
        replace(evidence, second=replace(evidence.second, signature=evidence.first.signature)),
    ):
        assert not guilty(wrong, ANYBODY)


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.integers(0, 4), st.sampled_from([X, Y])),
        st.tuples(st.just("promise"), st.integers(0, 5)),
        st.tuples(st.just("seal"), st.sampled_from([X, Y])),
        st.just(("crash",)),
        st.just(("go_on",)),
        st.just(("leave",)),
    ),
    min_size=2,
    max_size=12,
)


def lived(name: str, session: str, events: list[tuple[Any, ...]]) -> Honest:
    peer = Honest(name, session)
    for what, *of in events:
        getattr(peer, what)(*of)
    return peer


@settings(max_examples=200, deadline=None)
@given(EVENTS)
def test_an_honest_peer_never_contradicts_itself_across_crashes(
    events: list[tuple[Any, ...]],
) -> None:
    peer, watch = lived(NAME, SESSION, events), EquivocationWatch(SESSION)
    assert not any(Evidence.of(SESSION, NAME, *pair).why for pair in combinations(peer.said, 2))
    assert not any(watch.saw(NAME, one.statement, one.signature) for one in peer.said)


def contrary(statement: Statement) -> Statement:
    """What no honest peer says that has said this."""
    kind, number, *of = statement
    other = bytes(byte ^ 1 for byte in of[-1] or X)  # type: ignore[union-attr]
    if kind == "promise":
        return accept(int(number), of[0], int(of[1]) - 1, other)  # type: ignore[arg-type]
    return (*statement[:-1], other)


@settings(max_examples=100, deadline=None)
@given(st.data(), EVENTS, EVENTS)
def test_nobody_can_frame_an_honest_peer(data: st.DataObject, events: list[Any], others: list[Any]) -> None:
    """An attacker has all that the peer signed in two sessions, and its own key; it writes and mixes what it likes."""
    honest = [*lived(NAME, SESSION, events).said, *lived(NAME, "r/another", others).said]
    truth = data.draw(st.sampled_from(honest or [sign(NAME, accept(0, HEAD, 0, X))]))
    forged = contrary(truth.statement)
    own = [sign("001-b", forged), sign("001-b", forged, session="r/another"), truth]
    signature = bytearray(data.draw(st.sampled_from(honest + own)).signature)
    for bit in data.draw(st.lists(st.integers(0, 511), max_size=2)):
        signature[bit // 8] ^= 1 << bit % 8
    for session, name in product([SESSION, "r/another"], [NAME, "001-a"]):
        evidence = Evidence.of(session, name, truth, Signed(forged, bytes(signature)))
        assert evidence.why and not guilty(evidence, ANYBODY)


# what strangers send


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("sitting",), ""),
        (("sitting",), "s" * (MAX_SESSION + 1)),
        (("sitting",), "two\nlines"),
        (("peer",), "p" * 129),
        (("peer",), "two\nlines"),
        (("first",), []),
        (("first", 1), bytes(63)),
        (("first", 0), ["accept"]),
        (("first", 0, 0), "view"),
        (("first", 0, 0), 3),
        (("first", 0, 1), -1),
        (("first", 0, 1), MAX_NUMBER + 1),
        (("first", 0, 1), True),
        (("first", 0, 2), MAX_VIEW + 1),
        (("first", 0, 3), bytes(31)),
        (("first", 0, 3), "text"),
        (("first", 0), ["accept", 3, 1, X, X]),
        (("second", 0), ["promise", 3, HEAD, 2, -2, b""]),
        (("second", 0), ["promise", 3, HEAD, 2, -1, X]),
        (("second", 0), ["promise", 3, HEAD, 2, 1, b""]),
        (("second", 0), ["promise", 3, HEAD, 2, -1.0, b""]),
        (("second", 0), ["payload", 3]),
        (("second", 0), ["payload", 3, X, 2]),
        (("second", 0), ["payload", 3, X, 2, Y, 2]),
        (("second", 0), ["payload", 3, X, Y, 2]),
        (("second", 0), ["payload", 3, X, MAX_NUMBER + 1, Y]),
        (("second", 0), ["payload", 3, X, 2, bytes(33)]),
        (("second", 0), ["payload", 3, X, 1.5, Y]),
        (("second", 0), ["payload", 3, X, 2, "text"]),
    ],
)
def test_malformed_evidence_is_refused(path: tuple[Any, ...], value: Any) -> None:
    found = msgpack.unpackb(msgpack.packb(evidence_of(LIES[1][0], LIES[1][1]).to_map()))
    Evidence.from_map(found)
    place = found
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(MalformedMessage):
        Evidence.from_map(found)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=100, deadline=None)
@given(ANYTHING, st.sampled_from(["sitting", "peer", "first", "second", "more"]))
def test_whatever_comes_is_refused_in_one_way_or_proves_nothing(value: Any, key: str) -> None:
    """Another session or peer may be well formed; then the signatures are not of it."""
    for wrong in (
        value,
        {**two_accepts(NAME).to_map(), key: value},
        {**two_accepts(NAME).to_map(), "first": [value, X * 2]},
    ):
        try:
            evidence = Evidence.from_map(wrong)
        except MalformedMessage:
            continue
        assert not guilty(evidence, ANYBODY)


def test_two_statements_have_one_form() -> None:
    evidence = two_accepts(NAME)
    with pytest.raises(MalformedMessage, match="in order"):
        Evidence.from_map(replace(evidence, first=evidence.second, second=evidence.first).to_map())


def test_the_largest_evidence_fits() -> None:
    one, other = (Signed((PAYLOAD, MAX_NUMBER, digest, MAX_NUMBER, X), bytes(64)) for digest in (X, Y))
    largest = Evidence.of("\U0001f310" * MAX_SESSION, "p" * 128, one, other)
    assert Evidence.from_map(largest.to_map()) == largest
    assert MAX_BYTES / 2 < len(msgpack.packb(largest.to_map())) <= MAX_BYTES


# what is remembered of others


def test_a_contradiction_is_seen_in_either_order_and_among_others_statements() -> None:
    for one, other, why in [*LIES, *((other, one, why) for one, other, why in LIES)]:
        watch = EquivocationWatch(SESSION)
        for statement in (wish(3, HEAD, 1), ask(3, HEAD), accept(4, HEAD, 1, Y), one):
            assert watch.saw(NAME, *_of(NAME, statement)) is None
        assert watch.saw("001-b", *_of("001-b", other)) is None, "another peer"
        evidence = watch.saw(NAME, *_of(NAME, other))
        assert evidence is not None and why in evidence.why and guilty(evidence, ANYBODY) == NAME


def _of(name: str, statement: Statement) -> tuple[Statement, bytes]:
    return statement, sign(name, statement).signature


def test_only_rounds_close_to_the_one_at_hand_are_remembered() -> None:
    watch = EquivocationWatch(SESSION)
    watch.begin(100)
    for number in (0, 100 - ROUNDS_KEPT - 1, 100 + ROUNDS_KEPT + 1, MAX_NUMBER):
        watch.saw(NAME, accept(number, HEAD, 0, X), bytes(64))
        assert watch.saw(NAME, accept(number, HEAD, 0, Y), bytes(64)) is None
    watch.saw(NAME, accept(100, HEAD, 0, X), bytes(64))
    watch.begin(100 + ROUNDS_KEPT)
    assert watch.saw(NAME, accept(100, HEAD, 0, Y), bytes(64)) is not None
    watch.begin(100 + ROUNDS_KEPT + 1)
    watch.begin(100)
    assert watch.saw(NAME, accept(100, HEAD, 0, Y), bytes(64)) is None


def test_views_without_end_are_not_remembered() -> None:
    watch = EquivocationWatch(SESSION)
    for view in range(10 * VIEWS_KEPT):
        watch.saw(NAME, accept(0, HEAD, view, X), bytes(64))
        watch.saw(NAME, promise(0, HEAD, view + 1, (view, X)), bytes(64))
    assert all(watch.saw(NAME, accept(0, HEAD, view, Y), bytes(64)) for view in range(9 * VIEWS_KEPT, 10 * VIEWS_KEPT))
    assert watch.saw(NAME, accept(0, HEAD, 9 * VIEWS_KEPT - 2, Y), bytes(64)) is None
