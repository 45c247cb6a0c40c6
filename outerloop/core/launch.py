"""Launch a round: read the model, then compute the difference, add feedback, compress, pack, pass to the exchange.

    at once       inner steps stop for all of this
    concurrently  a thread copies the fast weights and does the rest; inner steps stop until the weights are copied, or
                  continue until the weights are about to change, if the caller announces changes

The thread also reads slow weights, residual and what was agreed on. These change only at landings, and RoundScheduler
lands no round before the thread is done. So both ways produce the same bytes.
"""

from __future__ import annotations

import math
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import torch

from outerloop import wire
from outerloop.core.codec import UpdateCodec
from outerloop.core.pipeline import RoundPipeline, Snapshot
from outerloop.core.round import InFlight, PendingLaunch
from outerloop.kernels.threads import keep_to
from outerloop.protocols import Exchange, OuterMethod, Schedule
from outerloop.replica.weights import Replica
from outerloop.types import Round


def is_concurrent(exchange: Exchange, schedule: Schedule, method: OuterMethod) -> bool:
    """Return whether inner steps continue while a round is prepared.

    They do if inner steps take place before the round lands, and the round needs no gradients.
    """
    return exchange.concurrent and 0 < schedule.delay < schedule.sync_every and method.reads == "weights"


class RoundLauncher:
    """Launches the rounds of one replica. Changes no lasting state.

    Args:
        replica, pipeline, payload, exchange, schedule: those of the outer loop.
        concurrent: True if inner steps may take place between `take` and `offer`.
    """

    def __init__(
        self,
        replica: Replica,
        pipeline: RoundPipeline,
        payload: UpdateCodec,
        *,
        exchange: Exchange,
        schedule: Schedule,
        concurrent: bool,
    ) -> None:
        self.replica, self.island, self.pipeline, self.payload = replica, replica.island, pipeline, payload
        self.exchange, self.schedule = exchange, schedule
        self.device = next(iter(self.island.params.values())).device
        cores = torch.get_num_threads() if self.device.type == "cuda" else 1  # inner steps need the others
        self.thread = ThreadPoolExecutor(1, "outerloop-launch", keep_to, (cores,)) if concurrent else None

    def at_once(self, round: Round, samples: int, *, leads: bool) -> InFlight:
        """Launch a round in this thread.

        Raises UserError if the model has changed, FloatingPointError if it has diverged.
        """
        began_s = time.perf_counter()
        flight = self.offer(round, self.copy(self.take(round)), samples, leads)
        return replace(flight, launch_s=time.perf_counter() - began_s)

    def meanwhile(self, round: Round, samples: int, *, leads: bool, announced: bool) -> PendingLaunch:
        """Launch a round in the background thread.

        Unless weight changes are `announced`, wait until the weights are copied.

        Raises UserError as `at_once` does; other errors are raised when the result is requested.
        """
        assert self.thread
        began_s = time.perf_counter()
        stream = torch.cuda.current_stream(self.device) if self.device.type == "cuda" else None
        copied = self.thread.submit(self.copy, self.take(round), stream)
        ready = self.thread.submit(lambda: self.offer(round, copied.result(), samples, leads, stream))
        leaving = PendingLaunch(copied, ready, stall_s=time.perf_counter() - began_s)
        if not announced:
            leaving.until(copied)
        return leaving

    @torch.no_grad()
    def take(self, round: Round) -> Snapshot:
        """Return the tensors that the round is made of."""
        self.island.check_whole()
        return self.pipeline.snapshot(round.fragment, self.schedule.fragment(round.fragment, list(self.replica.slow)))

    @torch.no_grad()
    def copy(self, taken: Snapshot, stream: torch.cuda.Stream | None = None) -> Snapshot:
        """Return the snapshot with copies of what inner steps change; on a GPU in the order of this stream."""
        with torch.cuda.stream(stream):
            return self.pipeline.copy(taken)

    @torch.no_grad()
    def offer(
        self, round: Round, taken: Snapshot, samples: int, leads: bool, stream: torch.cuda.Stream | None = None
    ) -> InFlight:
        """Make a message of the snapshot and pass it to the exchange.

        Computes the difference, adds feedback, compresses and packs; on a GPU in the order of this stream.
        """
        with torch.cuda.stream(stream):
            launched = self.pipeline.launch(round, taken, leads=leads)
            header = wire.Header(
                round=round.number,
                fragment=round.fragment,
                samples=samples,
                schema=wire.schema_hash(self.payload.schema(round, launched.update)),
                slow=self.replica.hash_of(launched.update),
                peer=self.exchange.peer,
            )
            blob = wire.pack(header, launched.parts)
        pending, delta_norm = self.exchange.start(blob, round), math.sqrt(launched.squares)
        return InFlight(round, launched.update, blob, pending, samples, 0.0, delta_norm, launched.fast_at_launch)
