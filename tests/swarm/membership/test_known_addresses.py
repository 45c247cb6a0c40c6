"""A peer remembers the addresses of the others, so that it finds the run again after a restart."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from outerloop.swarm.membership.known_addresses import (
    MAX_ADDRESSES,
    MAX_PER_PEER,
    addresses_file,
    addresses_of,
    keep_addresses,
    read_addresses,
    remember,
)
from outerloop.swarm.membership.roster import Record, peer_name
from outerloop.swarm.p2p.daemon import check_addresses
from outerloop.swarm.timeouts import ROSTER_REFRESH_S
from tests.support.swarm.dht_scene import id_of
from tests.support.swarm.virtual_clock import run


def record(number: int, *hosts: str, joined: float = 0.0, signer: int | None = None) -> Record:
    peer = id_of(number if signer is None else signer)
    return Record(peer_name(0, id_of(number)), [f"/ip4/{host}/tcp/4/p2p/{peer}" for host in hosts], "", joined)


def strangers(count: int) -> list[Record]:
    """Records of peers that say that they joined before all others, each with the most addresses that are kept."""
    return [record(100 + i, *(f"8.8.{i}.{place}" for place in range(4)), joined=0.0) for i in range(count)]


def test_one_address_of_each_peer_precedes_second_ones_and_the_best_is_first() -> None:
    one, other = record(1, "127.0.0.1", "8.8.8.8"), record(2, "10.0.0.1")
    assert addresses_of([one, other]) == [one.addresses[1], other.addresses[0], one.addresses[0]]


def test_second_addresses_of_strangers_do_not_push_out_the_first_of_others() -> None:
    honest = [record(i, "8.8.4.4", joined=1.7e9) for i in range(1, 11)]
    found = addresses_of(strangers(16) + honest)
    assert {one.addresses[0] for one in honest} < set(found) and len(found) == MAX_ADDRESSES


def test_peers_met_before_and_members_keep_their_places_whatever_strangers_say(tmp_path: Path) -> None:
    file, met, member = tmp_path / "identity.peers", record(1, "8.8.4.4", joined=2.0), record(2, "9.9.9.9", joined=3.0)
    many = strangers(2 * MAX_ADDRESSES)
    remember(file, [met])
    for _ in range(2):
        remember(file, [*many, met, member], is_member=lambda peer_id: peer_id == member.peer_id)
        assert read_addresses(file)[:2] == [*member.addresses, *met.addresses]
    remember(file, [*many, met], is_member=lambda peer_id: peer_id == member.peer_id)
    assert read_addresses(file)[:2] == [*member.addresses, *met.addresses]  # a member that is away for a while


def test_peers_that_are_away_keep_only_the_places_that_present_ones_leave() -> None:
    away, few = record(1, "8.8.4.4"), strangers(2)
    assert addresses_of(few, kept=away.addresses)[:3] == [*(one.addresses[0] for one in few), *away.addresses]
    assert away.addresses[0] not in addresses_of(strangers(MAX_ADDRESSES), kept=away.addresses)


def test_a_new_address_of_a_known_peer_replaces_the_old_ones() -> None:
    old, new = record(1, "8.8.4.4", "8.8.8.8"), record(1, "9.9.9.9")
    assert addresses_of([new], kept=old.addresses) == new.addresses


def test_one_peer_cannot_fill_the_list_and_all_together_cannot_exceed_it() -> None:
    many = [f"8.8.8.{i}" for i in range(16)]
    assert len(addresses_of([record(1, *many)])) == MAX_PER_PEER
    assert len(addresses_of([record(i, *many) for i in range(1, 40)])) == MAX_ADDRESSES


def test_addresses_that_do_not_name_their_peer_are_dropped() -> None:
    stranger = record(1, "8.8.8.8", signer=2)
    broken = Record(peer_name(0, id_of(3)), ["/ip4/8.8.8.8/tcp/4", "x", f"\u202e/p2p/{id_of(3)}"], "", 0.0)
    assert addresses_of([stranger, broken]) == []


def test_the_file_follows_the_roster_and_keeps_peers_that_have_left(tmp_path: Path) -> None:
    file = addresses_file(tmp_path / "identity.key")
    present = [record(1, "8.8.8.8")]

    async def others() -> list[Record]:
        return list(present)

    async def scene() -> None:
        keeping = asyncio.create_task(keep_addresses(file, others, is_member=lambda peer_id: False))
        await asyncio.sleep(1)
        assert read_addresses(file) == present[0].addresses
        present.append(record(2, "8.8.4.4"))
        await asyncio.sleep(ROSTER_REFRESH_S)
        both = read_addresses(file)
        assert len(both) == 2
        present.clear()
        await asyncio.sleep(ROSTER_REFRESH_S)
        assert read_addresses(file) == both
        keeping.cancel()

    assert file == tmp_path / "identity.peers" and read_addresses(file) == []
    run(scene())


def test_a_damaged_file_costs_only_its_damaged_lines(tmp_path: Path) -> None:
    good = record(1, "8.8.8.8").addresses[0]
    (tmp_path / "identity.peers").write_bytes(b"\xff\xfe\n" + good.encode() + b"\n/ip4/8.8.8.8/tcp/4\n")
    assert read_addresses(tmp_path / "identity.peers") == [good]


@pytest.mark.parametrize("zone", ["${x}", "${oc.env:HOME}", "x,y", "a b", "'", '"', "[x]", "x=y"])
def test_an_address_with_characters_of_an_option_is_neither_stored_nor_read(tmp_path: Path, zone: str) -> None:
    """hivemind's multiaddr accepts any text as an ip6zone; such an address would end this peer when it restarts."""
    good = record(1, "8.8.8.8")
    bad = f"/ip6zone/{zone}/p2p/{good.peer_id}"
    check_addresses("", [bad], must_name="p2p")
    assert addresses_of([replace(good, addresses=[bad, *good.addresses])]) == good.addresses
    (tmp_path / "identity.peers").write_text(f"{bad}\n{good.addresses[0]}\n")
    assert read_addresses(tmp_path / "identity.peers") == good.addresses


@pytest.mark.parametrize(
    "address", ["/ip6/2001:db8::1/tcp/4", "/dns4/peer-1.example.org/tcp/4", "/ip6zone/eth0/ip6/fe80::1/udp/4/quic-v1"]
)
def test_usual_addresses_are_stored(address: str) -> None:
    full = f"{address}/p2p/{id_of(1)}"
    assert addresses_of([replace(record(1), addresses=[full])]) == [full]
