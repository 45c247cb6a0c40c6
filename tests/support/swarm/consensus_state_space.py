"""Every world that three peers can get to while they decide one round: all orders, losses and repeats of messages.

The network is the set of all messages ever sent: each may arrive at any time, again and again, or never. On top come so
many timeouts at any peer at any time, and so many crashes after any output of any event, each followed by a restart
from disk (a peer that stays down is one to which nothing arrives). One payload may come late to one peer.

A world is a few numbers: which state each peer is in, which messages were sent (bits), what is left of the budgets.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Hashable, Iterator
from typing import NamedTuple

from outerloop.swarm.consensus import statements
from outerloop.swarm.consensus.chain import Chain
from outerloop.swarm.consensus.commit import Commit, majority
from outerloop.swarm.consensus.effects import Effect, Persist, Send
from outerloop.swarm.consensus.messages import Accept, Message, Promise, Propose, ViewChange, ViewWishes
from outerloop.swarm.consensus.paxos.chain import PaxosChain
from outerloop.swarm.consensus.proposer import GatherPolicy
from outerloop.swarm.consensus.state import HardState
from outerloop.swarm.consensus.votes import Accepted
from tests.support.swarm.consensus_guilt import convicted
from tests.support.swarm.consensus_world import RUN, payload
from tests.support.swarm.toy_signatures import ToySigner, decided_by, proposal, toy_signature

PEERS = ("a", "b", "c")
CLOSING = GatherPolicy(min_peers=2, min_fraction=1.0)
NOTHING = (-1, b"")  # before every vote
Event = int | str  # a message, by its bit, or one of the words below


class World(NamedTuple):
    peers: tuple[int, ...]
    sent: int
    timeouts: int
    crashes: int


class Peer(NamedTuple):
    """`disk` is what a crash leaves."""

    disk: HardState
    machine: Chain


class Space:
    """`worlds` visited, `ends` among them where no message changes anything any more."""

    gather_policy = CLOSING
    names = roster = PEERS
    """Who runs a machine here, and who decides the round."""
    protocol: type[Chain] = PaxosChain

    def __init__(self, *, timeouts: int, crashes: int, late: bool = False, wished: bool = False) -> None:
        self.worlds: set[World] = set()
        self.ends: list[World] = []
        self._late, self._wished = late, wished
        self._peers: list[Peer] = []
        self._known: dict[Hashable, int] = {}
        self._messages: list[tuple[str, str, Message]] = []
        self._bits: dict[tuple[str, str, Message], int] = {}
        self._steps: dict[tuple[int, Event], list[tuple[int, int, int]]] = {}
        self._checked: set[int] = set()
        self.first = self._begin(timeouts, crashes)

    def explore(self, *, at_most: int) -> None:
        """Visit every world. Raises AssertionError when one breaks a property, or there are more than `at_most`."""
        waiting = [self.first]
        self.worlds = {self.first}
        while waiting:
            world = waiting.pop()
            self._check(world)
            moves = 0
            for move, following in self._following(world):
                moves += isinstance(move, int) and following != world
                if following not in self.worlds:
                    self.worlds.add(following)
                    waiting.append(following)
            if not moves:
                self.ends.append(world)
            assert len(self.worlds) <= at_most, f"more than {at_most} worlds"

    def decided(self, world: World) -> int:
        """How many peers have the round behind them."""
        return sum(self._peers[index].machine.number > 0 for index in world.peers)

    def go_on(self, world: World) -> World:
        """Nothing is lost any more, and timeouts come whenever nothing else does, until all have decided."""
        for _ in range(20):
            world = self._deliver_all(world._replace(timeouts=len(self.names)))
            if self.decided(world) == len(self.names):
                return world
            for who in range(len(self.names)):
                for event in ("late", "timeout"):
                    (done, *_) = self._moves(world, who, event, crashes=0)
                    world = done
        raise AssertionError("no decision in 20 views")

    def _begin(self, timeouts: int, crashes: int) -> World:
        memories = [HardState.first(session=RUN, peer=peer, roster=self.roster) for peer in self.names]
        machines = [self._machine(hard_state) for hard_state in memories]
        world = World((0,) * len(self.names), 0, timeouts, crashes)
        for who, machine in enumerate(machines):
            world = self._arrived(world, who, Peer(memories[who], machine), self._give(machine))
        return self._impatient(world) if self._wished else world

    def _impatient(self, world: World) -> World:
        """The last of the roster wants view 1 already, and all have heard so: one more, and the view begins."""
        (world, *_) = self._moves(world, len(self.names) - 1, "timeout", crashes=0)
        for bit in _bits(world.sent):
            _, to, message = self._messages[bit]
            if isinstance(message, ViewChange) and to in self.names:
                (world, *_) = self._moves(world, self._to(bit), bit, crashes=0)
        return world

    def _give(self, machine: Chain) -> list[Effect]:
        """The payloads that a peer has from the beginning; the last in the roster misses the first one's, if late."""
        missing = self.names[0] if self._late and machine.hard_state.peer == self.names[-1] else ""
        return [out for peer in self.names if peer != missing for out in machine.payload_stored(0, payload(peer, 0))]

    def _machine(self, hard_state: HardState) -> Chain:
        return self.protocol(
            hard_state, signer=ToySigner(hard_state.peer), gather_policy=self.gather_policy, absent_rounds=3
        )

    def _arrived(self, world: World, who: int, peer: Peer, outputs: list[Effect]) -> World:
        """What the world is once the outputs are carried out."""
        disk, sent = peer.disk, world.sent
        for output in outputs:
            if isinstance(output, Persist):
                disk = output.hard_state
            if isinstance(output, Send) and not _redundant(output.message):
                sent |= 1 << self._bit((peer.machine.hard_state.peer, output.to, self._sent(output.message)))
        peers = list(world.peers)
        peers[who] = self._number(Peer(disk, peer.machine))
        return world._replace(peers=tuple(peers), sent=sent)

    def _sent(self, message: Message) -> Message:
        """What of a message tells worlds apart."""
        return message

    def _following(self, world: World) -> Iterator[tuple[Event, World]]:
        for bit in self._arriving(world):
            for following in self._moves(world, self._to(bit), bit, crashes=world.crashes):
                yield bit, following
        for who in range(len(self.names)):
            for event in ("late",) if self._late and who == len(self.names) - 1 else ():
                for following in self._moves(world, who, event, crashes=world.crashes):
                    yield event, following
            if world.timeouts:
                fewer = world._replace(timeouts=world.timeouts - 1)
                for following in self._moves(fewer, who, "timeout", crashes=world.crashes):
                    yield "timeout", following

    def _arriving(self, world: World) -> list[Event]:
        """Messages that were sent, and commits that who is behind may get from who has them."""
        machines = [self._peers[index].machine for index in world.peers]
        commits = [
            self._bit((ahead.hard_state.peer, behind.hard_state.peer, ahead.hard_state.log[-1]))
            for ahead in machines
            for behind in machines
            if ahead.number > behind.number
        ]
        return [*(bit for bit in _bits(world.sent) if self._messages[bit][1] in self.names), *commits]

    def _to(self, bit: Event) -> int:
        assert isinstance(bit, int)
        return self.names.index(self._messages[bit][1])

    def _moves(self, world: World, who: int, event: Event, *, crashes: int) -> list[World]:
        """The worlds after an event at a peer: without a crash, then with one after each number of outputs."""
        found = []
        for index, sent, crashed in self._step(world.peers[who], event):
            if crashed <= crashes:
                peers = (*world.peers[:who], index, *world.peers[who + 1 :])
                found.append(World(peers, world.sent | sent, world.timeouts, world.crashes - crashed))
        return found

    def _step(self, index: int, event: Event) -> list[tuple[int, int, int]]:
        """(state, messages sent, crashes) of a peer after an event: computed once."""
        if (index, event) not in self._steps:
            peer = self._peers[index]
            machine = copy.copy(peer.machine)
            outputs = self._act(machine, event)
            steps = [self._outcome(Peer(peer.disk, machine), outputs, 0)]
            for count in range(len(outputs)):
                steps.append(self._outcome(Peer(peer.disk, machine), outputs[:count], 1))
            self._steps[index, event] = list(dict.fromkeys(steps))
        return self._steps[index, event]

    def _outcome(self, peer: Peer, outputs: list[Effect], crashes: int) -> tuple[int, int, int]:
        world = self._arrived(World((0,), 0, 0, 0), 0, peer, outputs)
        if crashes:
            disk = self._peers[world.peers[0]].disk
            machine = self._machine(disk)
            world = self._arrived(world, 0, Peer(disk, machine), self._give(machine))
        return world.peers[0], world.sent, crashes

    def _act(self, machine: Chain, event: Event) -> list[Effect]:
        machine._effects = []  # noqa: SLF001
        if event == "timeout":
            return machine.timeout(0, machine.view)
        if event == "late":
            return machine.payload_stored(0, payload(self.names[0], 0))
        assert isinstance(event, int)
        sender, _, message = self._messages[event]
        return machine.receive(sender, message)

    def _number(self, peer: Peer) -> int:
        key = self._key(peer)
        if key not in self._known:
            self._known[key] = len(self._peers)
            self._peers.append(peer)
        return self._known[key]

    def _key(self, peer: Peer) -> tuple[object, ...]:
        """What tells the states of a peer apart."""
        machine = peer.machine
        return peer.disk, machine.hard_state, machine.soft_state, frozenset(machine.stored.items())

    def _bit(self, message: tuple[str, str, Message]) -> int:
        if message not in self._bits:
            self._bits[message] = len(self._messages)
            self._messages.append(message)
        return self._bits[message]

    def _deliver_all(self, world: World) -> World:
        while True:
            before = world
            for bit in self._arriving(world):
                world = self._moves(world, self._to(bit), bit, crashes=0)[0]
            if world == before:
                return world

    # what must hold

    def _check(self, world: World) -> None:
        heads = {self._peers[index].machine.hard_state.head.digest for index in world.peers}
        applied = {one for one in heads if one != self._peers[self.first.peers[0]].disk.head.digest}
        assert len(applied) <= 1, "two commits of one round"
        if world.sent not in self._checked:
            self._checked.add(world.sent)
            self._check_said([self._messages[bit] for bit in _bits(world.sent)])

    def _check_said(self, messages: list[tuple[str, str, Message]]) -> None:
        proposed: dict[int, set[bytes]] = defaultdict(set)
        votes: dict[tuple[int, bytes], set[str]] = defaultdict(set)
        promised: dict[tuple[str, int], set[tuple[int, bytes]]] = defaultdict(set)
        for sender, _, message in messages:
            if isinstance(message, Propose):
                proposed[message.view].add(message.accepted.commit.digest)
                votes[message.view, message.accepted.commit.digest].add(sender)
            if isinstance(message, Accept):
                votes[message.view, message.digest].add(sender)
            if isinstance(message, Promise):
                vote = message.accepted
                promised[sender, message.view].add(vote.vote if vote else NOTHING)
        assert all(len(one) == 1 for one in proposed.values()), "two proposals in one view"
        chosen = {digest for (_, digest), voters in votes.items() if len(voters) >= majority(self.roster)}
        assert len(chosen) <= 1, "majorities chose two commits of one round"
        for (sender, view), told in promised.items():
            heard = [one for one, voters in votes.items() if sender in voters and one[0] < view]
            assert len(told) == 1 and max(told) >= max(heard, default=NOTHING), "a vote that a promise does not tell"


def _redundant(message: Message) -> bool:
    """Whether it tells nothing that the wishes of its peers do not tell, each of which may arrive at any time."""
    return isinstance(message, ViewWishes) or (isinstance(message, ViewChange) and message.view == 0)


def _bits(bits: int) -> Iterator[int]:
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low


class LiarSpace(Space):
    """Three honest peers of four, while the fourth leads view 0, shows each either of two commits, wants view 1, hides
    there what it did or tells of either, and passes on as decided whatever it has enough accepts of.
    """

    names, roster = ("k0", "k1", "k2"), ("k0", "k1", "k2", "k3")
    LIAR = "k3"

    def _begin(self, timeouts: int, crashes: int) -> World:
        world = super()._begin(timeouts, crashes)
        hard_state = self._peers[world.peers[0]].disk
        assert hard_state.leader(0) == self.LIAR
        participants = tuple(payload(peer, hard_state.number) for peer in self.names)
        self._commits = [
            Commit(hard_state.number, hard_state.head.digest, 0, counted, self.roster)
            for counted in (participants, participants[:2])
        ]
        proposals = [proposal(commit, roster=self.roster) for commit in self._commits]
        promises = [self._promise(hard_state, accepted) for accepted in (None, *proposals)]
        wish = statements.wish(hard_state.number, hard_state.head.digest, 1)
        here = ViewChange(hard_state.number, hard_state.head.digest, 1, toy_signature(self.LIAR, wish))
        said = [(to, message) for to in self.names for message in (*map(Propose, proposals), here)]
        said += [(hard_state.leader(1), promise) for promise in promises]
        return world._replace(sent=world.sent | sum(1 << self._bit((self.LIAR, *one)) for one in said))

    def _give(self, machine: Chain) -> list[Effect]:
        """The honest ones' payloads are all that will come."""
        return [*super()._give(machine), *machine.deadline(0)]

    def _promise(self, hard_state: HardState, accepted: Accepted | None) -> Promise:
        said = statements.promise(hard_state.number, hard_state.head.digest, 1, accepted.vote if accepted else None)
        return Promise(hard_state.number, hard_state.head.digest, 1, accepted, toy_signature(self.LIAR, said))

    def _arriving(self, world: World) -> list[Event]:
        accepts = [self._messages[bit] for bit in _bits(world.sent) if isinstance(self._messages[bit][2], Accept)]
        decided = []
        for commit in self._commits:
            said = {peer for peer, _, accept in accepts if (accept.view, accept.digest) == (0, commit.digest)}
            if 1 + len(said) >= majority(self.roster):
                decided += [self._bit((self.LIAR, to, decided_by({*said, self.LIAR}, commit))) for to in self.names]
        return [*super()._arriving(world), *decided]

    def _check_said(self, messages: list[tuple[str, str, Message]]) -> None:
        """Of the honest ones; the liar accepts all."""
        lies = [one for one in messages if one[0] == self.LIAR]
        assert not convicted([(sender, message) for sender, _, message in messages], self.names)
        super()._check_said([one for one in messages if one not in lies])
