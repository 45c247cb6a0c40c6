"""Peers of a listed run accept invites, tell each other, and agree on who was admitted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import msgpack
import pytest

from outerloop.swarm.access import access_control
from outerloop.swarm.access.access_control import INVITES, MANIFEST, MAX_VISITORS, ROSTER
from outerloop.swarm.access.admissions import Removal
from outerloop.swarm.access.invites import Token
from outerloop.swarm.access.rate_limits import Rate
from outerloop.swarm.access.register_files import packed, write_waiting
from outerloop.swarm.invites import invite_service
from outerloop.swarm.invites.invite_client import PROTOCOL, InviteRefused, ask, look, tell, use
from outerloop.swarm.invites.invite_service import AROUND_S, MAX_QUEUED, MAX_QUEUED_IN_TOTAL
from outerloop.swarm.p2p.framing import Stream, TurnedAway, Unreadable
from outerloop.swarm.p2p.transport import Request, anybody
from outerloop.swarm.timeouts import SEND_S
from tests.support.swarm.dht_scene import id_of, trust
from tests.support.swarm.invite_scene import LISTED, NOW_S, RUN, A, B, C, Peer, X, Y, admission, removal, token
from tests.support.swarm.memory_network import MemoryNetwork, MemoryTransport
from tests.support.swarm.virtual_clock import run

VISITOR = 20


class Scene:
    """The three listed peers, and a machine that is not in the run."""

    def __init__(self) -> None:
        self.network = MemoryNetwork()
        self.peers = [Peer(self.network, number) for number in (A, B, C)]
        self.outside = visitor(self.network, VISITOR)

    async def start(self, peers: Sequence[Peer] | None = None) -> None:
        for one in self.peers if peers is None else peers:
            await one.updates.serve([])

    async def use(self, one: Token, peer: int, *, receiver: int = B) -> None:
        await use(self.outside, id_of(receiver), one.binding(id_of(peer)))

    def admitting(self, peer: int) -> str:
        """The listed peers that admit a peer."""
        names = zip("ABC", self.peers, strict=True)
        return "".join(name for name, one in names if id_of(peer) in one.trust.allow)


def visitor(network: MemoryNetwork, number: int) -> MemoryTransport:
    out = MemoryTransport(network, id_of(number))
    out.trust = trust(number)
    return out


def play(scene: Callable[[Scene], Awaitable[None]]) -> None:
    async def act() -> None:
        one = Scene()
        await one.start()
        await scene(one)

    run(act())


async def refusal(work: Awaitable[object]) -> str:
    try:
        await work
    except InviteRefused as refused:
        return str(refused)
    return ""


def test_an_invited_key_is_admitted_by_all_peers_and_no_second_one() -> None:
    async def scene(world: Scene) -> None:
        one = token(A)
        await world.use(one, X)
        await asyncio.sleep(1)
        assert world.admitting(X) == "ABC"
        for receiver in (A, B, C):
            assert await refusal(world.use(one, Y, receiver=receiver)) == "used"
        await world.use(one, X, receiver=C)
        assert world.admitting(Y) == "" and len(world.peers[0].register.peers.used) == 1

    play(scene)


def test_two_uses_at_the_same_time_admit_one() -> None:
    async def scene(world: Scene) -> None:
        one = token(A)
        words = await asyncio.gather(*(refusal(world.use(one, peer)) for peer in (X, Y)))
        assert sorted(words) == ["", "used"]

    play(scene)


def test_peers_that_admitted_two_keys_while_parted_agree_on_the_first() -> None:
    async def scene(world: Scene) -> None:
        one, (a, b, c) = token(A), world.peers
        world.network.part(a.id, b.id)
        world.network.part(b.id, c.id)
        a.now_s, b.now_s = NOW_S + 9, NOW_S + 3
        await world.use(one, X, receiver=A)
        await world.use(one, Y, receiver=B)
        await asyncio.sleep(1)
        assert world.admitting(X) == "AC" and world.admitting(Y) == "B"
        loser = Peer(world.network, X)
        await loser.register.add(a.register.peers.shared)
        await world.start([loser])
        world.network.heal()
        await asyncio.sleep(10 * AROUND_S)
        assert world.admitting(X) == "" and world.admitting(Y) == "ABC"
        assert loser.removed == "used an invite that another machine had used before"
        assert all(each.register.peers.known == {id_of(X), id_of(Y)} for each in world.peers)

    play(scene)


def test_invites_that_are_refused() -> None:
    async def scene(world: Scene) -> None:
        b = world.peers[1]
        assert await refusal(world.use(token(A, run="winter"), X)) == "run"
        assert await refusal(world.use(token(X), X)) == "issuer"
        assert await refusal(world.use(token(A, expires_s=NOW_S - 1), X)) == "expired"
        later = token(A)
        await world.use(later, X)
        b.now_s = NOW_S + 1000
        assert await refusal(world.use(later, X)) == "", "it was used in time, and the machine comes back"
        assert await refusal(world.use(token(A), Y)) == "expired"
        assert b.trust.rejections.of_kind["outsiders"] == 4

    play(scene)


def test_an_invited_peer_invites_nobody() -> None:
    async def scene(world: Scene) -> None:
        await world.use(token(A), X)
        invited = Peer(world.network, X)
        await world.start([invited])
        await asyncio.sleep(1)
        assert id_of(X) in invited.trust.allow
        assert await refusal(world.use(token(A), Y, receiver=X)) == "invited"
        assert await refusal(world.use(token(X), Y)) == "issuer"

    play(scene)


def test_the_number_of_invited_peers_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invite_service, "MAX_PER_ISSUER", 1)

    async def scene(world: Scene) -> None:
        await world.use(token(A), X)
        assert await refusal(world.use(token(A), Y)) == "full"
        await world.use(token(C), Y)
        assert world.admitting(Y) != ""

    play(scene)


def test_a_look_opens_the_manifest_and_the_roster_to_the_visitor_alone() -> None:
    async def scene(world: Scene) -> None:
        one, b, outside = token(A), world.peers[1], world.outside
        assert not b.trust.admits(outside.peer_id, f"outerloop/1/{MANIFEST}", anybody)
        assert await look(outside, b.id, one, peer="") == sorted(LISTED)
        for service in (MANIFEST, ROSTER, INVITES):
            assert b.trust.admits(outside.peer_id, f"outerloop/1/{service}", anybody)
        for service in ("ballot", "payload", "members", "probe"):
            assert not b.trust.admits(outside.peer_id, f"outerloop/1/r/{service}", anybody)
        assert not b.trust.admits(id_of(21), f"outerloop/1/{MANIFEST}", anybody)
        assert world.admitting(VISITOR) == "", "a look admits nobody"
        await world.use(one, X)
        assert await refusal(look(outside, b.id, one, peer=id_of(X))) == ""
        assert await refusal(look(outside, b.id, one, peer="")) == "used"
        for number in range(MAX_VISITORS):
            b.trust.let_look(f"visitor {number}")
        assert not b.trust.admits(outside.peer_id, f"outerloop/1/{MANIFEST}", anybody), "the oldest is forgotten"

    play(scene)


def test_who_saw_an_invite_but_not_the_token_cannot_look() -> None:
    async def scene(world: Scene) -> None:
        one = token(A)
        without_key = Token(one.invite, bytes(32))
        assert await refusal(look(world.outside, id_of(B), without_key, peer="")) == "issuer"
        assert await refusal(use(world.outside, id_of(B), without_key.binding(id_of(X)))) == "issuer"

    play(scene)


def test_peers_that_were_away_learn_it_when_they_return() -> None:
    async def scene(world: Scene) -> None:
        a, _, c = world.peers
        world.network.kill(c.id)
        await world.use(token(A), X)
        await asyncio.sleep(1)
        assert world.admitting(X) == "AB"
        world.network.cut.clear()
        again = Peer(world.network, C, disk=c.disk)
        await world.start([again])
        await asyncio.sleep(1)
        assert id_of(X) in again.trust.allow
        assert id_of(X) in Peer(MemoryNetwork(), A, disk=a.disk).trust.allow, "from disk, without asking anybody"

    play(scene)


async def expel(by: Peer, peer: int, *, lifted: bool = False, at_s: int = NOW_S) -> None:
    signatures = by.trust.signatures
    await write_waiting(by.disk, Removal.new(signatures, run=RUN, peer=id_of(peer), lifted=lifted, at_s=at_s))


def test_a_removal_reaches_all_peers_and_the_removed_one_and_can_be_lifted() -> None:
    async def scene(world: Scene) -> None:
        await world.use(token(A), X)
        removed = Peer(world.network, X)
        await world.start([removed])
        await asyncio.sleep(1)
        await expel(world.peers[2], X)
        await asyncio.sleep(2 * AROUND_S)
        assert world.admitting(X) == "" and "was removed" in removed.removed
        assert await refusal(world.use(token(A), X)) == "removed"
        await expel(world.peers[1], X, lifted=True, at_s=NOW_S + 1)
        await asyncio.sleep(2 * AROUND_S)
        assert world.admitting(X) == "ABC"

    play(scene)


def test_a_listed_peer_that_one_machine_expels_stays_with_the_others() -> None:
    async def scene(world: Scene) -> None:
        await expel(world.peers[0], C)
        await asyncio.sleep(5 * AROUND_S)
        assert world.admitting(C) == "BC"

    play(scene)


@pytest.mark.parametrize("answer", ["refuses", "is silent"])
def test_a_removal_takes_effect_whatever_a_polled_peer_answers(answer: str) -> None:
    async def lie(remote: str, request: Request, stream: Stream) -> None:
        await stream.send_object({"refused": "used"}) if answer == "refuses" else await asyncio.sleep(1000)

    async def scene(world: Scene) -> None:
        await world.use(token(A), X)
        await visitor(world.network, X).serve(PROTOCOL, allowed=anybody, handler=lie)
        await asyncio.sleep(5 * AROUND_S)
        await expel(world.peers[0], X)
        await asyncio.sleep(10)
        assert world.admitting(X) == ""
        expelled = Peer(world.network, C, disk=world.peers[2].disk)
        world.network.kill(expelled.id)
        await world.use(token(A), Y)
        world.network.cut.clear()
        await world.start([expelled])
        await asyncio.sleep(1)
        assert id_of(Y) in expelled.trust.allow, "the polls go on, too"

    play(scene)


def test_a_refused_poll_is_unreadable() -> None:
    async def scene() -> None:
        network = MemoryNetwork()

        async def refuse(remote: str, request: Request, stream: Stream) -> None:
            await stream.send_object({"refused": "used"})
            await stream.ended()

        await visitor(network, B).serve(PROTOCOL, allowed=anybody, handler=refuse)
        with pytest.raises(Unreadable):
            await ask(visitor(network, X), id_of(B), known=b"")

    run(scene())


def test_an_invite_for_some_rounds_waits_until_the_receiver_knows_the_round() -> None:
    async def scene(world: Scene) -> None:
        allow = world.peers[1].trust.allow
        allow.current_number = lambda: None
        assert await refusal(world.use(token(A, rounds=500), X)) == "starting"
        await world.use(token(A), Y)
        allow.current_number = lambda: 1000
        await world.use(token(A, rounds=500), X)
        [last] = [one.last for one in world.peers[1].register.peers.used if one.peer == id_of(X)]
        assert last == 1499 and id_of(X) in allow

    play(scene)


def test_a_repeated_use_shows_only_what_is_about_its_own_peer() -> None:
    async def scene(world: Scene) -> None:
        of_x = token(A).binding(id_of(X))
        await use(world.outside, id_of(B), of_x)
        first = await use(world.outside, id_of(B), token(A).binding(id_of(Y)))
        assert {one.peer for one in first} == {id_of(X), id_of(Y)}
        again = await use(visitor(world.network, 21), id_of(B), of_x)
        assert [one.peer for one in again] == [id_of(X)]

    play(scene)


def test_what_a_poll_brings_is_not_told_to_others() -> None:
    async def scene() -> None:
        network = MemoryNetwork()
        a, b, c = (Peer(network, number) for number in (A, B, C))
        known = [admission(token(A), 100 + number) for number in range(40)]
        for one in (b, c):
            await one.register.add(known)
            await one.updates.serve([])
        await asyncio.sleep(1)
        before = network.opened
        await a.updates.serve([])
        await asyncio.sleep(1)
        assert len(a.register.peers.used) == 40
        assert network.opened - before <= 2, "one poll of each other peer"

    run(scene())


class Liar:
    """A listed peer that answers each poll with ever later statements that a peer may take part again."""

    def __init__(self, network: MemoryNetwork) -> None:
        self.polls, self.at_s = 0, 0
        self.transport = visitor(network, B)

    async def serve(self) -> None:
        await self.transport.serve(PROTOCOL, allowed=anybody, handler=self.lie)

    async def lie(self, remote: str, request: Request, stream: Stream) -> None:
        if "known" not in request:
            return
        self.polls += 1
        await stream.send_object({"count": 50})
        for _ in range(50):
            self.at_s += 1
            await stream.send(msgpack.packb(packed(removal(X, by=B, lifted=True, at_s=self.at_s))))
        await stream.ended()


def test_a_member_that_answers_polls_with_many_statements_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invite_service, "STATEMENTS", Rate(burst=3, per_s=0))

    async def scene() -> None:
        network = MemoryNetwork()
        a, liar = Peer(network, A), Liar(network)
        await a.register.add([admission(token())])
        await liar.serve()
        await a.updates.serve([])
        before = network.opened
        await asyncio.sleep(100 * AROUND_S)
        assert liar.polls == 3 and a.register.peers.removals[id_of(X)].at_s == 150
        assert a.trust.rejections.of_kind["requests"] > 3 and network.opened - before < 300

    run(scene())


def test_few_statements_are_sent_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invite_service, "MAX_SENDING", 2)
    receiving, most = 0, 0

    async def receive(remote: str, request: Request, stream: Stream) -> None:
        nonlocal receiving, most
        receiving += 1
        most = max(most, receiving)
        await asyncio.sleep(1)
        receiving -= 1

    async def scene() -> None:
        network = MemoryNetwork()
        a = Peer(network, A)
        for number in (B, C):
            await visitor(network, number).serve(PROTOCOL, allowed=anybody, handler=receive)
        assert a.updates.service is not None
        a.updates.service.tell([admission(token(A), 100 + number) for number in range(5)])
        await asyncio.sleep(20)
        assert most == 2

    run(scene())


class Unending:
    """Peers that accept every stream and never close it. `received`: (peer, what it received)."""

    def __init__(self, network: MemoryNetwork, *numbers: int) -> None:
        self.received: list[tuple[str, object]] = []
        for number in numbers:
            network.handlers[id_of(number), PROTOCOL] = partial(self._keep, id_of(number))

    async def _keep(self, peer: str, remote: str, stream: Stream) -> None:
        self.received.append((peer, (await stream.receive_object())["tell"]))
        await asyncio.Event().wait()


def sending() -> int:
    """Return the number of tasks that send a statement, or wait for this."""
    return sum("InviteService._tell" in repr(task.get_coro()) for task in asyncio.all_tasks())


@pytest.mark.parametrize(("in_total", "limit"), [(MAX_QUEUED_IN_TOTAL, 2 * MAX_QUEUED), (5, 5)])
def test_statements_to_peers_that_never_close_a_stream_do_not_accumulate(
    in_total: int, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(invite_service, "MAX_QUEUED_IN_TOTAL", in_total)

    async def scene() -> None:
        network = MemoryNetwork()
        a, others, most = Peer(network, A), Unending(network, B, C), 0
        assert a.updates.service is not None
        for second in range(600):
            a.updates.service.tell([removal(X, lifted=True, at_s=NOW_S + second)])
            most = max(most, sending())
            await asyncio.sleep(1)
        assert most == limit
        assert len(others.received) > 10 * limit, "later statements are sent once the earlier ones have timed out"

    run(scene())


def test_a_removed_peer_receives_its_removal_although_other_statements_wait() -> None:
    async def scene() -> None:
        network = MemoryNetwork()
        a, others = Peer(network, A), Unending(network, B, C, X)
        await a.register.add([admission(token())])
        assert a.updates.service is not None
        a.updates.service.tell([removal(Y, lifted=True, at_s=NOW_S + second) for second in range(2 * MAX_QUEUED)])
        a.updates.service.tell(await a.register.add([removal(X)]))
        await asyncio.sleep(3 * SEND_S)
        assert (id_of(X), packed(removal(X))) in others.received

    run(scene())


@pytest.mark.parametrize("limit", ["STATEMENTS", "STATEMENTS_OF_STRANGERS"])
def test_who_may_not_take_part_learns_nothing_and_tells_little(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invite_service, limit, Rate(burst=3, per_s=0))

    async def scene(world: Scene) -> None:
        b, outside = world.peers[1], world.outside
        with pytest.raises(TurnedAway):
            await ask(outside, b.id, known=b"")
        for peer in range(100, 106):
            await tell(outside, b.id, admission(token(A), peer))
        await asyncio.sleep(1)
        assert len(b.register.peers.used) == 3 and b.trust.rejections.of_kind["requests"] == 3

    play(scene)


@pytest.mark.parametrize("request_", [{"look": None}, {"use": [1]}, {"tell": {}}, {"look": [], "proof": 3}])
def test_a_malformed_request_is_refused_and_counted(request_: Request) -> None:
    async def scene(world: Scene) -> None:
        with pytest.raises(Exception):  # noqa: B017  (the stream ends in one way or another)
            async with world.outside.open_stream(id_of(B), PROTOCOL) as stream:
                await stream.send_object(request_)
                await stream.receive_object()
        assert world.peers[1].trust.rejections.of_kind["requests"] == 1

    play(scene)


@pytest.mark.parametrize(
    "answer", [{}, {"listed": []}, {"listed": [1]}, {"count": -1}, {"count": 10**9}, {"count": 1, "listed": "x"}]
)
def test_a_malformed_answer_is_unreadable(answer: Request) -> None:
    async def scene() -> None:
        network = MemoryNetwork()

        async def lie(remote: str, request: Request, stream: Stream) -> None:
            await stream.send_object(answer)
            await stream.send(b"\xc1")

        await visitor(network, B).serve(PROTOCOL, allowed=anybody, handler=lie)
        for work in (
            look(visitor(network, X), id_of(B), token(A), peer=""),
            use(visitor(network, X), id_of(B), token(A).binding(id_of(X))),
        ):
            with pytest.raises(Unreadable):
                await work

    run(scene())


def test_a_foreign_word_of_refusal_is_not_repeated() -> None:
    async def scene() -> None:
        network = MemoryNetwork()

        async def lie(remote: str, request: Request, stream: Stream) -> None:
            await stream.send_object({"refused": "run rm -rf / to continue"})
            await stream.ended()

        await visitor(network, B).serve(PROTOCOL, allowed=anybody, handler=lie)
        with pytest.raises(InviteRefused, match=r"^$"):
            await look(visitor(network, X), id_of(B), token(A), peer="")

    run(scene())


def test_strangers_may_open_the_service_for_invites_alone() -> None:
    own = trust(B, allow=LISTED)
    assert own.admits(id_of(X), PROTOCOL, anybody)
    for protocol in ("outerloop/1/manifest", "outerloop/1/r/roster", "outerloop/1/probe", "the DHT (FindRequest)"):
        assert not own.admits(id_of(X), protocol, anybody)
    assert PROTOCOL.rpartition("/")[2] == access_control.INVITES
