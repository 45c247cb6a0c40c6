"""Lines about peers that enter and leave the roster: whom they name, why, and how many there are at most."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from outerloop.exchange.roster_news import LINES, RosterNews
from outerloop.exchange.swarm_gather import SwarmGather
from outerloop.exchange_protocols import roster_news
from outerloop.swarm.access.access_control import AllowList
from outerloop.swarm.consensus.commit import Commit
from outerloop.swarm.consensus.resignation import Resignation
from outerloop.swarm.consensus.votes import CommitCertificate
from outerloop.swarm.validation import id_of
from outerloop.types import Round
from tests.support.swarm.loopback import Make, eventually, together

OWN, ADA, BOB = (f"000-12D3Koo{letter * 40}" for letter in "OAB")


class Contributors:
    """The names that are known: those of `present` only once the roster has been read."""

    def __init__(self, present: dict[str, str]) -> None:
        self.present, self.known, self.reads = present, {}, 0
        self.names = SimpleNamespace(texts=lambda: self.known)

    async def learn_present(self) -> None:
        self.reads += 1
        self.known = dict(self.present)


def decided(number: int, *roster: str, resigned: Sequence[str] = ()) -> CommitCertificate:
    resignations = tuple(Resignation(peer, number, b"h" * 32, b"s" * 64) for peer in resigned)
    return CommitCertificate(Commit(number, b"p" * 32, 0, (), roster), 0, (), resignations=resignations)


def lines_of(
    *logs: list[CommitCertificate],
    present: dict[str, str] | None = None,
    fragments: int = 1,
    allow: AllowList | None = None,
    clock: list[float] | None = None,
) -> list[list[str]]:
    """The lines after each of these logs."""

    async def scene() -> list[list[str]]:
        news = RosterNews(
            own=OWN,
            fragments=fragments,
            allow=allow or AllowList(),
            contributors=Contributors(present or {}),  # type: ignore[arg-type]
            now_s=lambda: clock[0] if clock else 0.0,
        )
        out = []
        for log in logs:
            news.follow(log)
            await asyncio.sleep(0.01)  # the lines are written in a task
            out.append(news.take())
            if clock:
                clock[0] += 10.0
        return out

    return asyncio.run(scene())


def test_a_peer_that_joins_is_named_with_its_id_and_its_round() -> None:
    found = lines_of([decided(58, OWN)], [decided(59, OWN), decided(60, ADA, OWN)], present={id_of(ADA): "Ada"})
    assert found == [[], ["joined: Ada (…AAAAAAAA), round 61"]]


def test_a_peer_that_leaves_is_named_with_the_reason() -> None:
    allow = AllowList()
    allow.expel(id_of(BOB))
    start = decided(1, ADA, BOB, OWN)
    assert lines_of([start], [start, decided(2, OWN, resigned=[ADA])], allow=allow)[1] == [
        "left: …AAAAAAAA, round 3: resigned",
        "left: …BBBBBBBB, round 3: was expelled from the run",
    ]
    assert lines_of([start], [start, decided(2, BOB, OWN)])[1] == ["left: …AAAAAAAA, round 3: no messages"]


def test_nothing_is_said_of_this_peer_nor_of_a_change_twice_and_fragments_share_a_round() -> None:
    log = [decided(7, OWN), decided(8, ADA), decided(9, ADA), decided(10, OWN)]
    assert lines_of(log[:1], log, log, fragments=4)[1:] == [
        ["joined: …AAAAAAAA, round 3", "left: …AAAAAAAA, round 3: no messages"],
        [],
    ]


def test_a_flood_of_peers_is_counted_in_one_line() -> None:
    crowd = sorted(f"000-12D3Koo{index:040}" for index in range(200))
    flood, over = [decided(2, *crowd, OWN)], [decided(3, *crowd, OWN)]
    _, first, second, third = lines_of([decided(1, OWN)], flood, over, over, clock=[0.0])
    assert len(first) == LINES.burst and all(line.startswith("joined: …") for line in first)
    assert second == ["190 more joined: outerloop status and outerloop watch list all peers"] and third == []


def test_peers_on_loopback_report_who_resigned(make: Make) -> None:
    trio = [make(peers=3, grace_s=30.0) for _ in range(3)]
    together(trio, SwarmGather.join)
    together(trio, lambda one: one.start(b"x", Round(0)).wait(30))
    assert roster_news(trio[0]) == []
    trio[2].abort()
    for number in (1, 2):
        together(trio[:2], lambda one, number=number: one.start(b"x", Round(number)).wait(30))
    said: list[str] = []
    assert eventually(lambda: bool(said.extend(roster_news(trio[0])) or said), limit_s=20)
    [line] = said
    assert line in [f"left: …{trio[2].peer[-8:]}, round {number}: resigned" for number in (2, 3)]


@pytest.mark.parametrize("name", ["[red]<b>", "a:b"])
def test_a_name_is_text(name: str) -> None:
    found = lines_of([decided(0, OWN)], [decided(1, ADA, OWN)], present={id_of(ADA): name})
    assert found[1] == [f"joined: {name} (…AAAAAAAA), round 2"]
