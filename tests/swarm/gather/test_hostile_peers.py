"""What hostile peers send is refused by name, within bounds of memory and time, and the honest ones train on.

Payloads that travel well and cannot be decoded (not finite, another model, an index out of range) are in
tests/core/test_left_out.py: all peers have the same bytes by then, and leave them out alike.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from outerloop.swarm.consensus.commit import Commit, Participant
from outerloop.swarm.p2p.framing import BrokenStream, TurnedAway
from outerloop.swarm.p2p.stream_gate import TURNED_AWAY
from outerloop.swarm.timeouts import LEAD_S
from tests.support.swarm.gather_liar import Liar, Said, swarm_with_liar
from tests.support.swarm.gather_scene import INNER_S, RUN, Swarm
from tests.support.swarm.memory_network import MemoryTransport
from tests.support.swarm.virtual_clock import now_s, run, virtual

HONEST = "abc"
MOST = 1 << 20
GRACE_S = 3.0
QUICK_S = 2.0
LED_BY_D = 3
"""A round that 003-d leads, as long as no view of it has failed; it leads 5, 6 and 8 as well."""


def replayed(liar: Liar, swarm: Swarm) -> Said:
    """Another one's payload of the round before, its signature on it, as the own one of this."""

    def says(number: int) -> object:
        disk = swarm["a"].disk
        older = [content for name, content in disk.items() if name.startswith("000000000000-") and "000-a" in name]
        return liar.offer(older[0]) if number and older else None

    return says


def stale(liar: Liar, swarm: Swarm) -> Said:
    """The own payload of round 0 for ever."""
    return lambda number: liar.offer(liar.seal(b"x" * 5000, 0))


def foreign_key(liar: Liar, swarm: Swarm) -> Said:
    """Signed by somebody else's key."""
    other = MemoryTransport(swarm.network, "e")
    return lambda number: liar.offer(liar.seal(b"x" * 5000, number, by=other))


def other_name(liar: Liar, swarm: Swarm) -> Said:
    """Signed for another member's name."""
    return lambda number: liar.offer(liar.seal(b"x" * 5000, number, name="000-a"))


def flipped(liar: Liar, swarm: Swarm) -> Said:
    """A bit changed after it was signed."""

    def says(number: int) -> object:
        content = bytearray(liar.seal(b"x" * 5000, number))
        content[4000] ^= 1
        return liar.offer(bytes(content))

    return says


def another_each_time(liar: Liar, swarm: Swarm) -> Said:
    """Never signed, and never the same."""
    return lambda number: liar.offer(f"{number} {liar.asked}".encode() * 1000)


def one_tebibyte(liar: Liar, swarm: Swarm) -> Said:
    return lambda number: [b"s" * 32, 1 << 40]


def too_large(liar: Liar, swarm: Swarm) -> Said:
    return lambda number: liar.offer(liar.seal(bytes(MOST + 1), number))


def garbled(liar: Liar, swarm: Swarm) -> Said:
    return lambda number: {"sha": None}


CASES: dict[str, tuple[Callable[[Liar, Swarm], Said], str, int]] = {
    "replayed header": (replayed, "round 2: its payload is not signed by its owner for this round", 1),
    "stale round": (stale, "round 2: its payload is not signed by its owner for this round", 1),
    "foreign key": (foreign_key, "round 1: its payload is not signed by its owner for this round", 0),
    "another's name": (other_name, "round 1: its payload is not signed by its owner for this round", 0),
    "flipped bit": (flipped, "round 1: its payload is not signed by its owner for this round", 0),
    "another each time": (another_each_time, "round 1: its payload is not signed by its owner for this round", 0),
    "1 TiB claimed": (one_tebibyte, "a payload of 1099511627776 bytes; at most 1048640 are allowed", 0),
    "larger than allowed": (too_large, "a payload of 1048641 bytes; at most 1048640 are allowed", 0),
    "no payload at all": (garbled, "the response has no payload", 0),
}
"""What it says, what it is refused for, in which round first."""
REFUSED_BY_SIZE = ("1 TiB claimed", "larger than allowed", "no payload at all")


@pytest.mark.parametrize("case", CASES)
def test_a_bad_payload_is_refused_by_name_and_the_others_train_on(case: str, caplog: pytest.LogCaptureFixture) -> None:
    says, why, first = CASES[case]

    async def scene() -> None:
        swarm, liar = await swarm_with_liar(says)
        await swarm.until(HONEST, 6)
        assert now_s() < 6 * (INNER_S + QUICK_S) + 3 * (GRACE_S + LEAD_S), "it costs what a dead peer does"
        swarm.agree()
        for letter in HONEST:
            node = swarm[letter]
            assert node.who(first) == HONEST and all(set(HONEST) <= set(node.who(number)) for number in range(6))
            assert node.rounds.context.trust.rejections.counters()["refused_payloads"] >= 1
            assert max(map(len, node.disk.values())) < 1 << 16, "nothing of it is kept"
            assert not any("003-d" in name and not name.startswith("0" * 12) for name in node.disk)
        assert sum(swarm[letter].rounds.bulk.bytes_received for letter in HONEST) < 2 * MOST
        assert (liar.bulk.bytes_sent == 0) == (case in REFUSED_BY_SIZE)
        assert liar.asked[first] <= 3 * (60 if case == "no payload at all" else 2), liar.asked

    run(scene())
    told = [line for line in caplog.messages if line.startswith("refused (payloads) 003-d: ") and why in line]
    assert 1 <= len(told) <= 3, caplog.messages


def test_a_leader_cannot_pass_off_what_an_owner_did_not_offer_for_the_round(caplog: pytest.LogCaptureFixture) -> None:
    """It proposes a round of its own and a's payload of the round before: nobody accepts, the next view decides."""

    async def scene() -> None:
        swarm, liar = await swarm_with_liar(
            lambda liar, swarm: lambda number: liar.offer(liar.seal(b"d", number)), first=LED_BY_D - 1
        )
        await swarm.until(HONEST, 1)
        hard_state = swarm["a"].rounds.context.chain.hard_state
        assert hard_state.number == LED_BY_D and swarm.leader(HONEST) == "d"
        older = hard_state.head.participants[0]
        assert older.peer == "000-a"
        liar.held[older.digest] = swarm["a"].rounds.bulk.uploads.source.get(older.digest)
        own = Participant("003-d", *liar.offer(liar.seal(b"d", hard_state.number)))
        lie = Commit(hard_state.number, hard_state.head.digest, 0, (older, own), hard_state.roster)
        for letter in HONEST:
            await liar.say(letter, liar.propose(lie))
        await swarm.until(HONEST, 2, limit_s=2 * INNER_S + GRACE_S + 4 * LEAD_S)
        assert f"000-a {hard_state.number} ".encode() in bytes(swarm["b"].landed[hard_state.number][0][1])
        swarm.agree()

    run(scene())
    assert any(line.startswith("refused (payloads) 000-a: ") for line in caplog.messages), caplog.messages


@virtual
async def test_a_member_that_is_silent_in_the_consensus_costs_its_timeout_once() -> None:
    """Its payloads arrive and count. Its first view fails; from then on it leads last."""
    swarm, _ = await swarm_with_liar(
        lambda liar, swarm: lambda number: liar.offer(liar.seal(b"d", number)), first=LED_BY_D
    )
    assert swarm.leader(HONEST) == "d"
    assert LEAD_S < await swarm.until(HONEST, 1) < INNER_S + LEAD_S + QUICK_S
    assert await swarm.until(HONEST, 9) < 8 * (INNER_S + QUICK_S)
    assert all(swarm["a"].who(LED_BY_D + count) == "abcd" for count in range(9))
    swarm.agree()


def test_a_peer_outside_the_allow_list_is_answered_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Not even where everybody is taken for a member, however often it asks; the log hears of it once."""

    async def scene() -> None:
        swarm = Swarm(HONEST)
        for node in swarm.nodes.values():
            node.allow = HONEST
        await swarm.start()
        for node in swarm.nodes.values():
            node.names["z"] = "003-z"
        stranger, asked = MemoryTransport(swarm.network, "z"), 0
        for _ in range(20):
            for protocol in ("payload", "bulk", "ballot", "commits"):
                async with stranger.open_stream("a", f"outerloop/1/{RUN}/{protocol}") as stream:
                    with pytest.raises(TurnedAway if asked < TURNED_AWAY.burst else BrokenStream):
                        await stream.receive_object()
                asked += 1
        assert await swarm.until(HONEST, 3) < 3 * (INNER_S + QUICK_S)
        assert all(swarm["a"].who(number) == HONEST for number in range(3))
        counters = swarm["a"].rounds.context.trust.rejections.counters()
        assert counters["refused_outsiders"] == counters["refused_messages"] == 80
        swarm.agree()

    run(scene())
    assert [line for line in caplog.messages if " z: " in line] == [
        "refused (outsiders) z: asked for outerloop/1/r/payload, but is not in exchange.allow"
    ]


def test_nonsense_is_its_sender_s_fault_and_costs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        swarm, liar = await swarm_with_liar(lambda liar, swarm: lambda number: None)
        for content in (b"", b"\xc1", b"\x90", b"\x81\xa4kind\xa3lie", bytes(1000)):
            async with liar.link.open_stream("a", f"outerloop/1/{RUN}/ballot") as stream:
                await stream.send_object({})
                await stream.send(content)
                await stream.ended()
        with pytest.raises(BrokenStream):
            async with liar.link.open_stream("a", f"outerloop/1/{RUN}/ballot") as stream:
                await stream.send_object({})
                await stream.write((1 << 40).to_bytes(8, "big") + bytes(32))
                await stream.ended()
                raise BrokenStream("closed at once")
        for protocol in ("payload", "bulk", "commits"):
            async with liar.link.open_stream("a", f"outerloop/1/{RUN}/{protocol}") as stream:
                await stream.send_object({"number": "1", "sha": b"1", "after": {}})
                await stream.ended()
        await swarm.until(HONEST, 2)
        assert swarm["a"].rounds.context.trust.rejections.of_kind["requests"] == 9
        swarm.agree()

    run(scene())
    assert [line for line in caplog.messages if line.startswith("refused (requests) d: outerloop/1/r/ballot: ")]


@pytest.fixture(autouse=True)
def loud(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
