"""Run one peer's gather rounds: connect the agreement (chain.py) to network, disk and clock.

    1. take the next event: a ballot arrived, a payload was stored, a timer expired, commits were fetched
    2. pass it to the agreement, a state machine, and carry out the effects that it returns, in order
    3. check the current round: ask further peers for payloads, start timers

    own payload -> signed -> store -> holds ...  ApplyCommit(commit) -> all its payloads -> store -> the contributions
    a payload from another peer is checked before it is stored: its owner must have signed it for this round

The network side runs ahead of the trainer: it votes and follows the chain while the trainer computes or sleeps, and
keeps every round until the trainer has taken it.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any

from outerloop.swarm.access.hard_state_file import HardStateFile
from outerloop.swarm.access.signatures import Field
from outerloop.swarm.accountability.accusations import Accusations
from outerloop.swarm.accountability.equivocation import EquivocationWatch
from outerloop.swarm.accountability.expulsion import ExpelledPeers
from outerloop.swarm.accountability.rollback import forgotten
from outerloop.swarm.consensus.chain import CommitChain
from outerloop.swarm.consensus.commit import Commit, Participant
from outerloop.swarm.consensus.effects import (
    ApplyCommit,
    CatchUp,
    ChainLeft,
    FetchPayloads,
    Output,
    Persist,
    Reject,
    Send,
)
from outerloop.swarm.consensus.explain import waiting_for
from outerloop.swarm.consensus.hard_state import HardState
from outerloop.swarm.consensus.messages import CommitCertificate, Message
from outerloop.swarm.gather.ballot_rpc import BallotRpc
from outerloop.swarm.gather.catch_up import CatchUpTask
from outerloop.swarm.gather.committed_rounds import CommittedRounds
from outerloop.swarm.gather.event_queue import MAX_WAITING, EventQueue
from outerloop.swarm.gather.log_rpc import LogRpc
from outerloop.swarm.gather.payload_downloads import PayloadDownloads
from outerloop.swarm.gather.payload_requests import PayloadRequests
from outerloop.swarm.gather.payload_rpc import PayloadRpc
from outerloop.swarm.gather.reachability import ReachabilityProbe
from outerloop.swarm.gather.round_store import RoundStore
from outerloop.swarm.gather.round_timers import Event, RoundTimers
from outerloop.swarm.gather.settings import GatherSettings
from outerloop.swarm.gather.signer import KeySigner
from outerloop.swarm.gather.state_roots import StateRoots
from outerloop.swarm.membership.incarnations import Incarnations
from outerloop.swarm.p2p.transport import Transport
from outerloop.swarm.resource_exhaustion import EXHAUSTION
from outerloop.swarm.storage import Disk
from outerloop.swarm.transfer.bulk import Bulk
from outerloop.swarm.transfer.rate_limiter import RateLimiter
from outerloop.swarm.transfer.signed_payload import SEAL_BYTES, beside, sealed, unsealed
from outerloop.swarm.validation import id_of
from outerloop.types import UserError

logger = logging.getLogger(__name__)


class GatherRunner:
    """One peer's gather rounds.

    Args:
        own: this peer's name.
        names: returns peer id -> name of the peers that may take part.
        pace: rate limit for sending payloads; None: unlimited.
        incarnations: decides which process of a peer is accepted; None: any.

    `bulk` transfers payloads and counts their bytes. `roots` knows which state a majority has certified. `asking` must
    be notified of payloads that cannot be used. `memory_file` stores the votes that this peer must not forget.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        run: str,
        own: str,
        names: Callable[[], dict[str, str]],
        disk: Disk,
        rules: GatherSettings,
        max_blob_bytes: int,
        pace: RateLimiter | None = None,
        incarnations: Incarnations | None = None,
    ) -> None:
        def allowed(peer_id: str) -> bool:
            return peer_id in names()

        self._own = own
        self._trust = transport.trust
        self._rules = rules
        self._most_bytes = max_blob_bytes + SEAL_BYTES
        self._store = RoundStore(disk)
        self.memory_file = HardStateFile(disk, own=own, life=incarnations.life if incarnations else None)
        self.bulk = Bulk(transport, self._store, run=run, allowed=allowed, pace=pace)
        self._pulls = PayloadDownloads(
            self.bulk,
            self._store,
            self._trust,
            session=lambda: self._agreement.memory.run,
            max_bytes=self._most_bytes,
            held=self._holds,
        )
        self._outcomes = CommittedRounds(self._store, self._pulls, own=own)
        self.history = LogRpc(transport, run=run, allowed=allowed, since=self._since)
        self._following = CatchUpTask(
            self.history,
            self._trust,
            machine=lambda: self._agreement,
            others=self._others,
            receive=self._receive,
            outrun=self._outcomes.outrun,
            parted=lambda peer, log: self._happens(lambda machine: machine.compare(peer, log)),
        )
        self.roots = StateRoots(own=own)
        self._payloads = PayloadRpc(transport, run=run, allowed=allowed)
        self.asking = PayloadRequests(
            self._payloads, self._pulls, self._store, self.bulk, ahead=self._following.catch_up, act=self._happens
        )
        self._post = BallotRpc(transport, run=run, names=names, receive=self._receive, incarnations=incarnations)
        self._accusations = Accusations(
            transport,
            ExpelledPeers(disk, self._trust, memory=lambda: self._machine.memory if self._machine else None),
            run=run,
            names=names,
            on_own=self._has_lied_itself,
            on_other=lambda: self._happens(lambda machine: machine.reconsider()),
        )
        self._watch = EquivocationWatch("")
        self._reach = ReachabilityProbe(self._following.look_at)
        self._timers = RoundTimers(self._happens, rules, moving_s=lambda: self.bulk.moving_s, gone=self.asking.gone)
        self._events: EventQueue[Event] = EventQueue()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._of_round: list[asyncio.Task[None]] = []
        self._machine: CommitChain | None = None
        self._looked_at = -1
        self._view = -1, -1

    @property
    def roster(self) -> tuple[str, ...]:
        """The names of the peers that decide the current round."""
        return self._agreement.memory.roster

    @property
    def peers(self) -> tuple[str, ...]:
        """The roster; empty before the rounds have begun."""
        return () if self._machine is None else self.roster

    @property
    def head(self) -> str:
        """The digest of the last commit that this peer knows, in hex; empty before the rounds have begun."""
        return "" if self._machine is None else self._machine.memory.head.digest.hex()

    def head_of(self, number: int) -> bytes | None:
        """Return the digest of a commit that the trainer has landed.

        None if the commit is no longer stored, or if this peer has to replace its state first (`outrun`).
        """
        return None if self._outcomes.too_far else self._outcomes.digest(number)

    @property
    def _agreement(self) -> CommitChain:
        assert self._machine is not None, "the rounds have not begun"
        return self._machine

    # called by the exchange

    async def serve(self) -> None:
        """Start answering requests. Ballots are queued until the rounds begin."""
        for part in (self.bulk, self._payloads, self.history, self._post, self._accusations):
            await part.serve()

    async def begin(self, *, run: str, roster: Iterable[str], number: int) -> None:
        """Start a chain whose first round is `number`. Payloads of any other chain are removed."""
        self._store.clear()
        memory = HardState.first(run=run, peer=self._own, roster=roster, number=number)
        await self.memory_file.write(memory)
        self.go_on(memory)

    def go_on(self, memory: HardState) -> None:
        """Take part in the rounds, starting from `memory`, which must be on disk already."""
        assert self._machine is None, "the rounds have begun"
        self._watch = EquivocationWatch(memory.run)
        self._trust.signatures.witness = self._compare
        self._outcomes.begin(memory)
        rules = self._rules
        self._machine = CommitChain(
            memory,
            notary=KeySigner(self._trust.signatures, session=memory.run, own=self._own),
            closing=rules.closing,
            absent_rounds=rules.absent_rounds,
            allowed=lambda name: id_of(name) in self._trust.allow,
            most_bytes=self._most_bytes,
        )
        self._hold_since(memory.number)
        self._look()
        self._living = self._spawn(self._live())
        self._spawn(self._accusations.ask_around())

    async def go_on_from(self, decided: CommitCertificate, *, run: str) -> None:
        """Follow the chain from a commit whose state is being downloaded.

        Raises UserError if this peer is in that commit's roster but has no memory of its votes.
        """
        self._following.away = True
        self.roots.take_back(0)
        self._outcomes.skip_to(decided.commit.number)
        if self._machine is not None:
            self._happens(lambda machine: machine.skip_to(decided))
            return
        try:
            memory = HardState.joining(run=run, peer=self._own, head=decided)
        except ValueError as error:
            raise UserError(str(error)) from error
        self._store.clear()
        await self.memory_file.write(memory)
        self.go_on(memory)

    @property
    def known(self) -> Commit | None:
        """The last commit that this peer knows; None before the rounds have begun."""
        return None if self._machine is None else self._machine.memory.head

    @property
    def outrun(self) -> bool:
        """Return whether this peer must download the others' state, even if it follows their commits meanwhile."""
        return self._outcomes.too_far

    async def look_at(self, peer: str) -> None:
        """Ask a peer for its position, and catch up with it if it is ahead.

        Raises BrokenStream, Unreachable, TimeoutError.
        """
        await self._following.look_at(peer)

    def arrived(self) -> None:
        """Note that the trainer has the state: this peer may ask to join the roster."""
        self._following.away = False

    async def offer(self, number: int, blob: bytes) -> None:
        """Sign and store this peer's payload for a round, and offer it to the others.

        Does nothing if the round is over, or if this peer has signed a payload for it before, e.g. before a restart.
        """
        if not self._has_sealed(number) and number >= self._agreement.number:
            session, state = self._agreement.memory.run, await self.roots.named_in(number)

            def seal() -> tuple[bytes, Participant]:
                signatures, peer = self._trust.signatures, self._own
                content = sealed(blob, signatures, session=session, number=number, peer=peer, state=state)
                return content, Participant.of(peer, content, state=state)

            content, one = await beside(len(blob), seal)
            await self._store.put(number, one, content)
            self._payloads.own.post(number, one)
            self._holds(number, one)

    def decided(self, number: int) -> bool:
        """Return whether a round is decided. Raises LogTruncated if this peer is too far behind to know its commit.

        May also be called from the trainer's thread: it does not wait for the network thread.
        """
        return self._outcomes.decided(number)

    async def outcome(self, number: int) -> list[tuple[str, bytes | memoryview]]:
        """Return (name, payload) of each participant of a round, in the order of names, once all payloads are stored.

        Raises LogTruncated if this peer is too far behind.
        """
        watching = self._spawn(self._reach.watch(self._others))
        try:
            return await unsealed(await EXHAUSTION.wait_out(partial(self._outcomes.take, number)))
        finally:
            watching.cancel()

    def waits_for(self, number: int) -> str:
        """Return in one line why a round has no outcome yet."""
        decided, lacking = self._outcomes.lacks(number), self._reach.lacks_majority(self.roster)
        return decided or (f"round {number}: {lacking}" if lacking else waiting_for(self._agreement))

    # events, handled one at a time

    def _happens(self, event: Event) -> None:
        self._events.put(event)

    def _holds(self, number: int, one: Participant) -> None:
        self._happens(lambda machine: machine.holds(number, one))

    def _receive(self, sender: str, message: Message, size: int = 0) -> None:
        silenced = self.asking.penalties.silence
        for full in self._events.put_from(
            sender, lambda it: [] if silenced(sender, message, it.number) else it.receive(sender, message), size
        ):
            self._trust.refusals.note(
                "ballots",
                full,
                f"{MAX_WAITING} of its messages are queued already, or the whole queue is full: one is dropped",
            )

    async def _live(self) -> None:
        while True:
            event = await self._events.get()
            try:
                for output in event(self._agreement):
                    await EXHAUSTION.wait_out(partial(self._carry_out, output))  # a Disk may not retry by itself
                self._look()
            except Exception as error:  # e.g. a disk failure; `outcome` then raises it, too
                self._outcomes.fail(error)
                raise

    async def _carry_out(self, output: Output) -> None:
        if isinstance(output, Persist):
            await self.memory_file.write(output.memory)
        elif isinstance(output, Send):
            self._post.send(output.to, output.message)
        elif isinstance(output, ApplyCommit):
            self._outcomes.add(output.commit)
            self.roots.add(output.commit)
            self._spawn(self._outcomes.complete(output.commit))
        elif isinstance(output, FetchPayloads):
            for one in output.participants:
                self._pulls.start(output.number, one, self._holders(one, first=output.holder), proposed=True)
        elif isinstance(output, CatchUp):
            self._following.catch_up(output.peer)
        elif isinstance(output, ChainLeft):
            self.roots.leave(output.number)
            self._go_over(output.number)
        elif isinstance(output, Reject):
            self._trust.refusals.note("ballots", output.sender, output.reason)
            if output.parted:
                self._following.compare(output.sender)

    def _go_over(self, number: int) -> None:
        """Follow another chain from this round on. Payloads that are stored here may count in it."""
        self._outcomes.leave(number)
        self._payloads.own.take_back(number)
        self._looked_at = -1
        self._hold_since(number)

    def _hold_since(self, number: int) -> None:
        """Report the stored payloads from this round on to the agreement, and offer this peer's own to others."""
        for known, one in self._store.since(number):
            self._holds(known, one)
            if one.peer == self._own:
                self._payloads.own.post(known, one)

    def _look(self) -> None:
        """Start what the current round needs; if it is a new round or view, end what belongs to the last one."""
        machine = self._agreement
        if (machine.number, machine.view) != self._view:
            self._view = machine.number, machine.view
            self._pulls.next_view()
        if machine.number != self._looked_at:
            self._looked_at = machine.number
            self._watch.begin(machine.number)
            self._timers.clear()
            self.asking.end_round()
            self._payloads.own.over(machine.number - 1)
            self._outcomes.forget()
            for task in self._of_round:
                task.cancel()
            self._of_round = [] if machine.votes else [asyncio.create_task(self._come_in())]
        self.asking.ask_all(machine.number, (*self._others(), *sorted(machine.gathering.asked)))
        self._timers.look(machine)

    def _come_in(self) -> Coroutine[Any, Any, None]:
        return self._following.come_in(lambda: self._happens(lambda machine: machine.ask()))

    # peers that sign contradictory statements

    def _compare(self, context: str, session: str | bytes, fields: tuple[Field, ...], signature: bytes) -> None:
        """Accuse the peer that has signed this statement if it has signed a contradictory one before.

        Raises UserError if the signer is this peer and its memory does not hold the statement (rollback.py).
        """
        self._stop_if_forgotten(forgotten(self._agreement.memory, context, session, fields))
        if evidence := self._watch.heard(context, session, fields, signature):
            self._spawn(self._accusations.accuse(evidence))

    def _stop_if_forgotten(self, vote: str) -> None:
        """Stop voting if this peer's memory was rolled back, because it might vote twice.

        `vote`: description of a vote that the memory does not hold; empty if there is none.
        """
        if not vote:
            return
        error = UserError(
            f"this peer {vote}: its disk was set back to a snapshot or a backup. It stops, because it might vote twice."
            " Remove the identity file and join as a new peer; with exchange.allow, replace the old id in every list"
        )
        self._outcomes.fail(error)
        self._living.cancel()
        raise error

    def _has_lied_itself(self, why: str) -> None:
        self._outcomes.fail(
            UserError(
                f"the key of this peer {why}, so the other peers expel it. A copy of the key is in use, or this peer's"
                " memory was lost. Stop the copy, remove the identity file, and join as a new peer"
            )
        )

    # helpers

    def _others(self) -> list[str]:
        """Return the allowed peers of the roster except this one, in the order in which to ask them.

        The order starts after this peer's own name. If all peers asked the same one first, they would queue there.
        """
        ahead = bisect(self.roster, self._own)
        others = [peer for peer in (*self.roster[ahead:], *self.roster[:ahead]) if peer != self._own]
        return [peer for peer in others if id_of(peer) in self._trust.allow]

    def _has_sealed(self, number: int) -> bool:
        """Return whether this peer has signed a payload for this round: it never signs a second, on any chain."""
        return self._store.sealed_by(self._own, number)

    def _since(self, number: int | None) -> tuple[CommitCertificate, ...]:
        """Return the commits after a number. Return the whole log for None, or if it does not reach back that far."""
        if self._machine is None:
            return ()
        found = None if number is None else self._machine.commits_since(number)
        return tuple(one for one in self._machine.memory.log if one.accepts) if found is None else found

    def _holders(self, one: Participant, first: str = "") -> Iterable[str]:
        return [peer for peer in dict.fromkeys([first, one.peer, *self.roster]) if peer not in ("", self._own)]

    def _spawn(self, work: Coroutine[Any, Any, object]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
