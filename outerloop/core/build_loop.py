"""Build one replica's loop from the parts that launch, verify and land its rounds."""

from __future__ import annotations

from typing import Literal

from outerloop.aggregate.exclusion_votes import ExclusionVotes
from outerloop.aggregate.norm_screen import NormScreen
from outerloop.core.codec import UpdateCodec
from outerloop.core.contributions import ContributionLedger
from outerloop.core.eager import EagerUpdates
from outerloop.core.land import RoundLander
from outerloop.core.launch import RoundLauncher, is_concurrent
from outerloop.core.loop import RoundLoop
from outerloop.core.pipeline import RoundPipeline
from outerloop.core.round import RoundCostMeter
from outerloop.core.round_scheduler import RoundScheduler
from outerloop.core.shared_state import SharedState
from outerloop.core.verify import RoundVerifier
from outerloop.protocols import AdaptiveSchedule, Aggregate, CostAware, Exchange, Feedback, OuterMethod, Schedule
from outerloop.replica.buffers import Buffers
from outerloop.replica.weights import Replica


def build_loop(
    replica: Replica,
    buffers: Buffers,
    codec: UpdateCodec,
    screen: NormScreen,
    votes: ExclusionVotes,
    ledger: ContributionLedger | None,
    *,
    method: OuterMethod,
    feedback: Feedback,
    aggregate: Aggregate,
    exchange: Exchange,
    schedule: Schedule,
    merge_local: float | Literal["carry"],
    eager: bool,
    timeout_s: float,
    rounds: int | None,
    steps: int | None,
) -> RoundLoop:
    """Build the RoundLoop of one replica from OuterLoop's validated arguments and the parts built from them."""
    concurrent = is_concurrent(exchange.info, schedule, method)
    pipeline = RoundPipeline(
        replica.island,
        replica.slow,
        buffers,
        method=method,
        feedback=feedback,
        aggregate=aggregate,
        codec=codec,
        peer=exchange.peer,
        delay=schedule.delay,
        sync_every=schedule.sync_every,
        merge_local=merge_local,
        concurrent=concurrent,
    )
    launcher = RoundLauncher(
        replica,
        pipeline,
        codec,
        votes,
        exchange=exchange,
        schedule=schedule,
        concurrent=concurrent,
        agrees_ahead=exchange.info.agrees and not eager,
    )
    adaptive = schedule if isinstance(schedule, AdaptiveSchedule) else None
    shared = exchange.info.agrees and method.shared and not eager
    lander = RoundLander(
        launcher,
        RoundVerifier(pipeline, exchange, shared=shared, measures=adaptive is not None, screen=screen, votes=votes),
        SharedState(replica, buffers, method=method, codec=codec, schedule=adaptive, screen=screen, ledger=ledger),
        meter=RoundCostMeter(exchange, delay=schedule.delay, step_s=schedule.step_s),
        cost_aware=codec.compress if isinstance(codec.compress, CostAware) else None,
        eager=EagerUpdates(launcher, method=method) if eager else None,
    )
    scheduler = RoundScheduler(schedule, rounds=rounds, steps=steps)
    return RoundLoop(scheduler, launcher, lander, timeout_s=timeout_s)
