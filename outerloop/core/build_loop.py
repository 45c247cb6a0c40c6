"""Build the parts of one outer loop, which launch, verify and land its rounds, from OuterLoop's arguments."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Literal

import torch
from torch.nn import Module

from outerloop.aggregate.exclusion_votes import ExclusionVotes
from outerloop.aggregate.norm_screen import NormScreen
from outerloop.aggregate.screen import screen_of
from outerloop.core import compatibility
from outerloop.core.codec import UpdateCodec
from outerloop.core.eager import EagerUpdates
from outerloop.core.land import RoundLander
from outerloop.core.launch import RoundLauncher, is_concurrent
from outerloop.core.ledger import ContributionLedger
from outerloop.core.loop import RoundLoop
from outerloop.core.pipeline import RoundPipeline
from outerloop.core.round import RoundCostMeter
from outerloop.core.round_scheduler import RoundScheduler
from outerloop.core.shared_state import SharedState
from outerloop.core.state.outer_state import OuterState
from outerloop.core.verify import RoundVerifier
from outerloop.protocols import (
    AdaptiveSchedule,
    Aggregate,
    Compressor,
    CostAware,
    Exchange,
    Feedback,
    OuterMethod,
    Schedule,
    Stateful,
)
from outerloop.replica.buffers import Buffers
from outerloop.replica.island import Island
from outerloop.replica.sharding import unwrap
from outerloop.replica.state_size import TrialState
from outerloop.replica.weights import Replica
from outerloop.types import Capabilities

STATE_DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class LoopParts:
    """The parts of one outer loop.

    shared: whether the slow weights are equal on all peers.
    warnings: one line for each setting that is allowed but probably unintended.
    """

    replica: Replica
    buffers: Buffers
    codec: UpdateCodec
    screen: NormScreen
    votes: ExclusionVotes
    ledger: ContributionLedger | None
    pipeline: RoundPipeline
    launcher: RoundLauncher
    verifier: RoundVerifier
    shared_state: SharedState
    loop: RoundLoop
    state: OuterState
    trial_state: TrialState
    shared: bool
    warnings: list[str]


def agrees_on_rounds(exchange: Capabilities, *, eager: bool) -> bool:
    """Return whether all peers land the same messages in a round, and a message has the same effect on all of them.

    With eager updates, each peer has its own update.
    """
    return exchange.agrees and not eager


def build_parts(
    model: Module,
    *,
    method: OuterMethod,
    compress: Compressor,
    feedback: Feedback,
    aggregate: Aggregate,
    exchange: Exchange,
    schedule: Schedule,
    merge_local: float | Literal["carry"],
    buffers: str,
    eager: bool,
    clip: str,
    exclude_accused: bool,
    state_dtype: str,
    timeout_s: float,
    seed: int,
    rounds: int | None,
    steps: int | None,
    samples_per_round: int | None,
    island: Island | None,
) -> LoopParts:
    """Check OuterLoop's arguments, and build the parts of its loop. Raises UserError if they cannot work together."""
    compatibility.refuse(
        method=method,
        compress=compress,
        feedback=feedback,
        aggregate=aggregate,
        exchange=exchange.info,
        schedule=schedule,
        eager=eager,
        merge_local=merge_local,
    )
    warnings = compatibility.warnings(
        method=method,
        compress=compress,
        feedback=feedback,
        schedule=schedule,
        eager=eager,
        merge_local=merge_local,
    )
    agrees = agrees_on_rounds(exchange.info, eager=eager)
    shared = agrees and method.shared
    adaptive = schedule if isinstance(schedule, AdaptiveSchedule) else None
    cost_aware = compress if isinstance(compress, CostAware) else None

    screen = screen_of(clip, method=method, exchange=exchange.info, eager=eager)
    votes = ExclusionVotes(on=exclude_accused, agrees=agrees)
    dtype = STATE_DTYPES[state_dtype]
    replica = Replica(model, dtype=dtype, island=island)
    shapes = {name: x.shape for name, x in replica.slow.items()}
    compatibility.refuse_model(schedule=schedule, compress=compress, shapes=shapes)
    # Copies the feedback and the method while they have no state yet, so before method.init.
    trial_state = TrialState(*copy.deepcopy((feedback, method)), dtype)
    method.init(replica.slow)
    model_buffers = Buffers(unwrap(model), kind=buffers)
    codec = UpdateCodec(compress, seed=seed, extra_schema=lambda i: model_buffers.schema(i) | votes.schema())
    ledger = ContributionLedger(samples_per_round=samples_per_round) if exchange.info.agrees else None

    concurrent = is_concurrent(exchange.info, schedule, method)
    pipeline = RoundPipeline(
        replica.island,
        replica.slow,
        model_buffers,
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
        agrees_ahead=agrees,
    )
    verifier = RoundVerifier(
        pipeline, exchange, shared=shared, measures=adaptive is not None, screen=screen, votes=votes
    )
    shared_state = SharedState(
        replica, model_buffers, method=method, codec=codec, schedule=adaptive, screen=screen, ledger=ledger
    )
    lander = RoundLander(
        launcher,
        verifier,
        shared_state,
        meter=RoundCostMeter(exchange, delay=schedule.delay, step_s=schedule.step_s),
        cost_aware=cost_aware,
        eager=EagerUpdates(launcher, method=method) if eager else None,
    )
    scheduler = RoundScheduler(schedule, rounds=rounds, steps=steps)
    loop = RoundLoop(scheduler, launcher, lander, timeout_s=timeout_s)
    state = OuterState(
        loop,
        {
            "method": method,
            "feedback": feedback,
            "payload": codec,
            "choosing": compress if isinstance(compress, Stateful | CostAware) else None,
            "schedule": adaptive,
            "buffers": model_buffers,
            "screen": screen,
            "contributions": ledger,
        },
    )
    return LoopParts(
        replica,
        model_buffers,
        codec,
        screen,
        votes,
        ledger,
        pipeline,
        launcher,
        verifier,
        shared_state,
        loop,
        state,
        trial_state,
        shared=shared,
        warnings=[*warnings, *replica.warnings],
    )
