"""A world of peers of the agreement whose every step the test chooses: what arrives, what is lost, who crashes when."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgpack

from outerloop.swarm.consensus.chain import Chain
from outerloop.swarm.consensus.commit import Participant, genesis
from outerloop.swarm.consensus.effects import (
    ApplyCommit,
    CatchUp,
    ChainLeft,
    Effect,
    FetchPayloads,
    Persist,
    Reject,
    Send,
)
from outerloop.swarm.consensus.messages import Message, from_map, to_map
from outerloop.swarm.consensus.paxos.chain import PaxosChain
from outerloop.swarm.consensus.proof import proof_error
from outerloop.swarm.consensus.proposer import GatherPolicy
from outerloop.swarm.consensus.state import HardState
from outerloop.swarm.consensus.votes import CommitCertificate
from tests.support.swarm.consensus_monitor import Monitor
from tests.support.swarm.toy_signatures import ToySigner

RUN = "r"
Act = Callable[[Chain], list[Effect]]


def payload(peer: str, number: int) -> Participant:
    return Participant(peer, hashlib.sha256(f"{peer} {number}".encode()).digest(), 10)


@dataclass
class Peer:
    """`disk` and `payloads` outlive a crash, the machine does not."""

    disk: HardState
    payloads: set[tuple[int, Participant]] = field(default_factory=set)
    machine: Chain | None = None

    def reloaded(self) -> HardState:
        return HardState.from_bytes(self.disk.to_bytes(), session=RUN, peer=self.disk.peer)


class World:
    """`network`: what is on its way, each (sender, receiver, message). `protocol`: what decides a round."""

    protocol: type[Chain] = PaxosChain

    def __init__(
        self,
        members: Iterable[str],
        outsiders: Iterable[str] = (),
        *,
        gather_policy: GatherPolicy,
        absent_rounds: int = 3,
        rng: random.Random | None = None,
        as_bytes: bool = False,
    ) -> None:
        self.rng = rng or random.Random(0)
        self.gather_policy, self.absent_rounds, self.as_bytes = gather_policy, absent_rounds, as_bytes
        members = list(members)
        first = genesis(RUN, members)
        self.monitor = Monitor(first, min_peers=gather_policy.min_peers)
        start = CommitCertificate(first, 0, ())
        self.peers = {peer: Peer(HardState.first(session=RUN, peer=peer, roster=members)) for peer in members}
        self.peers |= {peer: Peer(HardState.joining(session=RUN, peer=peer, head=start)) for peer in outsiders}
        self.network: list[tuple[str, str, Message]] = []
        self.wants: list[tuple[str, int, Participant]] = []
        self.fetches: list[tuple[str, str]] = []
        self.compares: list[tuple[str, str]] = []
        self.refused: list[tuple[str, Reject]] = []
        for peer in self.peers:
            self.start(peer)

    def __getitem__(self, peer: str) -> Chain:
        machine = self.peers[peer].machine
        assert machine is not None, f"{peer} is down"
        return machine

    @property
    def up(self) -> list[str]:
        return [name for name, peer in self.peers.items() if peer.machine]

    def start(self, name: str) -> None:
        """From disk: memory and payloads."""
        peer = self.peers[name]
        hard_state = peer.reloaded() if self.as_bytes else peer.disk
        peer.machine = self.protocol(
            hard_state, signer=ToySigner(name), gather_policy=self.gather_policy, absent_rounds=self.absent_rounds
        )
        self.hold_again(name)

    def hold_again(self, name: str) -> None:
        for number, one in sorted(self.peers[name].payloads):
            self.event(name, lambda machine, number=number, one=one: machine.payload_stored(number, one))

    def crash(self, name: str) -> None:
        self.peers[name].machine = None

    def event(self, name: str, act: Act, *, crash_after: int | None = None) -> None:
        """An event and what follows from it, a crash after so many outputs included."""
        applied = False
        for done, output in enumerate(act(self[name])):
            if done == crash_after:
                self.crash(name)
                return
            self._carry_out(name, output)
            applied |= isinstance(output, ApplyCommit)
        if applied and not self[name].votes:
            self.event(name, lambda machine: machine.request_join())

    def _carry_out(self, name: str, output: Effect) -> None:
        peer = self.peers[name]
        if isinstance(output, Persist):
            peer.disk = output.hard_state
            self.monitor.saved(name, peer.disk, peer.payloads)
        elif isinstance(output, Send):
            self.monitor.said(name, output.message, peer.disk)
            self.network.append((name, output.to, self._copied(output.message)))
        elif isinstance(output, ApplyCommit):
            self.monitor.did_apply(output.commit)
        elif isinstance(output, FetchPayloads):
            self.wants += [(name, output.number, one) for one in output.participants]
        elif isinstance(output, CatchUp):
            self.fetches.append((name, output.peer))
        elif isinstance(output, ChainLeft):
            self.hold_again(name)
        elif isinstance(output, Reject):
            self.refused.append((name, output))
            if output.compare_logs and (name, output.sender) not in self.compares:
                self.compares.append((name, output.sender))

    def _copied(self, message: Message) -> Message:
        return from_map(msgpack.unpackb(msgpack.packb(to_map(message)))) if self.as_bytes else message

    def launch(self, name: str, number: int | None = None) -> None:
        """A peer makes its payload of the round at hand."""
        number = self[name].number if number is None else number
        self.give(name, number, payload(name, number))

    def give(self, name: str, number: int, one: Participant, *, crash_after: int | None = None) -> None:
        self.peers[name].payloads.add((number, one))
        self.event(name, lambda machine: machine.payload_stored(number, one), crash_after=crash_after)

    def deliver(self, index: int = 0, *, keep: bool = False, crash_after: int | None = None) -> None:
        """One message arrives; with `keep` it will once more. Nothing arrives at who is down."""
        sender, to, message = self.network[index] if keep else self.network.pop(index)
        if self.peers[to].machine:
            self.event(to, lambda machine: machine.receive(sender, message), crash_after=crash_after)

    def answers(self, source: str) -> bool:
        return source in self.up

    def told(self, source: str, after: int | None) -> list[CommitCertificate]:
        """What a peer tells of its log (log_rpc.py): commits after this number, all where it does not reach back."""
        machine = self[source]
        found = None if after is None else machine.commits_since(after)
        return [one for one in (machine.hard_state.log if found is None else found) if one.accepts]

    def fetch(self, name: str, source: str) -> None:
        """The commits that a peer lacks, from one that has said it is ahead (following.py)."""
        hard_state = self[name].hard_state
        log = self.told(source, hard_state.head.number)
        if log and log[0].commit.number > hard_state.number:
            self.take_state(name, source)
        elif log and proof_error(hard_state.head, log[0], self[name].signer):
            self.compare(name, source)
        else:
            for decided in log:
                self.event(name, lambda machine, decided=decided: machine.receive(source, decided))

    def take_state(self, name: str, source: str) -> None:
        """The log of the other one is too short."""
        decided = self[source].hard_state.log[-1]
        assert decided.commit.digest == self.monitor.chosen[decided.commit.number].digest
        self.event(name, lambda machine: machine.install_snapshot(decided))

    def compare(self, name: str, source: str) -> None:
        """The whole log of a peer whose chain is another one, or whose log is longer."""
        log = self.told(source, None)
        self.event(name, lambda machine: machine.compare_log(source, log))

    def deliver_all(self, *, at_most: int = 10_000) -> int:
        """Until nothing is on its way: messages in any order, wanted payloads and missing commits. Returns how many."""
        for count in range(at_most):
            if self.wants:
                name, number, one = self.wants.pop(self.rng.randrange(len(self.wants)))
                if name in self.up and any((number, one) in self.peers[other].payloads for other in self.up):
                    self.give(name, number, one)
            elif self.fetches:
                name, source = self.fetches.pop(self.rng.randrange(len(self.fetches)))
                if name in self.up and self.answers(source):
                    self.fetch(name, source)
            elif self.compares:
                name, source = self.compares.pop(self.rng.randrange(len(self.compares)))
                if name in self.up and self.answers(source):
                    self.compare(name, source)
            elif self.network:
                self.deliver(self.rng.randrange(len(self.network)))
            else:
                return count
        raise AssertionError(f"messages never end: {self.network[:5]}")
