"""How a round leaves: read the model, then difference, feedback, compress, pack, hand to the exchange.

    at once       inner steps stand still for all of it
    concurrently  a thread copies the fast weights and does the rest of it meanwhile; inner steps stand still until the
                  weights are copied, or go on until they are about to change, where that is announced

What the thread reads besides (slow weights, residual, what was agreed on) changes at landings alone, and RoundScheduler
lets nothing land before it is done. So both ways make the same bytes.
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
    """Whether inner steps go on while a round is made ready: some come before it lands, and it needs no gradients."""
    return exchange.concurrent and 0 < schedule.delay < schedule.sync_every and method.reads == "weights"


class RoundLauncher:
    """Makes rounds of one replica leave, which changes nothing that lasts.

    Args:
        replica, routes, payload, exchange, schedule: the outer loop's.
        concurrent: there may be inner steps between `take` and `offer`.
    """

    def __init__(
        self,
        replica: Replica,
        routes: RoundPipeline,
        payload: UpdateCodec,
        *,
        exchange: Exchange,
        schedule: Schedule,
        concurrent: bool,
    ) -> None:
        self.replica, self.island, self.routes, self.payload = replica, replica.island, routes, payload
        self.exchange, self.schedule = exchange, schedule
        self.device = next(iter(self.island.params.values())).device
        cores = torch.get_num_threads() if self.device.type == "cuda" else 1  # inner steps need the others
        self.thread = ThreadPoolExecutor(1, "outerloop-launch", keep_to, (cores,)) if concurrent else None

    def at_once(self, round: Round, samples: int, *, leads: bool) -> InFlight:
        """On its way. Raises UserError for a model that has changed, FloatingPointError for one that has diverged."""
        began_s = time.perf_counter()
        flight = self.offer(round, self.copy(self.take(round)), samples, leads)
        return replace(flight, launch_s=time.perf_counter() - began_s)

    def meanwhile(self, round: Round, samples: int, *, leads: bool, announced: bool) -> PendingLaunch:
        """Made ready by the thread; the weights will not change unannounced, or are copied by now.

        Raises UserError as above; the rest when it is asked for.
        """
        assert self.thread
        began_s = time.perf_counter()
        stream = torch.cuda.current_stream(self.device) if self.device.type == "cuda" else None
        copied = self.thread.submit(self.copy, self.take(round), stream)
        ready = self.thread.submit(lambda: self.offer(round, copied.result(), samples, leads, stream))
        leaving = PendingLaunch(copied, ready, still_s=time.perf_counter() - began_s)
        if not announced:
            leaving.until(copied)
        return leaving

    @torch.no_grad()
    def take(self, round: Round) -> Snapshot:
        """What the round is made of."""
        self.island.check_whole()
        return self.routes.take(round.fragment, self.schedule.fragment(round.fragment, list(self.replica.slow)))

    @torch.no_grad()
    def copy(self, taken: Snapshot, stream: torch.cuda.Stream | None = None) -> Snapshot:
        """The same, whatever inner steps change; on a GPU in the order of this stream."""
        with torch.cuda.stream(stream):
            return self.routes.copy(taken)

    @torch.no_grad()
    def offer(
        self, round: Round, taken: Snapshot, samples: int, leads: bool, stream: torch.cuda.Stream | None = None
    ) -> InFlight:
        """Difference, feedback, compress, pack, hand to the exchange; on a GPU in the order of this stream."""
        with torch.cuda.stream(stream):
            launched = self.routes.launch(round, taken, leads=leads)
            header = wire.Header(
                round=round.number,
                fragment=round.fragment,
                samples=samples,
                schema=wire.schema_hash(self.payload.schema(round, launched.offered)),
                slow=self.replica.hash_of(launched.offered),
                peer=self.exchange.peer,
            )
            blob = wire.pack(header, launched.parts)
        pending, delta_norm = self.exchange.start(blob, round), math.sqrt(launched.squares)
        return InFlight(round, launched.offered, blob, pending, samples, 0.0, delta_norm, launched.then)
