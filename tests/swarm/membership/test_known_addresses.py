"""A peer remembers the addresses of the others, so that it finds the run again after a restart."""

from __future__ import annotations

import asyncio
from pathlib import Path

from outerloop.swarm.membership.known_addresses import (
    MAX_ADDRESSES,
    MAX_PER_PEER,
    addresses_file,
    addresses_of,
    keep_addresses,
    read_addresses,
)
from outerloop.swarm.membership.roster import Record, peer_name
from outerloop.swarm.timeouts import ROSTER_REFRESH_S
from tests.support.swarm.dht_scene import id_of
from tests.support.swarm.virtual_clock import run


def record(number: int, *hosts: str, joined: float = 0.0, signer: int | None = None) -> Record:
    peer = id_of(number if signer is None else signer)
    return Record(peer_name(0, id_of(number)), [f"/ip4/{host}/tcp/4/p2p/{peer}" for host in hosts], "", joined)


def test_the_best_addresses_of_each_peer_are_kept_those_of_early_peers_first() -> None:
    early, late = record(1, "127.0.0.1", "8.8.8.8"), record(2, "10.0.0.1", joined=1.0)
    assert addresses_of([late, early]) == [early.addresses[1], early.addresses[0], late.addresses[0]]


def test_one_peer_cannot_fill_the_list_and_all_together_cannot_exceed_it() -> None:
    many = [f"8.8.8.{i}" for i in range(16)]
    assert len(addresses_of([record(1, *many)])) == MAX_PER_PEER
    assert len(addresses_of([record(i, *many) for i in range(1, 40)])) == MAX_ADDRESSES


def test_addresses_that_do_not_name_their_peer_are_dropped() -> None:
    stranger = record(1, "8.8.8.8", signer=2)
    broken = Record(peer_name(0, id_of(3)), ["/ip4/8.8.8.8/tcp/4", "x", f"\u202e/p2p/{id_of(3)}"], "", 0.0)
    assert addresses_of([stranger, broken]) == []


def test_the_file_follows_the_roster_and_keeps_the_last_peers_when_all_have_left(tmp_path: Path) -> None:
    file = addresses_file(tmp_path / "identity.key")
    present = [record(1, "8.8.8.8")]

    async def others() -> list[Record]:
        return list(present)

    async def scene() -> None:
        keeping = asyncio.create_task(keep_addresses(file, others))
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
