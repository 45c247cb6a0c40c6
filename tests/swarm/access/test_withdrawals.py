"""Withdrawn invites: what peers conclude from admissions and withdrawals, in whatever order they arrive."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from itertools import permutations
from typing import Any

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outerloop.swarm.access import invited_peers
from outerloop.swarm.access.admissions import Admission, Statement, Withdrawal
from outerloop.swarm.access.invite_register import FUTURE_S
from outerloop.swarm.access.invited_peers import KEEP_S, InvitedPeers
from outerloop.swarm.access.register_files import REGISTER, WITHDRAWAL, packed, write_waiting
from outerloop.swarm.validation import MalformedMessage
from outerloop.types import UserError
from tests.support.swarm.dht_scene import id_of
from tests.support.swarm.invite_scene import NOW_S, A, B, C, Peer, X, Y, admission, removal, token, withdrawal
from tests.support.swarm.memory_network import MemoryNetwork

TOKENS = [(A, token(A)), (A, token(A)), (B, token(B))]
"""Issuers and their tokens."""
ADMISSIONS = [
    admission(one, peer, receiver=receiver, at_s=NOW_S + at_s)
    for _, one in TOKENS
    for peer, receiver, at_s in [(X, B, 0), (X, C, 2), (Y, B, 1), (Y, C, 4), (Y, A, 2)]
]
WITHDRAWALS = [withdrawal(one, by=issuer, at_s=NOW_S + at_s) for issuer, one in TOKENS for at_s in range(5)]
FOREIGN = [withdrawal(one, by=C, at_s=NOW_S) for _, one in TOKENS]
"""By a listed peer that has not issued the invites."""
FORGED = [replace(one, signature=bytes(64)) for one in WITHDRAWALS]
REMOVALS = [removal(X), removal(X, lifted=True, at_s=NOW_S + 1), removal(Y)]
UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
ANY = st.lists(st.sampled_from([*ADMISSIONS, *WITHDRAWALS, *FOREIGN, *REMOVALS]), max_size=30)


def peer(number: int = A, like: Peer | None = None) -> Peer:
    return Peer(MemoryNetwork(), number, disk=like.disk if like else None)


def add(one: Peer, *statements: Statement) -> None:
    """As separate messages, the forged ones among which are refused."""
    for statement in statements:
        try:
            asyncio.run(one.register.add([statement]))
        except MalformedMessage:
            assert statement in FORGED


def merged(statements: list[Statement]) -> InvitedPeers:
    out = InvitedPeers()
    for one in statements:
        out = out.with_statement(one)
    return out


def users(statements: list[Any]) -> set[tuple[bytes, str]]:
    """The digests of the used invites and their users, by the rule, from all statements at once."""
    out = set()
    for issuer, one in TOKENS:
        digest = one.invite.digest
        mine = [one for one in statements if isinstance(one, Admission) and one.invite.digest == digest]
        first = min(mine, key=lambda one: (one.at_s, one.peer), default=None)
        withdrawn_s = [
            one.at_s
            for one in statements
            if isinstance(one, Withdrawal) and one.digest == digest and one.issuer == id_of(issuer)
        ]
        if first is not None and first.at_s < min(withdrawn_s, default=1 << 60):
            out.add((digest, first.peer))
    return out


@UNTIMED
@given(ANY, st.randoms(use_true_random=False))
def test_any_order_and_repetition_gives_the_same_result(statements: list[Statement], rng: random.Random) -> None:
    shuffled = [*statements, *rng.choices(statements, k=len(statements))] if statements else []
    rng.shuffle(shuffled)
    one, other = merged(statements), merged(shuffled)
    assert one == other and one.shared == other.shared
    assert {(used.invite.digest, used.peer) for used in one.used} == users(statements)
    assert one.last.keys() == {peer for _, peer in users(statements)}


@UNTIMED
@given(st.lists(st.sampled_from(WITHDRAWALS), max_size=15), st.randoms(use_true_random=False))
def test_the_same_withdrawals_are_kept_if_there_are_too_many(statements: list[Statement], rng: random.Random) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(invited_peers, "MAX_PER_ISSUER", 1)
        shuffled = list(statements)
        rng.shuffle(shuffled)
        kept = merged(statements).withdrawals
        assert kept == merged(shuffled).withdrawals
        assert len(kept) == len({one.issuer for one in statements if isinstance(one, Withdrawal)})


def test_withdrawals_are_limited_by_issuer_and_in_total(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invited_peers, "MAX_PER_ISSUER", 2)
    monkeypatch.setattr(invited_peers, "MAX_ADMISSIONS", 3)
    of_a = [withdrawal(token(A), by=A, at_s=NOW_S + at_s) for at_s in (1, 2, 3)]
    of_b = [withdrawal(token(B), by=B, at_s=NOW_S + at_s) for at_s in (4, 5)]
    for order in permutations([*of_a, *of_b]):
        assert merged(list(order)).shared == [*of_a[:2], of_b[0]]
    assert merged([*of_a]).number_by(id_of(A)) == 2


@settings(UNTIMED, max_examples=25)
@given(
    st.lists(st.sampled_from([*ADMISSIONS, *WITHDRAWALS, *FOREIGN, *FORGED]), max_size=12),
    st.randoms(use_true_random=False),
)
def test_registers_agree_whatever_the_order_and_ignore_forgeries(
    statements: list[Statement], rng: random.Random
) -> None:
    one, other, shuffled = peer(A), peer(B), list(statements)
    rng.shuffle(shuffled)
    add(one, *statements)
    add(other, *shuffled)
    assert one.register.peers.shared == other.register.peers.shared == peer(A, like=one).register.peers.shared
    valid = [statement for statement in statements if statement not in FORGED]
    assert one.register.peers.last.keys() == {name for _, name in users(valid)}
    for name in (id_of(X), id_of(Y)):
        assert (name in one.trust.allow) == (name in other.trust.allow) == (name in one.register.peers.last)


@pytest.mark.parametrize(("used_s", "counts"), [(-1, True), (0, False), (1, False)])
def test_a_token_counts_as_used_only_before_the_second_of_its_withdrawal(used_s: int, counts: bool) -> None:
    of = token()
    statements = [admission(of, at_s=NOW_S + used_s), withdrawal(of)]
    for order in permutations(statements):
        one = peer()
        add(one, *order)
        for each in (one, peer(like=one)):
            assert (id_of(X) in each.trust.allow) is counts
            why = "" if counts else "used an invite that had been withdrawn"
            assert each.trust.allow.why_not(id_of(X)) == why


def test_the_first_use_decides_if_a_token_was_used_twice() -> None:
    of = token()
    uses = [admission(of, X, at_s=NOW_S), admission(of, Y, at_s=NOW_S + 9)]
    for at_s, admitted in ((-1, set()), (5, {id_of(X)}), (20, {id_of(X)})):
        for order in permutations([*uses, withdrawal(of, at_s=NOW_S + at_s)]):
            assert merged(list(order)).last.keys() == admitted


def test_a_peer_with_another_invite_stays() -> None:
    first, second = token(), token(B)
    for order in permutations([admission(first), withdrawal(first), admission(second)]):
        one = peer()
        add(one, *order)
        assert id_of(X) in one.trust.allow and not one.register.peers.too_late


def test_only_the_issuer_withdraws_an_invite() -> None:
    one, of = peer(), token(A)
    add(one, withdrawal(of, by=C), admission(of))
    assert id_of(X) in one.trust.allow
    add(one, withdrawal(of, by=A))
    assert id_of(X) not in one.trust.allow, "the other one does not take its place"


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        (withdrawal(token(run="winter"), run="winter"), "for run winter"),
        (withdrawal(token(X), by=X), "not listed"),
        (withdrawal(token(), at_s=NOW_S + 101), "had expired"),
        (withdrawal(token(expires_s=NOW_S - KEEP_S - 1), at_s=NOW_S - KEEP_S - 9), "had expired"),
        (withdrawal(token(expires_s=NOW_S + 9999), at_s=NOW_S + FUTURE_S + 1), "future"),
    ],
)
def test_withdrawals_that_do_not_count_change_nothing(statement: Withdrawal, why: str) -> None:
    one = peer()
    assert why in one.register.objection(statement)
    add(one, statement)
    assert one.register.peers == InvitedPeers() and REGISTER not in one.disk


def test_the_last_of_these_limits_is_accepted() -> None:
    for statement in (
        withdrawal(token(), at_s=NOW_S + 100),
        withdrawal(token(expires_s=NOW_S - KEEP_S), at_s=NOW_S - KEEP_S - 9),
        withdrawal(token(expires_s=NOW_S + 9999), at_s=NOW_S + FUTURE_S),
    ):
        one = peer()
        add(one, statement)
        assert one.register.peers.shared == [statement]


def test_an_unlisted_issuer_withdraws_nothing_after_the_next_start() -> None:
    one, of = peer(), token(B)
    add(one, withdrawal(of, by=B))
    one.trust.allow.configured = frozenset({id_of(A), id_of(C)})
    assert "not listed" in one.register.objection(withdrawal(of, by=B))


def test_of_several_withdrawals_of_a_token_one_signature_is_checked() -> None:
    one, of = peer(), token()
    many = [withdrawal(of, at_s=NOW_S + at_s) for at_s in (3, 1, 2)]
    assert one.register.cost([*many, replace(many[1])]) == 1
    assert asyncio.run(one.register.add(many)) == [many[1]]
    assert one.register.cost(many[1:2]) == 0


def test_the_withdrawal_of_an_expired_token_is_dropped() -> None:
    one, of = peer(), token()
    add(one, withdrawal(of))
    one.now_s = of.invite.expires_s + KEEP_S
    one.register.forget_outdated()
    assert len(one.register.peers.withdrawals) == 1
    again = peer(like=one)
    one.now_s += 1
    one.register.forget_outdated()
    add(one, withdrawal(of))
    assert not one.register.peers.withdrawals and not one.register.peers.shared
    assert again.register.peers.withdrawals, "the clock of this one is behind"


def test_it_is_kept_as_long_as_it_refuses_a_known_admission() -> None:
    of = token()
    late, statement = admission(of, at_s=NOW_S + 50), withdrawal(of)
    one = peer()
    add(one, late, statement)
    one.now_s = NOW_S + 10 * KEEP_S
    one.register.forget_outdated()
    assert one.register.peers.shared == [late, statement]

    other = peer(B)
    other.now_s = one.now_s
    add(other, statement)
    assert not other.register.peers.shared, "the invite has expired, and no admission is known"
    asyncio.run(other.register.add(one.register.peers.shared))
    assert other.register.peers.shared == [late, statement] and id_of(X) not in other.trust.allow


@pytest.mark.parametrize(("by", "used_s"), [(A, -5), (C, 5)])
def test_one_that_refuses_no_admission_is_dropped_in_time(by: int, used_s: int) -> None:
    """One that came after the use, and one of a peer that has not issued the invite."""
    of = token()
    used, statement = admission(of, at_s=NOW_S + used_s), withdrawal(of, by=by)
    one = peer()
    add(one, used, statement)
    assert one.register.peers.shared == [used, statement]
    one.now_s = of.invite.expires_s + KEEP_S + 1
    for each in (one, peer(like=one)):
        each.now_s = one.now_s
        each.register.forget_outdated()
        assert each.register.peers.shared == [used] and id_of(X) in each.trust.allow


def test_a_peer_that_used_a_withdrawn_token_learns_it() -> None:
    own, of = peer(X), token()
    add(own, admission(of))
    assert not own.removed
    add(own, withdrawal(of))
    assert own.removed == peer(X, like=own).removed == "used an invite that had been withdrawn"


def test_what_a_peer_is_shown_that_may_not_take_part() -> None:
    of = token()
    first, second, statement = admission(of, X), admission(of, Y, at_s=NOW_S + 9), withdrawal(of)
    known = merged([first, second])
    assert known.stopped_by(first) == known.stopped_by(second) == (first, {id_of(Y)})
    known = known.with_statement(statement)
    for one in (first, second, statement):
        assert known.stopped_by(one) == (statement, {id_of(X), id_of(Y)})
    assert merged([statement]).stopped_by(statement) == (statement, set())


def test_withdrawals_by_the_command_are_taken_once() -> None:
    one, of = peer(), token()
    asyncio.run(write_waiting(one.disk, withdrawal(of)))
    assert [name.partition("-")[0] + "-" for name in one.disk] == [WITHDRAWAL]
    assert asyncio.run(one.register.take_waiting()) == [withdrawal(of)]
    assert list(one.disk) == [REGISTER] and asyncio.run(one.register.take_waiting()) == []
    assert peer(like=one).register.peers.shared == [withdrawal(of)]


def test_a_withdrawal_that_does_not_count_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    one, of = peer(), token(run="winter")
    asyncio.run(write_waiting(one.disk, withdrawal(of, run="winter")))
    assert asyncio.run(one.register.take_waiting()) == [] and not one.disk
    told = f"the withdrawal of the token {of.invite.digest.hex()[:8]} does not count: the withdrawal is for run winter"
    assert told in caplog.text


def test_the_operator_reads_who_used_the_token(caplog: pytest.LogCaptureFixture) -> None:
    before, after = token(), token()
    one = peer()
    add(one, admission(before, at_s=NOW_S - 1), withdrawal(before))
    assert f"was used by {id_of(X)} before it was withdrawn: outerloop expel removes that peer" in caplog.text
    caplog.clear()
    add(one, admission(after, Y), withdrawal(after))
    assert f"is withdrawn: {id_of(Y)} may not take part" in caplog.text
    caplog.clear()
    add(one, admission(after, Y, receiver=C, at_s=NOW_S + 1))
    assert f"{id_of(Y)} used an invite by {id_of(A)} that was withdrawn before" in caplog.text


def test_a_register_of_the_earlier_version_is_read() -> None:
    one, known = peer(), [admission(token()), removal()]
    one.disk[REGISTER] = msgpack.packb({"version": 1, "statements": [packed(statement) for statement in known]})
    assert peer(like=one).register.peers.shared == known
    one.disk[REGISTER] = msgpack.packb({"version": 3, "statements": []})
    with pytest.raises(UserError, match="remove the files in"):
        peer(like=one)
