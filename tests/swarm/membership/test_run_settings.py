"""Which settings differ is found from hashes, asked of who has others, and never ends a run that is forming."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from outerloop.config import load, shared_settings
from outerloop.swarm.dht.records import MAX_RECORD_BYTES
from outerloop.swarm.membership.formation import Formation
from outerloop.swarm.membership.mismatched_peers import MAX_NAMED, MismatchedPeers
from outerloop.swarm.membership.roster import Record, Roster
from outerloop.swarm.membership.run_settings import (
    ENTRY_BYTES,
    MAX_SETTINGS,
    MAX_TEXT,
    RunSettings,
    checked_setting,
    short_hash,
    well_formed,
)
from outerloop.types import UserError
from tests.support.swarm.memory_network import MemoryNetwork, MemoryTransport
from tests.support.swarm.virtual_clock import run, virtual

PLAIN = {"recipe": "diloco", "rounds": "5", "inner.lr": "0.01", "inner.batch": "8", "seed": "0"}


def settings(**changes: str) -> RunSettings:
    return RunSettings(PLAIN | {key.replace("__", "."): value for key, value in changes.items()})


def names(ours: RunSettings, theirs: RunSettings) -> list[str]:
    return [(ours.answer(one) or theirs.answer(one))["key"] for one in ours.differing(theirs.packed)]


def test_differing_settings_are_found_from_hashes_in_order_of_importance() -> None:
    assert names(settings(), settings()) == []
    assert names(settings(), settings(inner__lr="0.002")) == ["inner.lr"]
    assert names(settings(), settings(inner__lr="0.002", seed="1", rounds="9")) == ["rounds", "seed", "inner.lr"]
    assert names(settings(), settings(recipe="ddp", inner__lr="1")) == ["recipe"], "the others follow from it"
    derived = {"inner__optimizer__lr": "0.01"}, {"inner__lr": "0.002", "inner__optimizer__lr": "0.002"}
    assert names(*(settings(**of) for of in derived)) == ["inner.lr"]
    assert names(settings(lanes="2"), settings()) == names(settings(), settings(lanes="2")) == ["lanes"]


@pytest.mark.long
def test_the_settings_of_every_recipe_fit_a_record_and_one_option_is_one_difference() -> None:
    ours = shared_settings.settings_to_compare(load.load(["exchange=swarm_gather"]))["settings"]
    theirs = shared_settings.settings_to_compare(load.load(["exchange=swarm_gather", "inner.lr=0.5"]))["settings"]
    assert names(ours, theirs) == ["inner.lr"] and 2 * len(ours.packed) < MAX_RECORD_BYTES
    rules = shared_settings.settings_to_compare(load.load(["exchange=swarm_gather", "exchange.quorum=all"]))["settings"]
    assert names(ours, rules) == ["exchange.quorum"]
    many = RunSettings({f"key {number}": "1" for number in range(10_000)})
    assert len(many.packed) == MAX_SETTINGS * ENTRY_BYTES < MAX_RECORD_BYTES and well_formed(many.packed)


@pytest.mark.parametrize("packed", [None, "x", b"1234567", bytes(ENTRY_BYTES * (MAX_SETTINGS + 1)), [b"12345678"]])
def test_a_malformed_list_of_hashes_is_ignored(packed: Any) -> None:
    assert not well_formed(packed)


@pytest.mark.parametrize(
    "value",
    [
        {"key": "inner.lr"},
        {"key": "seed", "value": "1"},
        {"key": "inner.lr", "value": "\x1b[2J"},
        {"key": "inner.lr", "value": "1" * (MAX_TEXT + 1)},
        {"key": "inner.lr", "value": 1},
        ["inner.lr", "1"],
    ],
)
def test_answers_of_strangers_are_checked(value: Any) -> None:
    assert checked_setting({"key": "inner.lr", "value": "1"}, short_hash("inner.lr"))
    with pytest.raises(ValueError, match="setting"):
        checked_setting(value, short_hash("inner.lr"))


class World:
    """Peers in memory that see each other's records: letter -> its membership, and what it told its user."""

    def __init__(self) -> None:
        self.network = MemoryNetwork(delay_s=(0.01, 0.1))
        self.records: dict[str, Record] = {}
        self.peers: dict[str, Formation] = {}
        self.said: dict[str, list[str]] = {}

    async def read(self) -> list[Record]:
        return list(self.records.values())

    async def start(self, letter: str, own: RunSettings, *, peers: int, joins: str = "", worker: int = 0) -> None:
        fingerprint = own.packed.hex()[:32] + own.packed.hex()[-32:]
        name = f"{worker:03d}-{letter}"
        record = Record(name, ["/x"], str(hash(fingerprint)), float(len(self.records)), settings=own.packed)
        self.records[letter], self.said[letter] = record, []
        link = MemoryTransport(self.network, letter)
        mismatched = MismatchedPeers(
            link, run="r", own=record, settings=own, joined=list(joins), on_status=self.said[letter].append
        )
        roster = cast(Roster, self)
        self.peers[letter] = Formation(link, roster, run="r", peers=peers, own=record, mismatched=mismatched)
        await self.peers[letter].serve()
        await mismatched.serve()

    async def form(self, letter: str, *, timeout_s: float = 30) -> str:
        """What it came to: the letters of the members, or the error; who ends is not there any more."""
        try:
            await self.peers[letter].form(timeout_s=timeout_s)
        except UserError as error:
            del self.records[letter]
            return str(error)
        return "".join(self.peers[letter].names)


def formed(*peers: tuple[str, RunSettings, str, int], size: int) -> tuple[dict[str, str], dict[str, list[str]]]:
    """(letter, settings, whom it joined, worker) of each -> what each came to, and what it told."""

    async def scene() -> tuple[dict[str, str], dict[str, list[str]]]:
        world = World()
        for letter, own, joins, worker in peers:
            await world.start(letter, own, peers=size, joins=joins, worker=worker)
        ends = await asyncio.gather(*(world.form(letter) for letter, *_ in peers))
        return dict(zip((letter for letter, *_ in peers), ends, strict=True)), world.said

    return run(scene())


ODD = settings(inner__lr="0.002")


def test_a_stranger_does_not_end_the_first_peer_and_the_others_form_without_it() -> None:
    ends, said = formed(("a", settings(), "", 0), ("x", ODD, "a", 0), ("b", settings(), "a", 0), size=2)
    assert ends["a"] == ends["b"] == "ab"
    assert ends["x"] == "inner.lr is 0.002 here and 0.01 at 000-a: set inner.lr=0.01 or another exchange.run"
    assert said["a"] == ["left out because of different settings: inner.lr is 0.01 here and 0.002 at 000-x"], "once"


def test_many_strangers_do_not_either_and_not_all_are_asked() -> None:
    crowd = [(letter, ODD, "", 0) for letter in "klmnopqrstuvwxyzABCDEFGH"]
    ends, said = formed(("a", settings(), "", 0), ("b", settings(), "a", 0), *crowd, size=2)
    assert ends["a"] == ends["b"] == "ab" and len(said["a"]) <= MAX_NAMED


def test_nobody_with_the_same_settings_is_waited_for_until_the_time_is_over() -> None:
    ends, _ = formed(("a", settings(), "", 0), ("x", settings(seed="7"), "", 0), size=2)
    assert "after 30 s, 1 of 2 peers are present (000-a), 1 missing" in ends["a"]
    assert ends["a"].endswith("seed is 0 here and 7 at 000-x; set seed=7 or another exchange.run")


def test_a_machine_of_many_workers_with_a_mistake_is_the_odd_one() -> None:
    machine = [("x", ODD, "a", 0), ("y", ODD, "x", 1), ("z", ODD, "x", 2)]
    ends, _ = formed(("a", settings(), "", 0), ("b", settings(), "a", 0), *machine, size=5)
    assert ends["x"].startswith("inner.lr is 0.002 here and 0.01 at 000-a") and "after 30 s" in ends["a"]


def test_a_peer_that_joined_by_the_address_of_the_odd_one_forms_with_the_others() -> None:
    ends, _ = formed(("a", ODD, "", 0), ("b", settings(), "a", 0), ("c", settings(), "a", 0), size=2)
    assert ends["b"] == ends["c"] == "bc" and "after 30 s, 1 of 2 peers are present (000-a)" in ends["a"]


def test_a_peer_that_does_not_tell_is_named_all_the_same() -> None:
    async def scene() -> str:
        world = World()
        await world.start("a", settings(), peers=2)
        await world.start("x", ODD, peers=2)
        world.network.kill("x")
        return await world.form("a", timeout_s=10)

    assert run(scene()).endswith(
        "inner.lr is 0.01 here and another value at 000-x; set the same options on all peers, or another exchange.run"
    )


GARBAGE: dict[str, Any] = {
    "another key": {"key": "seed", "value": "1"},
    "control characters": {"key": "inner.lr", "value": "\x1b[2J"},
    "long": {"key": "inner.lr", "value": "1" * 10_000},
    "no text": {"key": "inner.lr", "value": {}},
    "other keys": {"value": "1"},
    "no map": None,
    "no message": b"\xc1",
    "never": ...,
}


@pytest.mark.parametrize("said", GARBAGE.values(), ids=GARBAGE)
@virtual
async def test_a_peer_that_answers_nonsense_ends_no_other_peer(said: Any) -> None:
    """x is the address that a was given; it tells nothing that can be right, and b comes later."""
    world = World()
    await world.start("x", ODD, peers=2)
    await world.start("a", settings(), peers=2, joins="x")

    async def answer(remote: str, request: Any, stream: Any) -> None:
        if said is ...:
            await asyncio.sleep(1000)
        elif isinstance(said, bytes):
            await stream.send(said)
        else:
            await stream.send_object(said)
        await stream.ended()

    await MemoryTransport(world.network, "x").serve("outerloop/1/r/setting", allowed=lambda peer: True, handler=answer)
    forming = asyncio.create_task(world.form("a"))
    await asyncio.sleep(8)
    await world.start("b", settings(), peers=2, joins="x")
    assert await world.form("b") == await forming == "ab"
    assert world.said["a"] == [
        "left out because of different settings: inner.lr is 0.01 here and another value at 000-x"
    ]
