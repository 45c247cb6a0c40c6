"""What members state at the beginning: all honest ones count the same, whatever one liar tells to whom."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgpack
import pytest

from outerloop.swarm.membership.common_checkpoint import common, pack_held, unpack_held
from outerloop.swarm.membership.opening_statements import MAX_STATEMENT_BYTES, OPENING, OpeningStatements
from outerloop.swarm.timeouts import MEET_S
from outerloop.types import UserError
from tests.support.swarm.memory_network import MemoryNetwork, MemoryTransport
from tests.support.swarm.virtual_clock import now_s, virtual

NAMES = ["000-a", "001-b", "002-c", "003-d"]
SESSION = "r/1"
OLD, BOTH = pack_held({50: "x"}), pack_held({50: "x", 100: "y"})
Show = Callable[[str, int], Any]


def opening(network: MemoryNetwork, name: str, link: MemoryTransport | None = None) -> OpeningStatements:
    link = link or MemoryTransport(network, name[4:])
    return OpeningStatements(link, run="r", own=name, allowed=lambda peer: peer in "abcd")


async def stated(statements: dict[str, bytes], *, lie: Show | None = None) -> dict[str, dict[str, bytes]]:
    """What each of the honest ones counts. `lie`: what d shows to a peer in a meeting; nothing at all for None."""
    network = MemoryNetwork(delay_s=(0.01, 0.1))
    links = {name: MemoryTransport(network, name[4:]) for name in statements}
    honest = {name: opening(network, name, link) for name, link in links.items()}
    for one in honest.values():
        await one.serve()
    if lie:

        async def answer(remote: str, request: Any, stream: Any) -> None:
            shown = lie(remote, request["number"])
            await stream.send_object({} if shown is not None else {"none": True})
            if shown is not None:
                await stream.send(shown)
            await stream.ended()

        await MemoryTransport(network, "d").serve("outerloop/1/r/opening/meeting", allowed=bool, handler=answer)
    counted = await asyncio.gather(
        *(
            one.state(statements[name], session=SESSION, members=NAMES, patience_s=MEET_S)
            for name, one in honest.items()
        )
    )
    for link in links.values():
        stated.refusals = link.trust.rejections.logged  # type: ignore[attr-defined]
    return dict(zip(honest, counted, strict=True))


def signed(statement: bytes, *, session: str = SESSION, name: str = NAMES[3]) -> tuple[bytes, bytes]:
    """A statement of d."""
    link = MemoryTransport(MemoryNetwork(), "d")
    return statement, link.trust.signatures.sign(OPENING, session, name, statement)


@virtual
async def test_all_count_what_each_has_stated() -> None:
    statements = {name: name.encode() for name in NAMES}
    counted = await stated(statements)
    assert list(counted.values()) == [statements] * 4 and now_s() < 10


@virtual
async def test_a_lone_peer_counts_itself_and_absent_peers_do_not_count() -> None:
    alone = opening(MemoryNetwork(), NAMES[0])
    assert await alone.state(b"x", session=SESSION, members=NAMES[:1], patience_s=1) == {NAMES[0]: b"x"}
    assert list((await stated({name: OLD for name in NAMES[:3]})).values()) == [{name: OLD for name in NAMES[:3]}] * 3


@virtual
async def test_one_that_comes_later_counts_what_the_others_have_counted() -> None:
    network = MemoryNetwork(delay_s=(0.01, 0.1))
    made = {name: opening(network, name) for name in NAMES}
    for one in made.values():
        await one.serve()
    state = {"session": SESSION, "members": NAMES, "patience_s": 5.0}
    first = await asyncio.gather(*(made[name].state(OLD, **state) for name in NAMES[:3]))
    late = await made[NAMES[3]].state(BOTH, **state)
    assert first[0] == first[1] == first[2] == late and NAMES[3] not in late


def shows_two(remote: str, number: int) -> bytes:
    """The older checkpoint to a alone, both to the others; in the second meeting what it was told by nobody."""
    said = signed(OLD if remote == "a" else BOTH)
    return msgpack.packb(said if number == 0 else {NAMES[3]: said})


def shows_one_to_a_alone(remote: str, number: int) -> bytes | None:
    if number == 0:
        return msgpack.packb(signed(BOTH)) if remote == "a" else b""
    return msgpack.packb({NAMES[3]: signed(OLD if remote == "b" else BOTH)})


def shows_late(remote: str, number: int) -> bytes:
    """Nothing in the first meeting that counts, its statement in the second to some."""
    return b"\xc1" if number == 0 else msgpack.packb({NAMES[3]: signed(OLD)} if remote == "a" else [5])


def shows_what_others_did_not_say(remote: str, number: int) -> bytes:
    if number == 0:
        return msgpack.packb(signed(OLD, name=NAMES[0]))
    return msgpack.packb({name: signed(OLD, name=name) for name in NAMES} | {"x": 5, "000-a": [b"", 1]})  # type: ignore[dict-item]


def shows_too_much(remote: str, number: int) -> bytes:
    said = signed(bytes(MAX_STATEMENT_BYTES + 1))
    return msgpack.packb(said if number == 0 else {NAMES[3]: said})


def of_another_session(remote: str, number: int) -> bytes:
    said = signed(OLD, session="r/2")
    return msgpack.packb(said if number == 0 else {NAMES[3]: said})


def never_comes(remote: str, number: int) -> None:
    return None


LIES = [shows_two, shows_one_to_a_alone, shows_late, shows_what_others_did_not_say, shows_too_much, of_another_session,
        never_comes]  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
@virtual
async def test_whatever_one_of_four_tells_to_whom_all_others_count_the_same_and_go_on_from_one_step(lie: Show) -> None:
    honest = dict.fromkeys(NAMES[:3], BOTH)
    counted = list((await stated(honest, lie=lie)).values())
    assert counted[0] == counted[1] == counted[2] and counted[0].items() >= honest.items()
    held = [{peer: unpack_held(one) for peer, one in each.items()} for each in counted]
    assert [common(one, members=4) for one in held] == [(100, "y")] * 3  # type: ignore[arg-type]
    assert (NAMES[3] in counted[0]) == (lie is shows_one_to_a_alone)


@virtual
async def test_a_peer_that_signed_two_statements_is_named() -> None:
    await stated(dict.fromkeys(NAMES[:3], BOTH), lie=shows_two)
    assert {who for _, who in stated.refusals} == {NAMES[3]}  # type: ignore[attr-defined]


@virtual
async def test_two_that_hold_nothing_in_common_are_both_told_what_each_holds_and_leave_only_then() -> None:
    network = MemoryNetwork(delay_s=(0.01, 2.0))
    held: dict[str, Any] = {NAMES[0]: {20: "x"}, NAMES[1]: {}}
    ends: list[str] = []

    async def begin(name: str) -> None:
        one = opening(network, name)
        await one.serve()
        with pytest.raises(UserError) as error:
            await one.common_checkpoint(
                held[name], session=SESSION, members=NAMES[:2], patience_s=MEET_S, on_status=ends.append
            )
        ends.append(str(error.value))
        network.kill(name[4:])

    await asyncio.gather(*map(begin, held))
    assert len(ends) == 2 and ends[0] == ends[1] and "000-a holds step 20; 001-b holds no checkpoint" in ends[0]
