"""Expelled peers: kept through a restart, refused everywhere, told to all, lifted by an operator alone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import msgpack
import pytest

from outerloop.swarm.access.access_control import AccessControl
from outerloop.swarm.accountability.accusations import AROUND_S, Accusations, ask
from outerloop.swarm.accountability.evidence import Evidence
from outerloop.swarm.accountability.expulsion import (
    MAX_EXPELLED,
    MAX_OUTSIDERS,
    NAME,
    ExpelledPeers,
    Expulsion,
    ExpulsionRegister,
    read_register,
    write_register,
)
from outerloop.swarm.consensus.state import ROUNDS_KEPT, HardState
from outerloop.swarm.p2p.framing import TurnedAway, Unreadable
from outerloop.swarm.p2p.transport import protocol_name
from outerloop.swarm.validation import id_of
from outerloop.types import UserError
from tests.support.swarm.gather_scene import MemoryDisk
from tests.support.swarm.memory_keys import trust_of
from tests.support.swarm.memory_network import MemoryNetwork, MemoryTransport
from tests.support.swarm.signed_statements import SESSION, two_accepts
from tests.support.swarm.virtual_clock import virtual

RUN = "r"
LIAR = "003-d"


ROSTER = [f"{index:03d}-{letter}" for index, letter in enumerate("abcd")]


def expelled_of(
    disk: MemoryDisk, trust: AccessControl | None = None, *, number: int = 20, roster: Iterable[str] = ROSTER
) -> ExpelledPeers:
    """Of a peer that is at this round, which this roster decides."""
    memory = HardState.first(session=SESSION, peer="000-a", roster=roster, number=number)
    return ExpelledPeers(disk, trust or trust_of("a"), hard_state=lambda: memory)


# one peer's register


@virtual
async def test_an_expelled_peer_is_outside_every_list_also_after_a_restart() -> None:
    disk = MemoryDisk()
    for allow in ("abcd", ""):
        trust = trust_of("a", allow=allow)
        expelled = expelled_of(disk, trust)
        if not expelled.register.expelled:
            assert "d" in trust.allow and trust.admits("d", "p", lambda peer_id: True)
            assert await expelled.convict(two_accepts(LIAR))
        assert "d" not in trust.allow and "b" in trust.allow
        assert not trust.admits("d", "p", lambda peer_id: True)
        assert expelled.evidence == [two_accepts(LIAR)]


@virtual
async def test_evidence_that_proves_nothing_expels_nobody() -> None:
    trust, true = trust_of("a"), two_accepts(LIAR)
    expelled = expelled_of(MemoryDisk(), trust)
    for wrong in (replace(true, peer="001-b"), replace(true, session="r/x"), replace(true, second=true.first)):
        assert not await expelled.convict(wrong)
    assert not expelled.register.expelled and "b" in trust.allow


@virtual
async def test_lifted_evidence_does_not_convict_again_but_new_evidence_does() -> None:
    disk = MemoryDisk()
    assert await expelled_of(disk).convict(two_accepts(LIAR, number=10))
    await write_register(disk, read_register(disk).without("d"))
    trust = trust_of("a")
    expelled = expelled_of(disk, trust)
    assert "d" in trust.allow and not expelled.evidence
    for number in (2, 10, 10 + ROUNDS_KEPT):
        assert not await expelled.convict(two_accepts(LIAR, number=number))
    assert expelled.wants(two_accepts(LIAR, session="r/another"))
    assert await expelled.convict(two_accepts(LIAR, number=11 + ROUNDS_KEPT))


@virtual
async def test_evidence_about_a_round_that_is_far_ahead_cannot_be_used_to_be_forgiven_until_then() -> None:
    """The accused signs what it likes: of a round in ten years, to be expelled and lifted for it."""
    disk, far = MemoryDisk(), two_accepts(LIAR, number=1 << 40)
    expelled = expelled_of(disk, number=20)
    assert not expelled.wants(far) and not await expelled.convict(far)
    assert not expelled.wants(two_accepts(LIAR, number=21 + ROUNDS_KEPT))
    assert await expelled.convict(two_accepts(LIAR, number=20 + ROUNDS_KEPT))
    await write_register(disk, read_register(disk).without("d"))
    assert expelled_of(disk, number=1000).wants(two_accepts(LIAR, number=1000))


def test_nobody_is_expelled_before_the_rounds_have_begun() -> None:
    trust = trust_of("a")
    assert not ExpelledPeers(MemoryDisk(), trust, hard_state=lambda: None).wants(two_accepts(LIAR))


def register_of(count: int) -> ExpulsionRegister:
    """So many keys that cost nothing, and have accused themselves."""
    names = [f"000-{number}" for number in range(count)]
    return ExpulsionRegister(
        {id_of(name): Expulsion(name, SESSION, 3, "lied", 1.0, two_accepts(name)) for name in names}
    )


@virtual
async def test_keys_without_a_seat_do_not_keep_the_register_from_one_that_has_a_seat() -> None:
    disk, outsider = MemoryDisk(), two_accepts("000-z")
    disk[NAME] = register_of(MAX_OUTSIDERS - 1).to_bytes()
    trust, again = trust_of("a"), trust_of("a")
    expelled = expelled_of(disk, trust)
    assert await expelled.convict(outsider)
    assert not await expelled.convict(two_accepts("000-y")) and "y" in trust.allow
    assert await expelled.convict(two_accepts(LIAR))
    expelled_of(disk, again)
    assert "d" not in again.allow


@virtual
async def test_no_more_than_a_roster_of_peers_are_expelled_and_the_first_of_them_is_forgotten() -> None:
    disk = MemoryDisk()
    disk[NAME] = register_of(MAX_EXPELLED).to_bytes()
    trust = trust_of("a")
    expelled = expelled_of(disk, trust)
    assert await expelled.convict(two_accepts(LIAR))
    known = read_register(disk).expelled
    assert len(known) == MAX_EXPELLED and "d" in known and "0" not in known and "1" in known
    assert "0" in trust.allow and "1" not in trust.allow
    assert not expelled.wants(two_accepts("000-0")), "it has no seat"


@virtual
async def test_evidence_that_comes_at_once_is_all_on_disk() -> None:
    disk = MemoryDisk()
    expelled = expelled_of(disk)
    await asyncio.gather(*(expelled.convict(two_accepts(f"000-{letter}")) for letter in "bcde"))
    assert set(read_register(disk).expelled) == set("bcde")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xc1",
        msgpack.packb({"version": 2, "expelled": [], "lifted": []}),
        msgpack.packb({"version": 1, "expelled": [["000-a"]], "lifted": []}),
        msgpack.packb({"version": 1, "expelled": [["000-a", "s", 1, "two\nlines", 1.0, None]], "lifted": []}),
        msgpack.packb({"version": 1, "expelled": [["000-a", "s", 1, "lied", 1.0, {}]], "lifted": []}),
        msgpack.packb({"version": 1, "expelled": [], "lifted": [["a", "s"]]}),
    ],
)
def test_a_damaged_register_is_told_and_not_forgotten(content: bytes) -> None:
    disk = MemoryDisk()
    disk[NAME] = content
    with pytest.raises(UserError, match="remove the file 'expelled'"):
        expelled_of(disk)


# between peers


class Member:
    """One of "000-a", "001-b", ... of a network."""

    def __init__(self, network: MemoryNetwork, letter: str, names: dict[str, str]) -> None:
        self.link = MemoryTransport(network, letter)
        self.disk, self.guilt = MemoryDisk(), list[str]()
        self.expelled = expelled_of(self.disk, self.link.trust)
        self.heard: list[set[str]] = []
        self.accusations = Accusations(
            self.link,
            self.expelled,
            run=RUN,
            names=lambda: names,
            on_own=lambda evidence: self.guilt.append(evidence.why),
            on_other=lambda: self.heard.append(self.has_expelled),
        )

    @property
    def has_expelled(self) -> set[str]:
        return {peer for peer in "abcdez" if peer not in self.link.trust.allow}

    async def tell(self, to: str, evidence: Any) -> None:
        """Whatever a member may say, true or not."""
        async with self.link.open_stream(to, protocol_name(RUN, Accusations.service)) as stream:
            await stream.send_object({"evidence": True})
            await stream.send(msgpack.packb(evidence))
            await stream.ended()


async def members(
    letters: str, *, network: MemoryNetwork | None = None, known: Iterable[str] = ""
) -> dict[str, Member]:
    names = {letter: f"{index:03d}-{letter}" for index, letter in enumerate(known or letters)}
    network = network or MemoryNetwork(delay_s=(0.01, 0.1))
    made = {letter: Member(network, letter, names) for letter in letters}
    for member in made.values():
        await member.accusations.serve()
    return made


@virtual
async def test_new_evidence_is_told_to_all_and_everybody_checks_it() -> None:
    made = await members("abcd")
    assert await made["a"].accusations.accuse(two_accepts(LIAR))
    await asyncio.sleep(5)
    assert [made[letter].has_expelled for letter in "abc"] == [{"d"}] * 3
    assert [set(read_register(made[letter].disk).expelled) for letter in "abc"] == [{"d"}] * 3
    assert not await made["b"].accusations.accuse(two_accepts(LIAR, view=1)), "once"
    assert [made[letter].heard for letter in "abc"] == [[{"d"}]] * 3


@virtual
async def test_a_peer_that_was_away_asks_for_the_evidence_of_the_others() -> None:
    network = MemoryNetwork(delay_s=(0.01, 0.1))
    made = await members("ab", network=network, known="abcd")
    await made["a"].accusations.accuse(two_accepts(LIAR))
    made |= await members("c", network=network, known="abcd")
    assert made["c"].has_expelled == set()
    around = asyncio.create_task(made["c"].accusations.ask_around())
    await asyncio.sleep(20 * AROUND_S)
    around.cancel()
    assert made["c"].has_expelled == {"d"}


@virtual
async def test_a_false_accuser_is_noted_and_checked_once() -> None:
    made = await members("abcd")
    checks, signatures = [], made["a"].link.trust.signatures
    right = signatures.verify
    signatures.verify = lambda *of, **by: (checks.append(of), right(*of, **by))[1]  # type: ignore[method-assign]
    framed = replace(two_accepts(LIAR), peer="001-b")
    for number in range(50):
        await made["d"].tell("a", replace(framed, session=f"r/{number}").to_map())
        await asyncio.sleep(1)
    assert made["a"].has_expelled == set() and 1 <= len(checks) <= 2
    assert made["a"].link.trust.rejections.of_kind["ballots"] == 1
    await made["d"].tell("a", two_accepts("002-c").to_map())
    await asyncio.sleep(1)
    assert made["a"].has_expelled == set(), "what it says later is not looked at; others may say it"
    await made["b"].tell("a", two_accepts("002-c").to_map())
    await asyncio.sleep(1)
    assert made["a"].has_expelled == {"c"}


@virtual
async def test_strangers_tell_nothing_and_evidence_against_strangers_is_not_kept() -> None:
    network = MemoryNetwork(delay_s=(0.01, 0.1))
    made = await members("abcd", network=network)
    stranger = Member(network, "z", {})
    await stranger.tell("a", two_accepts(LIAR).to_map())
    await made["b"].tell("a", two_accepts("009-z").to_map())
    await asyncio.sleep(1)
    assert made["a"].has_expelled == set() and made["a"].link.trust.rejections.of_kind["ballots"] == 0
    assert await ask(stranger.link, RUN, "a") == []


@virtual
async def test_an_expelled_peer_is_turned_away_and_not_asked() -> None:
    made = await members("abcd")
    await made["a"].accusations.accuse(two_accepts(LIAR))
    with pytest.raises(TurnedAway):
        await ask(made["d"].link, RUN, "a")
    assert made["a"].accusations._others() == ["b", "c"]  # noqa: SLF001


@virtual
async def test_an_accused_peer_is_told_if_the_accusation_is_true() -> None:
    made = await members("abcd")
    await made["a"].tell("d", replace(two_accepts("001-b"), peer=LIAR).to_map())
    await asyncio.sleep(1)
    assert made["d"].guilt == [] and made["d"].link.trust.rejections.of_kind["ballots"] == 1
    await made["b"].tell("d", two_accepts(LIAR).to_map())
    await asyncio.sleep(1)
    assert made["d"].guilt == ["accepted two proposals for commit 3, view 0"] and made["d"].has_expelled == set()


@pytest.mark.parametrize(
    ("count", "answers"),
    [
        (MAX_EXPELLED + 1, []),
        (-1, []),
        (True, []),
        ("many", []),
        (None, []),
        (1, [b"\xc1"]),
        (1, [msgpack.packb({})]),
        (1, [bytes(5000)]),
        (2, [msgpack.packb(two_accepts(LIAR).to_map()), msgpack.packb([])]),
    ],
)
@virtual
async def test_an_answer_that_is_none_is_refused(count: Any, answers: list[bytes]) -> None:
    network = MemoryNetwork()

    async def answer(remote: str, request: Any, stream: Any) -> None:
        await stream.send_object({"count": count})
        for content in answers:
            await stream.send(content)
        await stream.ended()

    await MemoryTransport(network, "b").serve(
        protocol_name(RUN, Accusations.service), allowed=lambda peer_id: True, handler=answer
    )
    with pytest.raises(Unreadable):
        await ask(MemoryTransport(network, "a"), RUN, "b")


@virtual
async def test_evidence_in_the_making_of_a_request_is_refused_as_garbled() -> None:
    made = await members("ab")
    await made["b"].tell("a", {"sitting": 3})
    await asyncio.sleep(1)
    assert made["a"].link.trust.rejections.of_kind["requests"] == 1


@virtual
async def test_all_that_an_honest_peer_holds_can_be_asked_for() -> None:
    made = await members("abcde")
    for letter in "cde":
        await made["a"].expelled.convict(two_accepts(f"000-{letter}"))
    found: list[Evidence] = await ask(made["b"].link, RUN, "a")
    assert {one.peer for one in found} == {"000-c", "000-d", "000-e"}
