"""Every world that two or three peers can get to in two rounds in which any of them leaves at any time.

A peer that leaves resigns as soon as it may, and stays, or crashes and returns from its disk; all payloads are there
from the beginning. Fewer peers leave than there are, so one of them can always decide.
"""

from __future__ import annotations

from collections.abc import Iterator

from outerloop.swarm.consensus.chain import Chain
from outerloop.swarm.consensus.effects import Effect, Persist, Send
from outerloop.swarm.consensus.hotstuff.messages import ProposalMessage
from outerloop.swarm.consensus.messages import Message, Resigned
from outerloop.swarm.consensus.paxos.chain import PaxosChain
from outerloop.swarm.consensus.proposer import GatherPolicy
from outerloop.swarm.consensus.resignation import Resignation, remaining_peers
from outerloop.swarm.consensus.state import HardState
from tests.support.swarm.consensus_state_space import Event, Peer, Space, World
from tests.support.swarm.consensus_world import payload

ROUNDS = 2


class ResignSpace(Space):
    """`leavers`: how many of the peers may leave, the last names first."""

    gather_policy = GatherPolicy(min_peers=1, min_fraction=1.0)

    def __init__(
        self,
        names: str,
        *,
        leavers: int = 1,
        timeouts: int = 0,
        crashes: int = 0,
        wished: bool = False,
        protocol: type[Chain] = PaxosChain,
    ) -> None:
        self.names = self.roster = tuple(names)  # type: ignore[assignment]
        self.protocol, self.leavers = protocol, names[len(names) - leavers :]
        super().__init__(timeouts=timeouts, crashes=crashes, wished=wished)

    def decided(self, world: World) -> int:
        return sum(self._peers[index].machine.number >= ROUNDS for index in world.peers)

    def go_on(self, world: World) -> World:
        """Nothing is lost any more, timeouts come whenever nothing else does, and who has resigned says so again."""
        for _ in range(20):
            for event in ("ask", "reports", "timeout"):
                for who in range(len(self.names)):
                    (world, *_) = self._moves(world, who, event, crashes=0)
                world = self._deliver_all(world)
                if self.decided(world) == len(self.names):
                    return world
        raise AssertionError("no decision in 20 views")

    def _give(self, machine: Chain) -> list[Effect]:
        return [
            out
            for number in range(machine.number, ROUNDS)
            for peer in self.names
            for out in machine.payload_stored(number, payload(peer, number))
        ]

    def _following(self, world: World) -> Iterator[tuple[Event, World]]:
        yield from super()._following(world)
        for who, index in enumerate(world.peers):
            machine = self._peers[index].machine
            events = ["leave"] if machine.hard_state.peer in self.leavers and not machine.leaving else []
            events += ["ask"] if machine.hard_state.resigned else []
            events += ["reports"] if machine.collects_reports else []
            for event in events:
                for following in self._moves(world, who, event, crashes=world.crashes):
                    yield event, following

    def _arriving(self, world: World) -> list[Event]:
        """Every commit that who is behind may get, not only the last one."""
        machines = [self._peers[index].machine for index in world.peers]
        commits = [
            self._bit((ahead.hard_state.peer, behind.hard_state.peer, decided))
            for ahead in machines
            for behind in machines
            for decided in ahead.hard_state.log[1:]
            if decided.commit.number == behind.number
        ]
        return list(dict.fromkeys([*super()._arriving(world), *commits]))

    def _act(self, machine: Chain, event: Event) -> list[Effect]:
        machine._effects = []  # noqa: SLF001
        if event == "leave":
            return machine.resign()
        if event == "ask":
            return machine.request_join()
        if event == "reports":
            return machine.reports_over(machine.number, machine.view)
        return machine.timeout(machine.number, machine.view) if event == "timeout" else super()._act(machine, event)

    def _key(self, peer: Peer) -> tuple[object, ...]:
        return (*super()._key(peer), peer.machine.leaving)

    def _sent(self, message: Message) -> Message:
        """Wishes travel on their own as well."""
        return ProposalMessage(message.proposal, ()) if isinstance(message, ProposalMessage) else message

    # what must hold

    def _check(self, world: World) -> None:
        commits: dict[int, set[bytes]] = {}
        for index in world.peers:
            peer = self._peers[index]
            for decided in peer.machine.hard_state.log:
                commits.setdefault(decided.commit.number, set()).add(decided.commit.digest)
        assert all(len(found) == 1 for found in commits.values()), "two commits of one round"

    def _arrived(self, world: World, who: int, peer: Peer, outputs: list[Effect]) -> World:
        """Nothing is said against a resignation on disk: neither the one that was there nor the one that came."""
        disk = peer.disk
        for output in outputs:
            if isinstance(output, Persist):
                self._check_saved(disk, output.hard_state)
                disk = output.hard_state
            if isinstance(output, Send) and isinstance(output.message, Resigned):
                assert {one for one in output.message.resignations if one.peer == disk.peer} <= own(disk), "not on disk"
        return super()._arrived(world, who, peer, outputs)

    def _check_saved(self, before: HardState, after: HardState) -> None:
        kept = own(before) | own(after)
        new = {one.number for one in own(after) - own(before)}
        assert not after.has_voted or after.number not in new, "a resignation after a vote in that round"
        assert own(before) <= own(after), "a resignation that is forgotten"
        same = before.head == after.head and (before.promised, before.accepted, before.lock) == (
            after.promised,
            after.accepted,
            after.lock,
        )
        if after.has_voted and not same:
            assert after.peer in remaining_peers(after.head, kept), "a vote of who has resigned"


def own(hard_state: HardState) -> set[Resignation]:
    return {one for one in hard_state.resignations if one.peer == hard_state.peer}
