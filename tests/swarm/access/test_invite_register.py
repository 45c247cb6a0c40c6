"""Which statements count, what the allow-list makes of them, and that they survive a restart."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgpack
import pytest

from outerloop.swarm.access import invited_peers
from outerloop.swarm.access.admissions import Admission, Removal
from outerloop.swarm.access.invite_register import FUTURE_S
from outerloop.swarm.access.register_files import REGISTER, REMOVAL, write_waiting
from outerloop.swarm.validation import MalformedMessage
from outerloop.types import UserError
from tests.support.swarm.dht_scene import id_of
from tests.support.swarm.gather_scene import MemoryDisk
from tests.support.swarm.invite_scene import NOW_S, A, B, C, Peer, X, Y, admission, removal, token
from tests.support.swarm.memory_network import MemoryNetwork
from tests.support.swarm.virtual_clock import run


def peer(number: int = A, like: Peer | None = None) -> Peer:
    return Peer(MemoryNetwork(), number, disk=like.disk if like else None)


def test_an_admitted_peer_may_take_part_also_after_a_restart() -> None:
    one = peer()
    assert id_of(X) not in one.trust.allow and not one.trust.allow.may_ever_be_member(id_of(X))
    new = asyncio.run(one.register.add([admission(token())]))
    assert [statement.peer for statement in new] == [id_of(X)]
    for each in (one, peer(like=one)):
        allow = each.trust.allow
        assert id_of(X) in allow and id_of(X) in allow.admitted and allow.may_ever_be_member(id_of(X))
        assert id_of(X) not in allow.listed, "an invited peer is no voter in a proof"
        assert asyncio.run(each.register.add([admission(token()), *new]))[0].peer == id_of(X)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: admission(token(run="winter")), "for run winter"),
        (lambda: admission(token(X)), "not issued and received by listed peers"),
        (lambda: admission(token(), Y, receiver=X), "not issued and received by listed peers"),
        (lambda: admission(token(), at_s=NOW_S + 101), "had expired"),
        (lambda: admission(token(), C), "is listed"),
        (lambda: removal(Y), "was not invited"),
        (lambda: removal(by=X), "only listed peers"),
        (lambda: removal(C), "only listed peers"),
        (lambda: removal(at_s=NOW_S + FUTURE_S + 1), "future"),
        (lambda: removal(run="winter"), "for run winter"),
    ],
)
def test_statements_that_do_not_count_change_nothing(make: Callable[[], Admission | Removal], why: str) -> None:
    one = peer()
    asyncio.run(one.register.add([admission(token())]))
    before = one.register.peers
    assert why in one.register.objection(make())
    assert asyncio.run(one.register.add([make()])) == [] and one.register.peers == before


def test_statements_of_the_last_second_count() -> None:
    """The token expires at NOW_S + 100, and a removal may be dated FUTURE_S later than now."""
    one = peer()
    last = admission(token(), at_s=NOW_S + 100)
    assert one.register.objection(last) == "" and asyncio.run(one.register.add([last])) == [last]
    assert one.register.objection(removal(at_s=NOW_S + FUTURE_S)) == ""


def test_a_forged_signature_ends_the_list_and_what_came_before_is_kept() -> None:
    one, good, bad = peer(), admission(token()), admission(token(), Y)
    forged = Admission(bad.binding, id_of(C), bad.at_s, bad.number, bad.signature)
    with pytest.raises(MalformedMessage, match="not valid"):
        asyncio.run(one.register.add([good, forged, admission(token(), Y)]))
    assert set(peer(like=one).register.peers.last) == {id_of(X)}


def test_a_removed_peer_is_refused_until_the_removal_is_lifted() -> None:
    one = peer()
    asyncio.run(one.register.add([admission(token()), removal()]))
    again = peer(like=one)
    for each in (one, again):
        assert id_of(X) not in each.trust.allow and each.trust.allow.may_ever_be_member(id_of(X))
        assert "was removed" in each.trust.allow.why_not(id_of(X))
    asyncio.run(again.register.add([removal(lifted=True, at_s=NOW_S + 1)]))
    assert id_of(X) in peer(like=again).trust.allow


def test_removals_of_forgotten_peers_are_limited_by_signer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The issuer A signs earlier and earlier admissions, which displace its own, and removes each of these peers."""
    monkeypatch.setattr(invited_peers, "MAX_PER_ISSUER", 2)
    one, numbers = peer(), range(100, 120)
    local = removal(C, by=A)
    asyncio.run(one.register.add([admission(token(), at_s=NOW_S + 1), removal(by=B), local]))
    for number in numbers:
        of = admission(token(), number, at_s=NOW_S + 100 - number)
        assert asyncio.run(one.register.add([of, removal(number, by=A, at_s=number)]))
    assert one.register.peers.known == {id_of(number) for number in numbers[-2:]}
    kept = {id_of(number) for number in (*numbers[:2], *numbers[-2:])}
    assert one.register.peers.removals.keys() == {id_of(X), *kept, local.peer}, "those of B and C stay"


def test_a_removed_peer_stays_removed_if_it_is_forgotten_and_invited_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invited_peers, "MAX_PER_ISSUER", 1)
    one, other, removed, again = peer(A), peer(C), [admission(token()), removal()], admission(token(B))
    displacing = admission(token(), Y, at_s=NOW_S - 1)
    for statement in (*removed, displacing, again):
        asyncio.run(one.register.add([statement]))
    for statement in (displacing, *removed, again):
        asyncio.run(other.register.add([statement]))
    assert one.register.peers.known == other.register.peers.known == {id_of(X), id_of(Y)}
    assert id_of(X) not in one.trust.allow
    asyncio.run(other.register.add(one.register.peers.shared))
    assert one.register.peers.shared == other.register.peers.shared and id_of(X) not in other.trust.allow


def test_a_listed_peer_is_removed_on_one_machine_only() -> None:
    one = peer(A)
    own = removal(C, by=A)
    asyncio.run(one.register.add([own]))
    assert id_of(C) not in one.trust.allow and id_of(C) not in peer(like=one).trust.allow
    assert not one.register.is_shared(own) and own not in one.register.peers.shared


def test_rounds_that_are_over_end_the_admission() -> None:
    one = peer()
    asyncio.run(one.register.add([admission(token(rounds=3), number=5), admission(token(), Y)]))
    one.trust.allow.current_number = lambda: None
    assert [one.trust.allow.may_be_past_limit(id_of(peer)) for peer in (X, Y, A)] == [True, False, False]
    for number, admitted in ((0, True), (7, True), (8, False)):
        one.trust.allow.current_number = lambda number=number: number
        assert (id_of(X) in one.trust.allow) is admitted and not one.trust.allow.may_be_past_limit(id_of(X))
    assert one.trust.allow.why_not(id_of(X)) == "was invited for earlier rounds only"


def test_a_removed_peer_learns_it_from_its_own_removal() -> None:
    own = peer(X)
    asyncio.run(own.register.add([admission(token())]))
    assert own.id in own.trust.allow and not own.removed
    asyncio.run(own.register.add([removal()]))
    assert "was removed" in own.removed and "was removed" in peer(X, like=own).removed


def test_removals_by_the_command_are_taken_once() -> None:
    one = peer()
    asyncio.run(one.register.add([admission(token())]))
    for name, content in ((f"{REMOVAL}x", removal(by=A)), (f"{REMOVAL}y", removal(Y, by=A))):
        one.disk[name] = msgpack.packb(content.to_list())
    assert asyncio.run(one.register.take_waiting()) == [removal(by=A)]
    assert list(one.disk) == [REGISTER] and id_of(X) not in one.trust.allow
    assert asyncio.run(one.register.take_waiting()) == []


def test_several_removals_of_a_peer_are_one() -> None:
    one = peer()
    asyncio.run(one.register.add([admission(token())]))
    many = [removal(lifted=lifted, at_s=NOW_S + at_s) for at_s, lifted in ((3, False), (1, True), (2, True))]
    assert one.register.cost(many) == 1
    assert asyncio.run(one.register.add(many)) == [removal(at_s=NOW_S + 3)]
    assert one.register.cost([*many, admission(token(run="winter")), admission(token(), Y)]) == 1


def test_a_peer_whose_token_another_machine_had_used_before_learns_it() -> None:
    own, one = peer(Y), token()
    asyncio.run(own.register.add([admission(one, Y, at_s=NOW_S + 5)]))
    assert not own.removed
    asyncio.run(own.register.add([admission(one, X)]))
    assert own.removed == peer(Y, like=own).removed == "used an invite that another machine had used before"


def test_in_a_run_without_invites_only_removals_have_an_effect() -> None:
    one = peer(A)
    asyncio.run(one.register.add([admission(token()), removal(C, by=A)]))
    again = Peer(MemoryNetwork(), A, disk=one.disk, invites=False)
    assert id_of(X) not in again.trust.allow and not again.trust.allow.may_ever_be_member(id_of(X))
    assert id_of(C) not in again.trust.allow
    asyncio.run(again.register.add([removal(C, by=A, lifted=True, at_s=NOW_S + 1)]))
    assert id_of(X) in peer(A, like=again).trust.allow, "the admissions stay on disk"


class SlowDisk(MemoryDisk):
    async def write(self, name: str, content: bytes) -> None:
        await asyncio.sleep(0.05 if name == REGISTER else 0)
        await super().write(name, content)


def test_a_removal_lifted_while_it_is_stored_stays_lifted() -> None:
    async def scene() -> None:
        one = Peer(MemoryNetwork(), A, disk=SlowDisk())
        await one.register.add([admission(token())])
        await write_waiting(one.disk, removal(by=A))
        taking = asyncio.create_task(one.register.take_waiting())
        await asyncio.sleep(0.02)
        await write_waiting(one.disk, removal(by=A, lifted=True, at_s=NOW_S + 1))
        await taking
        assert await one.register.take_waiting() == [removal(by=A, lifted=True, at_s=NOW_S + 1)]
        assert id_of(X) in one.trust.allow and list(one.disk) == [REGISTER]

    run(scene())


@pytest.mark.parametrize("peer_", [X, C])
def test_a_removal_made_while_the_run_was_stopped_is_stored(peer_: int) -> None:
    one = peer(A)
    asyncio.run(one.register.add([admission(token())]))
    asyncio.run(write_waiting(one.disk, removal(peer_, by=A)))
    assert asyncio.run(peer(A, like=one).register.take_waiting()) == [removal(peer_, by=A)]
    assert list(one.disk) == [REGISTER] and id_of(peer_) not in peer(A, like=one).trust.allow


def test_a_damaged_removal_does_not_hold_up_the_others(caplog: pytest.LogCaptureFixture) -> None:
    one = peer(A)
    one.disk[f"{REMOVAL}a"], one.disk[f"{REMOVAL}b"] = b"\x00", msgpack.packb(removal(C, by=A).to_list())
    assert asyncio.run(one.register.take_waiting()) == [removal(C, by=A)]
    assert "is damaged" in caplog.text and list(one.disk) == [REGISTER]


def test_without_its_issuer_on_the_list_an_admission_is_dropped() -> None:
    """The list is read at each start."""
    one = peer()
    asyncio.run(one.register.add([admission(token(B), receiver=C)]))
    assert id_of(X) in peer(like=one).trust.allow
    shorter = peer(like=one)
    shorter.trust.allow.configured = frozenset({id_of(A), id_of(C)})
    assert "not issued" in shorter.register.objection(admission(token(B), receiver=C))


def test_a_damaged_register_is_one_line() -> None:
    one = peer()
    one.disk[REGISTER] = b"\x00"
    with pytest.raises(UserError, match=r"remove the files in identity\.access"):
        peer(like=one)
