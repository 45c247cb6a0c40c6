"""Real daemons on loopback: a key that was invited joins a run with an allow-list, takes part, and is expelled."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import msgpack
import pytest

from outerloop.exchange.swarm_gather import SwarmGather
from outerloop.swarm.access.access_control import AccessControl, AllowList, RejectionLog
from outerloop.swarm.access.admissions import Removal, Withdrawal
from outerloop.swarm.access.identity import ensure_identity
from outerloop.swarm.access.invite_register import InviteRegister
from outerloop.swarm.access.invites import Token
from outerloop.swarm.access.register_files import ADDRESS, REMOVAL, folder_of, stored, write_waiting
from outerloop.swarm.access.signatures import Signatures
from outerloop.swarm.invites.invite_client import InviteRefused, use
from outerloop.swarm.p2p.observer import visit
from outerloop.swarm.p2p.transport import Unreachable
from outerloop.swarm.storage import Folder
from outerloop.types import Round, UserError
from tests.support.swarm.loopback import Make, eventually, together


def admit(identity: Path, token: Token, address: str, listed: list[str]) -> None:
    """What `outerloop join --invite` does before it trains."""
    own = Signatures.of(ensure_identity(identity))
    receiver = address.rpartition("/p2p/")[2]
    with visit() as node:
        node.call(node.dial(address), timeout_s=30)
        statements = node.call(use(node, receiver, token.binding(own.peer_id)), timeout_s=30)
    trust = AccessControl(own, AllowList(listed), RejectionLog())
    register = InviteRegister(Folder(folder_of(identity)), trust, run=token.invite.run)
    asyncio.run(register.add(statements))
    assert own.peer_id in register.peers.last


def round_of(peers: list[SwarmGather], number: int) -> list[str]:
    """The peers whose payloads the next round counts."""
    landed = together(peers, lambda peer: peer.start(b"x", Round(number)).wait(60))
    assert all(not isinstance(one, Exception) for one in landed), landed
    assert all(one == landed[0] for one in landed)
    return [one.peer for one in landed[0]]


def test_an_invited_peer_counts_after_a_restart_too_and_not_when_expelled(make: Make, tmp_path: Path) -> None:
    paths = [ensure_identity(tmp_path / f"identity{index}") for index in range(4)]
    own = [Signatures.of(path) for path in paths]
    ids = [one.peer_id for one in own]
    listed = ids[:2]
    options = {"peers": 3, "allow": listed, "invites": True, "grace_s": 30.0}
    first = [make(worker=index, identity_path=str(paths[index]), **options) for index in range(2)]
    token = Token.new(own[0], run="r", listed=listed, name="", expires_s=int(time.time()) + 600, rounds=0)

    with pytest.raises(UserError, match="rejects this peer"):
        make(worker=2, identity_path=str(paths[2]), **options)
    admit(paths[2], token, first[1].address[0], listed)
    with pytest.raises(InviteRefused, match="used"):
        admit(paths[3], token, first[0].address[0], listed)
    with pytest.raises(UserError, match="rejects this peer"):
        make(worker=3, identity_path=str(paths[3]), **options)

    peers = [*first, make(worker=2, identity_path=str(paths[2]), **options)]
    assert together(peers, SwarmGather.join) == [None] * 3
    assert round_of(peers, 0) == [peer.peer for peer in peers]
    assert bytes(Folder(folder_of(paths[0])).read(ADDRESS)).decode().splitlines() == first[0].address

    together(peers, SwarmGather.close)
    again = make(worker=0, identity_path=str(paths[0]), initial_peers=[], **options)
    rest = {**options, "initial_peers": again.address}
    peers = [again, *(make(worker=index, identity_path=str(paths[index]), **rest) for index in (1, 2))]
    assert together(peers, SwarmGather.join) == [None] * 3
    assert round_of(peers, 0) == [peer.peer for peer in peers], "each reads the admission from its disk"

    removal = Removal.new(own[0], run="r", peer=ids[2], lifted=False, at_s=int(time.time()))
    asyncio.run(Folder(folder_of(paths[0])).write(f"{REMOVAL}1", msgpack.packb(removal.to_list())))
    allows = [peer.node.trust.allow for peer in peers]
    assert eventually(lambda: all(ids[2] not in allow for allow in allows), limit_s=60)
    with pytest.raises(UserError, match=r"this peer was removed from the run with outerloop expel: ask the organizer"):
        peers[2].start(b"x", Round(1)).wait(60)
    peers[2].abort()
    assert round_of(peers[:2], 1) == [peer.peer for peer in peers[:2]]
    for peer in peers[:2]:
        peer.close(linger=False)
    with pytest.raises(UserError, match=r"this peer was removed|rejects this peer"):
        make(worker=2, identity_path=str(paths[2]), initial_peers=[], **options).join()


def test_a_withdrawn_token_admits_no_key(make: Make, tmp_path: Path) -> None:
    """While the issuer runs, and the token is shown to another listed peer."""
    paths = [ensure_identity(tmp_path / f"identity{index}") for index in range(3)]
    own = [Signatures.of(path) for path in paths]
    listed = [one.peer_id for one in own[:2]]
    options = {"peers": 2, "allow": listed, "invites": True}
    peers = [make(worker=index, identity_path=str(paths[index]), **options) for index in range(2)]
    assert together(peers, SwarmGather.join) == [None] * 2

    until_s = int(time.time()) + 600
    token = Token.new(own[0], run="r", listed=listed, name="", expires_s=until_s, rounds=0)
    withdrawal = Withdrawal.new(own[0], run="r", digest=token.invite.digest, expires_s=until_s, at_s=int(time.time()))
    asyncio.run(write_waiting(Folder(folder_of(paths[0])), withdrawal))
    registers = [Folder(folder_of(path)) for path in paths[:2]]
    assert eventually(lambda: all(withdrawal in stored(register) for register in registers), limit_s=60)
    for peer in peers:
        with pytest.raises(InviteRefused, match="withdrawn"):
            admit(paths[2], token, peer.address[0], listed)
    with pytest.raises(UserError, match="rejects this peer"):
        make(worker=2, identity_path=str(paths[2]), **options)


def test_a_run_without_invites_admits_only_its_list(make: Make, tmp_path: Path) -> None:
    own = Signatures.of(ensure_identity(tmp_path / "identity0"))
    listed = [own.peer_id]
    one = make(peers=1, allow=listed)
    token = Token.new(own, run="r", listed=listed, name="", expires_s=int(time.time()) + 600, rounds=0)
    with pytest.raises(Unreachable):
        admit(tmp_path / "identity1", token, one.address[0], listed)
