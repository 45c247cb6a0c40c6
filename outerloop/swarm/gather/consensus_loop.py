"""Event loop of one peer's gather rounds, which connects the consensus (chain.py) to network, disk and clock.

The loop repeats three steps:

1. take the next event: a message arrived, a payload was stored, a timer expired, commits were fetched
2. pass the event to the consensus, a state machine, and carry out the effects that it returns, in order
3. check the current round: request payloads from peers not asked yet, and start timers
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from outerloop.swarm.access.hard_state_file import HardStateFile
from outerloop.swarm.consensus.chain import Chain
from outerloop.swarm.consensus.commit import Commit
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
from outerloop.swarm.gather.ballot_rpc import BallotRpc
from outerloop.swarm.gather.catch_up import CatchUpTask
from outerloop.swarm.gather.committed_rounds import CommittedRounds
from outerloop.swarm.gather.payload_downloads import PayloadDownloads
from outerloop.swarm.gather.payload_requests import OwnPayloads, PayloadRequests
from outerloop.swarm.gather.round_context import Event, RoundContext
from outerloop.swarm.gather.round_timers import RoundTimers
from outerloop.swarm.gather.state_roots import StateRoots
from outerloop.swarm.gather.statement_witness import StatementWitness
from outerloop.swarm.p2p.network_thread import BackgroundTasks
from outerloop.swarm.resource_exhaustion import EXHAUSTION
from outerloop.swarm.timeouts import RESIGN_S, RESIGNED_S, limit

logger = logging.getLogger(__name__)


class RoundPart(Protocol):
    def begin_round(self, number: int) -> None:
        """Stop the work of the previous round, and start the work of round `number`."""
        ...


@dataclass(kw_only=True)
class ConsensusLoop:
    """The event loop, and the components that it drives."""

    context: RoundContext
    hard_state_file: HardStateFile
    ballots: BallotRpc
    own_payloads: OwnPayloads
    requests: PayloadRequests
    downloads: PayloadDownloads
    outcomes: CommittedRounds
    roots: StateRoots
    catch_up: CatchUpTask
    timers: RoundTimers
    witness: StatementWitness
    _completing: BackgroundTasks = field(default_factory=BackgroundTasks, init=False)
    _view: tuple[int, int] = field(default=(-1, -1), init=False)  # round and view at the last look
    _round: tuple[int, bytes] = field(default=(-1, b""), init=False)  # round and digest of the head at the last look

    async def run(self) -> None:
        """Handle events one at a time until cancelled.

        If handling an event fails, e.g. because of a disk error, pass the error to `outcomes` and stop.
        """
        try:
            while True:
                event = await self.context.events.get()
                for effect in event(self.context.chain):
                    # retries if the disk is full, because some implementations of Disk do not
                    await EXHAUSTION.wait_out(partial(self._carry_out, effect))
                self.look()
        except Exception as error:
            self.outcomes.fail(error)

    def look(self) -> None:
        """Stop the requests and timers of the previous round or view, and start those that the current one needs."""
        chain = self.context.chain
        if self._view != (chain.number, chain.view):
            self._view = chain.number, chain.view
            self.downloads.begin_view()
        if self._round != (chain.number, chain.hard_state.head.digest):
            self._round = chain.number, chain.hard_state.head.digest
            for part in self._parts():
                part.begin_round(chain.number)
        self.requests.ask_all(chain.number, (*self.context.others(), *sorted(chain.soft_state.asked)))
        self.timers.look(chain)

    def _parts(self) -> tuple[RoundPart, ...]:
        return self.witness, self.timers, self.requests, self.own_payloads, self.outcomes, self.catch_up

    async def resign(self) -> None:
        """Leave the roster, so that the other peers need not wait for this one (consensus/resignation.py).

        Return once the resignation has been sent to the others, and at the latest after RESIGN_S seconds.
        """
        try:
            async with limit(RESIGN_S):
                await self._handled(lambda chain: chain.resign())
                while self.context.chain.waits_to_resign:
                    await asyncio.sleep(RESIGNED_S)
                await self._handled(lambda chain: [])  # wait until the effects of all earlier events are carried out
                await self.ballots.sent()
        except TimeoutError:
            logger.warning(
                "this peer leaves, but could not resign its vote within %g s: the round was not decided, or its last"
                " messages did not arrive",
                RESIGN_S,
            )

    async def _handled(self, event: Event) -> None:
        """Queue an event, and wait until it is handled and all effects of earlier events have been carried out."""
        handled = asyncio.Event()

        def handle(chain: Chain) -> list[Effect]:
            handled.set()
            return event(chain)

        self.context.act(handle)
        await handled.wait()

    def cancel(self) -> None:
        """Cancel the tasks and timers of the current round."""
        self.timers.cancel()
        self.requests.cancel()
        self.catch_up.cancel()
        self._completing.cancel()

    async def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Persist(hard_state):
                await self.hard_state_file.write(hard_state)
            case Send(to, message):
                self.ballots.send(to, message)
            case ApplyCommit(commit):
                self._apply(commit)
            case FetchPayloads(number, participants, holder):
                for participant in participants:
                    sources = self.context.sources_of(participant, first=holder)
                    self.downloads.start(number, participant, sources, proposed=True)
            case CatchUp(peer=peer):
                self.catch_up.fetch_from(peer)
            case ChainLeft(number):
                self.roots.leave(number)
                self.outcomes.leave(number)
                self.own_payloads.restart(number)
            case Reject():
                self._reject(effect)

    def _apply(self, commit: Commit) -> None:
        """Queue a decided commit for the trainer, and download the payloads that it names."""
        self.outcomes.add(commit)
        self.roots.add(commit)
        self._completing.start(self.outcomes.complete(commit))

    def _reject(self, effect: Reject) -> None:
        """Log a rejected message. Fetch the sender's log if the effect requests that."""
        self.context.trust.rejections.note("ballots", effect.sender, effect.reason)
        if effect.compare_logs:
            self.catch_up.compare_with(effect.sender)
