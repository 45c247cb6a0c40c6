"""How a run forms among peers that lie or come at a bad moment: lists are read whole, checked, and lead together."""

from __future__ import annotations

import asyncio
import hashlib
import socket
from collections.abc import Callable, Iterator
from typing import Any, cast

import msgpack
import pytest

from outerloop.swarm.membership.formation import Formation
from outerloop.swarm.membership.late_joiners import GONE_LOOKS, LateJoiners
from outerloop.swarm.membership.member_list import Members, objection, receive_pages, session_of
from outerloop.swarm.membership.mismatched_peers import MismatchedPeers
from outerloop.swarm.membership.roster import Record, Roster
from outerloop.swarm.membership.run_settings import RunSettings
from outerloop.swarm.p2p import daemon
from outerloop.swarm.p2p.framing import TURNED_AWAY, BrokenStream, Stream
from outerloop.swarm.p2p.observer import visit
from outerloop.swarm.p2p.transport import Request
from outerloop.swarm.timeouts import FORM_GRACE_S, ROSTER_EXPIRY_S
from outerloop.swarm.validation import MAX_PEERS
from outerloop.types import UserError
from tests.support.swarm.memory_network import MemoryNetwork, MemoryTransport
from tests.support.swarm.virtual_clock import now_s, virtual

TRUE: Members = [["000-a", 1.0], ["001-b", 2.0]]


class Machines:
    """Peers that see the records that this world shows each of them. `hidden`: letter -> whom it does not see."""

    def __init__(self) -> None:
        self.network = MemoryNetwork(delay_s=(0.01, 0.1))
        self.records: dict[str, Record] = {}
        self.hidden: dict[str, str] = {}
        self.links: dict[str, MemoryTransport] = {}

    async def start(
        self, name: str, *, joined: float, peers: int, allow: str = "", limited: str = "", newcomer: bool = False
    ) -> Formation:
        """Start a peer. `limited`: letters of the peers that were invited for a number of rounds."""
        letter = name.partition("-")[2]
        own = self.records[letter] = Record(name, ["/x"], "f", joined)
        self.links[letter] = link = MemoryTransport(self.network, letter, allow=allow)
        link.trust.allow.set_register(dict.fromkeys(limited, 499), known=frozenset(limited), removed=frozenset())
        mismatched = MismatchedPeers(
            link, run="r", own=own, settings=RunSettings(), joined=[], on_status=lambda text: None
        )
        roster = cast(Roster, View(self, letter))
        made = Formation(
            link,
            roster,
            run="r",
            peers=peers,
            own=own,
            mismatched=mismatched,
            newcomer=newcomer,
            remembers=lambda session: False,
        )
        await made.serve()
        return made

    async def ask(self, letter: str, **request: Any) -> Request:
        """What a peer is told by "a"."""
        link = self.links.get(letter) or MemoryTransport(self.network, letter)
        async with link.open_stream("a", "outerloop/1/r/members") as stream:
            await stream.send_object(request)
            return await receive_pages(stream)

    async def tell(self, name: str, members: Any, *, late: Any = ()) -> None:
        """A peer that has formed, as it says, with these members."""
        await self.lie(name, lambda asker: {"members": members, "formed": True, "late": list(late)})

    async def lie(self, name: str, answer: Callable[[Record], dict[str, Any]]) -> None:
        """Start a peer that sends each other peer whatever `answer` returns for the record of that peer."""
        letter = name.partition("-")[2]
        self.records[letter] = Record(name, ["/x"], "f", 1.0 + len(self.records))

        async def send(remote: str, request: Request, stream: Stream) -> None:
            await stream.send_object(answer(self.records[remote]))
            await stream.ended()

        await MemoryTransport(self.network, letter).serve("outerloop/1/r/members", allowed=bool, handler=send)


class View:
    """The roster as one of them sees it."""

    def __init__(self, machines: Machines, letter: str) -> None:
        self._machines, self._letter = machines, letter

    async def read(self) -> list[Record]:
        hidden = self._machines.hidden.get(self._letter, "")
        return [record for letter, record in self._machines.records.items() if letter not in hidden]


# lists that are long


def long_name(number: int) -> str:
    return f"{number % 1000:03d}-12D3KooW{number:044d}"


@virtual
async def test_a_thousand_members_and_more_latecomers_can_be_read() -> None:
    """1,024 members and 1,200 that came late, with names as long as real ones: more than one frame holds."""
    machines = Machines()
    a = await machines.start("000-a", joined=0.0, peers=2)
    members = sorted([["000-a", 0.0], *([long_name(number), 1.0] for number in range(MAX_PEERS - 1))])
    a._members, a._formed = members, True  # noqa: SLF001
    for number in range(2000, 3200):
        name = long_name(number)
        a._welcome(name.partition("-")[2], name)  # noqa: SLF001
    newcomer = await machines.start("000-n", joined=9.0, peers=2)
    await newcomer.form(timeout_s=30)
    assert newcomer.late_joiner and newcomer.session == session_of("r", members)
    late = set(newcomer.known) - set(newcomer.names)
    assert len(late) == len(a.known) - len(a.names) == MAX_PEERS
    assert machines.links["a"].trust.rejections.of_kind["outsiders"] >= 1200 - MAX_PEERS


@pytest.mark.parametrize("pages", [0, 7, 1 << 40, True, "2", None, -1])
@virtual
async def test_pages_without_end_are_refused(pages: Any) -> None:
    machines = Machines()

    async def answer(remote: str, request: Request, stream: Stream) -> None:
        for _ in range(100):
            await stream.send_object({"pages": pages, "members": TRUE, "late": []})

    await MemoryTransport(machines.network, "a").serve("outerloop/1/r/members", allowed=bool, handler=answer)
    with pytest.raises(BrokenStream, match="1 to 6 pages"):
        await machines.ask("x")


# names


@virtual
async def test_a_peer_has_the_name_under_which_it_came_first() -> None:
    machines = Machines()
    a, _ = [await machines.start(f"00{i}-{one}", joined=float(i), peers=2) for i, one in enumerate("ab")]
    with pytest.raises(UserError, match="do not answer, or report other members: 001-b"):
        await a.form(timeout_s=1)
    assert [name for name, _ in (await machines.ask("d", name="003-d"))["members"]] == list(a.names.values())
    for letter, name in (("d", "103-d"), ("b", "101-b"), ("d", "104-d")):
        with pytest.raises(BrokenStream):
            await machines.ask(letter, name=name)
    await machines.ask("e", name="003-d")  # the name of another one: no reason to believe it
    await machines.ask("e", name="\x1b[2J-e")
    assert a.known == {"a": "000-a", "b": "001-b", "d": "003-d"}
    assert machines.links["a"].trust.rejections.of_kind["requests"] == 3


@virtual
async def test_a_late_joiner_that_has_gone_is_forgotten_and_a_present_one_is_kept() -> None:
    there = {"own", "stays"}

    async def read() -> set[str]:
        return there

    late = LateJoiners(read)
    for peer in ("stays", "goes", "asks"):
        assert late.add(f"000-{peer}")
    for look in range(GONE_LOOKS):
        assert set(late.names) == {"stays", "goes", "asks"}
        await late.forget_gone()
        await late.forget_gone()  # not more than one look a minute
        late.add("000-asks")
        await asyncio.sleep(ROSTER_EXPIRY_S + look)
    assert set(late.names) == {"stays", "asks"}
    there = {"own"}
    for _ in range(3 * GONE_LOOKS):
        await late.forget_gone()
        await asyncio.sleep(ROSTER_EXPIRY_S + 1)
    assert set(late.names) == {"stays", "asks"}, "a roster that cannot be read says nothing of anybody"
    assert late.add("005-goes") and not late.add("006-goes")


@virtual
async def test_latecomers_that_one_of_several_tells_are_not_believed() -> None:
    machines = Machines()
    invented = [long_name(number) for number in range(500)]
    await machines.tell("000-a", TRUE, late=["008-x", "009-n"])
    await machines.tell("001-b", TRUE, late=["008-x", "009-n"])
    await machines.tell("003-d", TRUE, late=[*invented, "108-x", "\x1b[2J", 5, "007-y"])
    newcomer = await machines.start("009-n", joined=9.0, peers=2)
    await newcomer.form(timeout_s=30)
    assert set(newcomer.known.values()) == {"000-a", "001-b", "008-x", "009-n"}


NOT_A_LIST: dict[str, Any] = {
    "nothing": None,
    "nobody": [],
    "no pairs": [["000-a"]],
    "bytes": [[b"000-a", 1.0]],
    "no time": [["000-a", 1]],
    "nan": [["000-a", float("nan")], ["001-b", 2.0]],
    "infinity": [["000-a", float("inf")]],
    "control characters": [["000-a\x1b[2J", 1.0]],
    "no name": [["somebody", 1.0]],
    "one id under two names": [["000-a", 1.0], ["001-a", 1.0]],
    "one name twice": [["000-a", 1.0], ["000-a", 1.0]],
    "out of order": [["001-b", 1.0], ["000-a", 1.0]],
    "too many": [[f"000-{number:04d}", 1.0] for number in range(MAX_PEERS + 1)],
    "outside the list": [["000-a", 1.0], ["009-z", 1.0]],
}


@pytest.mark.parametrize("members", NOT_A_LIST.values(), ids=NOT_A_LIST)
@virtual
async def test_members_that_none_can_be_are_not_taken(members: Any) -> None:
    """Even when nobody else tells any."""
    machines = Machines()
    await machines.tell("000-a", members)
    newcomer = await machines.start("009-n", joined=9.0, peers=2, allow="abn")
    with pytest.raises(UserError):
        await newcomer.form(timeout_s=5)
    assert newcomer.names.keys() <= {"a", "n"} and not newcomer.late_joiner
    assert all(name.isprintable() for name in newcomer.known.values())


def test_a_list_of_members_of_the_run_is_taken() -> None:
    allow = MemoryTransport(MemoryNetwork(), "n", allow="abn").trust.allow
    assert (
        objection(TRUE, allow) == "" and objection([*TRUE, ["009-z", 1.0]], allow) == "009-z is not in exchange.allow"
    )


def test_the_session_is_named_by_all_of_the_hash() -> None:
    packed = b"\x92\xa1r\x92\x92\xa5000-a\xcb\x3f\xf0" + bytes(6) + b"\x92\xa5001-b\xcb\x40" + bytes(7)
    assert packed == msgpack.packb(["r", TRUE])
    assert session_of("r", TRUE) == f"r/{hashlib.sha256(packed).hexdigest()}"
    assert session_of("r", [["000-a", -0.0]]) == session_of("r", [["000-a", 0.0]])
    assert session_of("s", TRUE).partition("/")[2] != session_of("r", TRUE).partition("/")[2]


# who is in


@virtual
async def test_of_peers_that_joined_at_the_same_time_the_first_ids_are_members() -> None:
    machines = Machines()
    trio = [await machines.start(name, joined=5.0, peers=2) for name in ("002-a", "001-b", "000-c")]
    await asyncio.gather(*(one.form(timeout_s=30) for one in trio))
    assert [list(one.names) for one in trio] == [["b", "a"]] * 3
    assert [one.late_joiner for one in trio] == [False, False, True]


@virtual
async def test_a_newcomer_does_not_form_the_run_alone() -> None:
    """The newcomer b finds no other peer; later, a is there."""
    machines = Machines()
    b = await machines.start("001-b", joined=2.0, peers=1, newcomer=True)
    with pytest.raises(UserError, match=r"no other peer of run r is active \(the run has ended or is interrupted\)"):
        await b.form(timeout_s=300)
    a = await machines.start("000-a", joined=1.0, peers=1)
    await a.form(timeout_s=30)
    await b.form(timeout_s=30)
    assert list(a.names) == list(b.names) == ["a"] and b.late_joiner


@virtual
async def test_newcomers_form_a_run_together() -> None:
    machines = Machines()
    pair = [await machines.start(f"00{i}-{one}", joined=1.0 + i, peers=2, newcomer=True) for i, one in enumerate("ab")]
    await asyncio.gather(*(one.form(timeout_s=30) for one in pair))
    assert [one.late_joiner for one in pair] == [False, False]


@virtual
async def test_one_machine_too_many_does_not_part_a_member_from_those_who_have_formed() -> None:
    """a has formed with b; before b sees that, it sees s, whose clock is behind, among the first two."""
    machines = Machines()
    a, b = [await machines.start(f"00{i}-{one}", joined=1.0 + i, peers=2) for i, one in enumerate("ab")]
    machines.network.part("a", "b")
    with pytest.raises(UserError, match="do not answer"):  # it has seen both records
        await b.form(timeout_s=1)
    machines.network.heal()
    await a.form(timeout_s=30)
    s = await machines.start("002-s", joined=0.5, peers=2)
    await asyncio.gather(b.form(timeout_s=30), s.form(timeout_s=30))
    assert list(a.names) == list(b.names) == list(s.names) == ["a", "b"]
    assert a.session == b.session == s.session
    assert (b.late_joiner, s.late_joiner) == (False, True)


@pytest.mark.parametrize("seen", ["its record is still seen", "its record is gone"])
@virtual
async def test_a_member_that_dies_while_others_form_keeps_nobody_out(seen: str) -> None:
    """a and b have formed with c in their list; then b is gone for good, before c has heard of that."""
    machines = Machines()
    trio = [await machines.start(f"00{i}-{one}", joined=1.0 + i, peers=3) for i, one in enumerate("abc")]
    a, b, c = trio
    with pytest.raises(UserError, match="report other members"):
        await c.form(timeout_s=1)
    await asyncio.gather(a.form(timeout_s=30), b.form(timeout_s=30))
    machines.network.kill("b")
    if seen == "its record is gone":
        del machines.records["b"]
    await c.form(timeout_s=30)
    assert c.session == a.session == b.session and not c.late_joiner and list(c.names) == ["a", "b", "c"]


# liars among those that form

OTHERS: Members = [["000-a", 9.0], ["001-b", 2.0], ["002-c", 3.0], ["003-d", 4.0]]
LIES: dict[str, Any] = {
    "other members": {"members": OTHERS, "late": []},
    "no members": {"members": None, "late": []},
    "other members that have formed": {"members": OTHERS, "late": [], "formed": True},
    "members without them that have formed": {"members": [["003-d", 4.0]], "late": [], "formed": True},
    "itself and one of them that have formed": {
        "members": [["000-a", 1.0], ["003-d", 4.0]],
        "late": [],
        "formed": True,
    },
    "a refusal": TURNED_AWAY,
    "a different list each time": ...,
    "nothing": None,
}


@pytest.mark.parametrize("allow", ["abcd", ""], ids=["listed", "open"])
@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
@virtual
async def test_one_of_four_that_lies_stops_no_start(lie: Any, allow: str) -> None:
    """It is named, and is in the list that all the others have formed by."""
    machines = Machines()
    trio = [await machines.start(f"00{i}-{one}", joined=1.0 + i, peers=4, allow=allow) for i, one in enumerate("abc")]
    machines.records["d"] = Record("003-d", ["/x"], "f", 4.0)

    async def answer(remote: str, request: Request, stream: Stream) -> None:
        if lie is None:
            await asyncio.sleep(1000)
        told = {"members": [["000-a", float(now_s())]], "late": []} if lie is ... else lie
        await stream.send_object(told)
        await stream.ended()

    await MemoryTransport(machines.network, "d").serve("outerloop/1/r/members", allowed=bool, handler=answer)
    await asyncio.gather(*(one.form(timeout_s=60) for one in trio))
    assert len({one.session for one in trio}) == 1 and not any(one.late_joiner for one in trio)
    assert list(trio[0].names) == ["a", "b", "c", "d"] and FORM_GRACE_S < now_s() < 3 * FORM_GRACE_S


def has_formed(*members: list[Any]) -> dict[str, Any]:
    return {"members": sorted(members), "late": [], "formed": True}


FIRST_LIES: dict[str, Callable[[Record], dict[str, Any]]] = {
    "it has formed alone": lambda asker: has_formed(["003-d", 1.0]),
    "it has formed with the asker": lambda asker: has_formed([asker.name, asker.joined], ["003-d", 1.0]),
    "it refuses": lambda asker: TURNED_AWAY,
}


@pytest.mark.parametrize("lie", FIRST_LIES.values(), ids=FIRST_LIES)
@virtual
async def test_one_liar_that_is_there_first_does_not_take_the_others_of_its_list_in(
    lie: Callable[[Record], dict[str, Any]],
) -> None:
    """It lies to each that comes; the others come one after the other."""
    machines = Machines()
    await machines.lie("003-d", lie)
    trio, forming = [], []
    for i, one in enumerate("abc"):
        trio.append(await machines.start(f"00{i}-{one}", joined=5.0 + i, peers=4, allow="abcd"))
        forming.append(asyncio.create_task(trio[-1].form(timeout_s=60)))
        await asyncio.sleep(3)
    await asyncio.gather(*forming)
    assert len({one.session for one in trio}) == 1 and not any(one.late_joiner for one in trio)
    assert list(trio[0].names) == ["a", "b", "c", "d"]


@virtual
async def test_the_first_peer_of_an_open_run_forms_it_although_a_stranger_refuses_it() -> None:
    machines = Machines()
    await machines.lie("003-d", lambda asker: TURNED_AWAY)
    a = await machines.start("000-a", joined=0.5, peers=1)
    await a.form(timeout_s=60)
    assert list(a.names) == ["a"] and not a.late_joiner


@pytest.mark.parametrize("allow", ["abcd", ""], ids=["listed", "open"])
@virtual
async def test_a_peer_that_more_than_half_of_the_peers_refuse_ends_at_once(allow: str) -> None:
    """The rest cannot form the run with it."""
    machines = Machines()
    for name in ("001-b", "002-c", "003-d"):
        await machines.lie(name, lambda asker: TURNED_AWAY)
    a = await machines.start("000-a", joined=9.0, peers=4, allow=allow)
    rejected = "^001-b, 002-c, 003-d of run r reject this peer, which is not in their exchange.allow: add a to"
    with pytest.raises(UserError, match=rejected):
        await a.form(timeout_s=60)
    assert now_s() < 5


@pytest.mark.parametrize(
    ("refusing", "silent", "peers", "allow", "line"),
    [
        ("d", "", 4, "", r"2 of 4 peers are present \(000-a, 003-d\), 2 missing; .*; 003-d of run r reject this peer"),
        ("cd", "", 5, "", r"3 of 5 peers are present \(.*\), 2 missing; .*; 002-c, 003-d of run r reject this peer"),
        ("cd", "", 3, "abcde", r"3 of 3 peers are present \(.*\); 002-c, 003-d of run r reject this peer"),
        ("cd", "b", 4, "", r"4 of 4 peers are present \(.*\), but .*: 001-b; .*; 002-c, 003-d of run r reject"),
        ("cd", "be", 3, "", r"5 of 3 peers are present \(.*\), too many; .*; 002-c, 003-d of run r reject this peer"),
    ],
)
@virtual
async def test_refusals_by_fewer_peers_are_named_at_the_end(
    refusing: str, silent: str, peers: int, allow: str, line: str
) -> None:
    """Others may still come, of all peers that the run expects or that the list contains."""
    machines = Machines()
    a = await machines.start("000-a", joined=0.5, peers=peers, allow=allow)
    for letter in sorted(refusing + silent):
        name = f"{'abcde'.index(letter):03d}-{letter}"
        machines.records[letter] = Record(name, ["/x"], "f", 9.0)
        if letter in refusing:
            await machines.lie(name, lambda asker: TURNED_AWAY)
    with pytest.raises(UserError, match=line):
        await a.form(timeout_s=60)
    assert now_s() >= 60


@virtual
async def test_a_peer_that_most_others_have_removed_learns_how_it_can_return() -> None:
    """Whatever one of them states."""
    machines = Machines()
    for name, why in (("001-b", "removed"), ("002-c", "removed"), ("003-d", "expelled")):
        await machines.lie(name, lambda asker, why=why: TURNED_AWAY | {"why": why})
    a = await machines.start("000-a", joined=9.0, peers=4)
    with pytest.raises(UserError, match=r"reject this peer, which was removed .*expelled RUN_DIR --lift a\), "):
        await a.form(timeout_s=60)


@virtual
async def test_half_of_the_members_form_nothing() -> None:
    machines = Machines()
    pair = [await machines.start(f"00{i}-{one}", joined=1.0 + i, peers=4) for i, one in enumerate("ab")]
    for i, one in enumerate("cd"):
        machines.records[one] = Record(f"00{2 + i}-{one}", ["/x"], "f", 3.0 + i)
    ends = await asyncio.gather(*(one.form(timeout_s=60) for one in pair), return_exceptions=True)
    assert all(
        isinstance(end, UserError) and "002-c, 003-d; check that they can be reached" in str(end) for end in ends
    )


# peers that were invited for a number of rounds


@pytest.mark.parametrize("joined", [0.0, 1.5, 9.0])
@virtual
async def test_a_peer_whose_rounds_may_be_over_joins_late(joined: float) -> None:
    """x is there when a starts; b comes later."""
    machines = Machines()
    options: dict[str, Any] = {"peers": 2, "allow": "ab", "limited": "x"}
    x = await machines.start("002-x", joined=joined, **options)
    a = await machines.start("000-a", joined=1.0, **options)
    forming = [asyncio.create_task(one.form(timeout_s=60)) for one in (x, a)]
    await asyncio.sleep(3)
    b = await machines.start("001-b", joined=2.0, **options)
    await asyncio.gather(*forming, b.form(timeout_s=60))
    assert all(list(one.names) == ["a", "b"] for one in (x, a, b))
    assert [one.late_joiner for one in (x, a, b)] == [True, False, False]


@virtual
async def test_a_peer_whose_rounds_may_be_over_does_not_make_others_believe_that_it_has_formed_with_them() -> None:
    machines = Machines()
    await machines.lie("002-x", lambda asker: has_formed([asker.name, asker.joined], ["002-x", 1.0]))
    pair = [
        await machines.start(f"00{i}-{one}", joined=5.0, peers=2, allow="ab", limited="x") for i, one in enumerate("ab")
    ]
    await asyncio.gather(*(one.form(timeout_s=60) for one in pair))
    assert all(list(one.names) == ["a", "b"] and not one.late_joiner for one in pair)


@virtual
async def test_a_peer_whose_rounds_may_be_over_does_not_start_a_run() -> None:
    machines = Machines()
    x = await machines.start("002-x", joined=1.0, peers=1, allow="ab", limited="x")
    with pytest.raises(UserError, match="no other peer of run r is active"):
        await x.form(timeout_s=60)


# the port


@pytest.fixture
def taken() -> Iterator[int]:
    """A port on which something listens that would share it, as libp2p does."""
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening.getsockname()[1]


def test_a_port_that_is_taken_is_told_in_one_line(taken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon, "STOP_S", 0.3)
    for host in ("127.0.0.1", "0.0.0.0"):
        with pytest.raises(UserError, match=rf"listens on {host}, port {taken}: set exchange.port="):
            asyncio.run(daemon.wait_for_port(host, taken))
    asyncio.run(daemon.wait_for_port("127.0.0.1", 0))


def test_two_peers_do_not_share_a_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon, "STOP_S", 0.5)
    with visit(observer=False) as one:
        port = int(one.addresses[0].split("/tcp/")[1].split("/")[0])
        with pytest.raises(UserError, match=f"port {port}"), visit(observer=False, port=port):
            pass
    monkeypatch.undo()
    with visit(observer=False, port=port) as other:
        assert f"/tcp/{port}/" in other.addresses[0], "it is free again at once"
