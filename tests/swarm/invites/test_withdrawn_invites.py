"""Running peers refuse withdrawn invites, and stop a peer that used one where the withdrawal was not known yet."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from outerloop.swarm.access.invited_peers import KEEP_S
from outerloop.swarm.access.invites import Token
from outerloop.swarm.access.register_files import write_waiting
from outerloop.swarm.invites.access_updates import TAKE_S
from outerloop.swarm.invites.invite_client import InviteRefused, look, tell, use
from outerloop.swarm.invites.invite_service import AROUND_S
from tests.support.swarm.dht_scene import id_of, trust
from tests.support.swarm.gather_scene import MemoryDisk
from tests.support.swarm.invite_scene import NOW_S, A, B, C, Peer, X, Y, admission, removal, token, withdrawal
from tests.support.swarm.memory_network import MemoryNetwork, MemoryTransport
from tests.support.swarm.virtual_clock import run

VISITOR = 20


class Scene:
    """The three listed peers, and a machine that is not in the run."""

    def __init__(self) -> None:
        self.network = MemoryNetwork()
        self.peers = [Peer(self.network, number) for number in (A, B, C)]
        self.outside = MemoryTransport(self.network, id_of(VISITOR))
        self.outside.trust = trust(VISITOR)

    async def use(self, of: Token, peer: int, receiver: int) -> str:
        """The word with which the receiver refuses a token, or nothing."""
        return await refusal(use(self.outside, id_of(receiver), of.binding(id_of(peer))))

    async def invited(self, number: int) -> Peer:
        """A peer that was admitted by B, in a process of its own."""
        out = Peer(self.network, number)
        await out.register.add(self.peers[1].register.peers.about(out.id))
        await out.updates.serve([])
        return out

    def admitting(self, peer: int) -> str:
        """The listed peers that admit a peer."""
        names = zip("ABC", self.peers, strict=True)
        return "".join(name for name, one in names if id_of(peer) in one.trust.allow)

    def part_b(self, *others: int) -> None:
        """Cut B, and others with it, off from the other listed peers."""
        a, b, c = self.peers
        for one in (b.id, *map(id_of, others)):
            self.network.part(a.id, one)
            self.network.part(one, c.id)


async def refusal(work: Awaitable[object]) -> str:
    try:
        await work
    except InviteRefused as refused:
        return str(refused)
    return ""


def play(scene: Callable[[Scene], Awaitable[None]]) -> None:
    async def act() -> None:
        world = Scene()
        for one in world.peers:
            await one.updates.serve([])
        await scene(world)

    run(act())


def test_a_withdrawn_token_is_refused_by_all_peers_and_others_are_not() -> None:
    async def scene(world: Scene) -> None:
        of, other = token(A, name="wrong"), token(A)
        await write_waiting(world.peers[0].disk, withdrawal(of))
        await asyncio.sleep(2 * TAKE_S)
        for receiver in (A, B, C):
            assert await world.use(of, X, receiver) == "withdrawn"
            assert await refusal(look(world.outside, id_of(receiver), of, peer="")) == "withdrawn"
        assert await world.use(other, X, B) == ""
        await asyncio.sleep(1)
        assert world.admitting(X) == "ABC"

    play(scene)


def test_a_peer_that_hears_of_the_withdrawal_later_stops_the_peer_that_it_admitted() -> None:
    async def scene(world: Scene) -> None:
        of = token(A)
        world.part_b(X)
        await write_waiting(world.peers[0].disk, withdrawal(of))
        await asyncio.sleep(2 * TAKE_S)
        world.peers[1].now_s = NOW_S + 20
        assert await world.use(of, X, B) == "" and await world.use(of, Y, C) == "withdrawn"
        invited = await world.invited(X)
        await asyncio.sleep(AROUND_S)
        assert world.admitting(X) == "B" and not invited.removed
        world.network.heal()
        await asyncio.sleep(10 * AROUND_S)
        assert world.admitting(X) == "" and invited.removed == "used an invite that had been withdrawn"
        assert len({tuple(one.register.peers.shared) for one in world.peers}) == 1

    play(scene)


def test_a_token_that_was_used_before_its_withdrawal_stays_used() -> None:
    async def scene(world: Scene) -> None:
        of = token(A)
        world.part_b()
        assert await world.use(of, X, B) == ""
        invited = await world.invited(X)
        await write_waiting(world.peers[0].disk, withdrawal(of, at_s=NOW_S + 5))
        await asyncio.sleep(2 * TAKE_S)
        world.network.heal()
        await asyncio.sleep(10 * AROUND_S)
        assert world.admitting(X) == "ABC" and not invited.removed
        assert await world.use(of, X, C) == "", "the machine comes back with its line"
        assert await world.use(of, Y, C) == "used"

    play(scene)


def test_once_a_peer_knows_the_withdrawal_its_clock_does_not_matter() -> None:
    async def scene(world: Scene) -> None:
        of = token(A)
        await write_waiting(world.peers[0].disk, withdrawal(of))
        await asyncio.sleep(2 * TAKE_S)
        world.peers[1].now_s = NOW_S - 3600
        assert await world.use(of, X, B) == "withdrawn"

    play(scene)


def test_a_receiver_whose_clock_is_behind_can_admit_a_withdrawn_token_and_all_agree_on_it() -> None:
    async def scene(world: Scene) -> None:
        of = token(A)
        world.part_b()
        await write_waiting(world.peers[0].disk, withdrawal(of))
        await asyncio.sleep(2 * TAKE_S)
        world.peers[1].now_s = NOW_S - 60
        assert await world.use(of, X, B) == ""
        world.network.heal()
        await asyncio.sleep(10 * AROUND_S)
        assert world.admitting(X) == "ABC", "the organizer sees it in the list, and can expel it"
        await write_waiting(world.peers[0].disk, removal(X, by=A))
        await asyncio.sleep(2 * TAKE_S)
        assert world.admitting(X) == ""

    play(scene)


def test_a_peer_that_reports_its_own_late_admission_is_answered_with_the_withdrawal() -> None:
    async def scene(world: Scene) -> None:
        of = token(A)
        await write_waiting(world.peers[0].disk, withdrawal(of))
        await asyncio.sleep(2 * TAKE_S)
        own = Peer(world.network, X)
        late = admission(of, at_s=NOW_S + 1)
        await own.register.add([late])
        await own.updates.serve([])
        await asyncio.sleep(5)
        assert own.removed == "used an invite that had been withdrawn" and world.admitting(X) == ""

    play(scene)


def test_a_stranger_withdraws_nothing() -> None:
    async def scene(world: Scene) -> None:
        of = token(A)
        for statement in (withdrawal(of, by=X), withdrawal(of, by=C)):
            await tell(world.outside, id_of(B), statement)
        await asyncio.sleep(1)
        assert await world.use(of, X, B) == ""

    play(scene)


@pytest.mark.parametrize("invites", [True, False])
def test_a_withdrawal_from_while_the_peer_was_off_is_taken_before_it_serves(invites: bool) -> None:
    async def scene() -> None:
        disk, of = MemoryDisk(), token(A)
        await write_waiting(disk, withdrawal(of))
        one = Peer(MemoryNetwork(), A, disk=disk, invites=invites)
        await one.updates.serve([])
        assert one.register.peers.shared == [withdrawal(of)]
        assert Peer(MemoryNetwork(), A, disk=disk).register.peers.shared == [withdrawal(of)]

    run(scene())


def test_running_peers_drop_the_withdrawals_of_expired_tokens() -> None:
    async def scene(world: Scene) -> None:
        await write_waiting(world.peers[0].disk, withdrawal(token(A)))
        await asyncio.sleep(2 * AROUND_S)
        assert all(one.register.peers.withdrawals for one in world.peers)
        for one in world.peers[:2]:
            one.now_s = NOW_S + 101 + KEEP_S
        await asyncio.sleep(10 * AROUND_S)
        kept = [len(one.register.peers.withdrawals) for one in world.peers]
        assert kept == [0, 0, 1], "a peer whose clock is behind does not bring it back"

    play(scene)
