"""Launch a round: read the model, compute the difference, add feedback, compress, pack, and pass to the exchange.

    blocking    inner steps stop until all of this is done
    async       a background thread does all of this, and inner steps stop only until it has copied the fast weights.
                If the caller announces each update of the model, inner steps continue during the copy, and wait for it
                only when the weights are about to change.

The thread also reads the slow weights, the residual and the tensors agreed on for this round. These change only when a
round lands. Until the thread is done, no round lands and no other round launches, so both ways produce the same bytes.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch

from outerloop import wire
from outerloop.aggregate.exclusion_votes import ExclusionVotes
from outerloop.core.codec import UpdateCodec, leader
from outerloop.core.pipeline import RoundPipeline
from outerloop.core.pipeline.values import Snapshot
from outerloop.core.round import InFlight, PendingLaunch
from outerloop.kernels.threads import set_threads
from outerloop.protocols import Exchange, OuterMethod, Schedule
from outerloop.replica.weights import Replica
from outerloop.types import Capabilities, Round

logger = logging.getLogger(__name__)


def is_concurrent(exchange: Capabilities, schedule: Schedule, method: OuterMethod) -> bool:
    """Return whether inner steps continue while a round is prepared.

    They continue if the exchange allows it, if the delay is at least 1 and less than H (inner steps per round), and if
    messages are computed from weights, not from gradients.
    """
    return exchange.concurrent and 0 < schedule.delay < schedule.sync_every and method.reads == "weights"


def on_stream(stream: torch.cuda.Stream | None) -> AbstractContextManager[object]:
    """Return a context in which a GPU works on `stream`. If `stream` is None, CUDA is neither used nor initialized."""
    return nullcontext() if stream is None else torch.cuda.stream(stream)


class RoundLauncher:
    """Launches the rounds of one replica and keeps them until they land. Changes no weights and no residual.

    Args:
        replica, pipeline, codec, votes, exchange, schedule: parts of the same outer loop.
        concurrent: whether inner steps may run between `snapshot` and `send`.
        agrees_ahead: whether "next" parts (types.CodecContext), if this peer sends any, reach all peers before the
            round in which they apply.

    Attributes:
        in_flight: launched rounds that have not landed yet.
        pending: rounds that the background thread is preparing.
        waiting: for each fragment, the number of this peer's training samples that no landed message includes yet.
    """

    def __init__(
        self,
        replica: Replica,
        pipeline: RoundPipeline,
        codec: UpdateCodec,
        votes: ExclusionVotes,
        *,
        exchange: Exchange,
        schedule: Schedule,
        concurrent: bool,
        agrees_ahead: bool,
    ) -> None:
        self.replica, self.island, self.pipeline, self.codec = replica, replica.island, pipeline, codec
        self.votes = votes
        self.exchange, self.schedule, self.agrees_ahead = exchange, schedule, agrees_ahead
        self.device = next(iter(self.island.params.values())).device
        cores = torch.get_num_threads() if self.device.type == "cuda" else 1  # on a CPU, leave cores for inner steps
        self.thread = ThreadPoolExecutor(1, "outerloop-launch", set_threads, (cores,)) if concurrent else None
        self.notifies_updates = False
        self.in_flight: dict[Round, InFlight] = {}
        self.pending: dict[Round, PendingLaunch] = {}
        self.waiting = [0] * schedule.fragments

    def start_round(self, round: Round) -> None:
        """Launch a round, now or in the background. Raises UserError if the model's parameters were replaced."""
        if self.thread:
            self.pending[round] = self.launch_async(round)
        else:
            self.in_flight[round] = self.island.compute(self.launch_blocking, round)

    def join_decided_round(self, round: Round) -> None:
        """Add to the rounds in flight a round that was decided without this peer's message."""
        update = {name: self.replica.slow[name] for name in self.names(round)}
        pending = self.exchange.start(b"", round)
        self.in_flight[round] = InFlight(round, update, b"", pending, samples=0, launch_s=0.0, delta_norm=0.0)

    def resume(self, waiting: list[int] | int, flights: list[dict[str, Any]]) -> None:
        """Restore `waiting` and the rounds in flight, each saved by `InFlight.state_dict`."""
        # In older checkpoints `waiting` is a single number.
        self.waiting = list(waiting) if isinstance(waiting, list) else [waiting] * self.schedule.fragments
        resumed = [InFlight.resumed(saved, self.exchange) for saved in flights]
        self.in_flight = {flight.round: flight for flight in resumed}

    def wait(self) -> None:
        """Wait until all rounds that the thread is preparing are in flight. Raises any error of the thread."""
        for round in list(self.pending):
            self.in_flight[round] = self.pending.pop(round).flight()

    def arrived(self) -> Iterator[Round]:
        """Yield the rounds in flight whose messages have all arrived; nothing while the thread prepares a round."""
        for round in [] if self.pending else sorted(self.in_flight):
            if self.in_flight[round].pending.arrived():
                yield round

    def warn_of_lost_rounds(self, step: int) -> None:
        """Log a warning if rounds are in flight as this peer leaves after `step`, unless another round has just landed.

        With eager updates, a round is always in flight when another one lands.
        """
        if self.in_flight and not self.schedule.due(step).land:
            rounds = ", ".join(map(str, sorted(self.in_flight)))
            logger.warning(
                "this peer leaves before %s lands, so its slow weights do not contain that round: end training"
                " schedule.delay=%d inner steps after a round launches",
                rounds,
                self.schedule.delay,
            )

    def before_update(self) -> float:
        """Wait until the model's weights may be changed. Return the seconds waited.

        A caller that calls this before every change may set `notifies_updates`. A launch then copies the weights in the
        background, and inner steps wait for the copy only when the weights are about to change.
        """
        began_s = time.perf_counter()
        for pending in self.pending.values():
            pending.until(pending.copied)
        return time.perf_counter() - began_s

    def add_samples(self, samples: int) -> None:
        """Add the training samples of one inner step to each fragment's count."""
        self.waiting = [waiting + samples for waiting in self.waiting]

    def samples_of(self, round: Round) -> int:
        """Return the number of training samples that contribute to a round that launches now.

        These are the samples that no landed message includes yet, minus those of the fragment's round in flight, if
        any: with a delay of H (inner steps per round), a round lands just after the next one launches.
        """
        others = sum(other.samples for other in self.in_flight.values() if other.round.fragment == round.fragment)
        return self.waiting[round.fragment] - others

    def leads(self, round: Round) -> bool:
        """Return whether this peer sends the "next" parts (types.CodecContext) for the next round. Peers take turns."""
        return self.agrees_ahead and leader(round.number + 1, self.exchange.size) == self.exchange.rank

    def launch_blocking(self, round: Round) -> InFlight:
        """Launch a round in this thread.

        Raises UserError if the model's parameters were replaced, or FloatingPointError if training has diverged.
        """
        began_s = time.perf_counter()
        samples, leads = self.samples_of(round), self.leads(round)
        flight = self.send(round, self.copy(self.snapshot(round)), samples, leads)
        return replace(flight, launch_s=time.perf_counter() - began_s)

    def launch_async(self, round: Round) -> PendingLaunch:
        """Launch a round in the background thread. Wait until the weights are copied, unless `notifies_updates` is set.

        Raises UserError if the model's parameters were replaced. The methods of the result raise all other errors.
        """
        assert self.thread
        samples, leads = self.samples_of(round), self.leads(round)
        began_s = time.perf_counter()
        stream = torch.cuda.current_stream(self.device) if self.device.type == "cuda" else None
        copied = self.thread.submit(self.copy, self.snapshot(round), stream)
        ready = self.thread.submit(lambda: self.send(round, copied.result(), samples, leads, stream))
        pending = PendingLaunch(copied, ready, stall_s=time.perf_counter() - began_s)
        if not self.notifies_updates:
            pending.until(copied)
        return pending

    @torch.no_grad()
    def snapshot(self, round: Round) -> Snapshot:
        """Return the model's tensors from which the round's message is computed."""
        self.island.check_parameters()
        return self.pipeline.snapshot(round.fragment, self.names(round))

    @torch.no_grad()
    def copy(self, snapshot: Snapshot, stream: torch.cuda.Stream | None = None) -> Snapshot:
        """Return the snapshot with copies of the tensors that inner steps change. On a GPU, copy on `stream`."""
        with on_stream(stream):
            return self.pipeline.copy(snapshot)

    @torch.no_grad()
    def send(
        self, round: Round, snapshot: Snapshot, samples: int, leads: bool, stream: torch.cuda.Stream | None = None
    ) -> InFlight:
        """Build the round's message from the snapshot and pass it to the exchange. On a GPU, compute on `stream`."""
        with on_stream(stream):
            local = self.pipeline.launch(round, snapshot, leads=leads)
            header = wire.Header(
                round=round.number,
                fragment=round.fragment,
                samples=samples,
                schema=wire.schema_hash(self.codec.schema(round, local.update)),
                slow=self.replica.joint_hash(local.update),
                peer=self.exchange.peer,
            )
            blob = wire.pack(header, local.parts | self.votes.parts())
        pending, delta_norm = self.exchange.start(blob, round), math.sqrt(local.squares)
        return InFlight(round, local.update, blob, pending, samples, 0.0, delta_norm, local.fast_at_launch)

    def names(self, round: Round) -> list[str]:
        """Return the parameter names of a round's fragment."""
        return self.schedule.fragment(round.fragment, list(self.replica.slow))
