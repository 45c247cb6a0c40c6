"""Rules about combinations of parts. Each yields the reasons why its parts cannot work together, or yields nothing.

Each reason is one line that names the settings to use instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from outerloop.core.compatibility.trials import (
    adds_up,
    aligned,
    announces,
    decays,
    in_fast_weights,
    lossiness,
    redraws,
    sparse,
    steady,
)
from outerloop.protocols import Aggregate, Compressor, CostAware, Feedback, OuterMethod, Schedule
from outerloop.types import Capabilities

FAITHFUL = 0.05
"""Maximum relative L2 error of a codec that is suitable for sending weights: 8 bits give 0.007, 4 bits give 0.13."""
TRIED: dict[str, Callable[[Any], object]] = {"aligned": aligned}
"""Maps each property that a part may require, but that no part declares, to the trial that determines it."""


def method_conflicts(
    method: OuterMethod, compress: Compressor, feedback: Feedback, aggregate: Aggregate, exchange: Capabilities
) -> Iterator[str]:
    """Yield the reasons why a method cannot work with the other parts."""
    if method.shared and not exchange.agrees:
        yield (
            "this exchange gives each peer different contributions, but this method needs equal ones:"
            " set method=noloco, or exchange=swarm_gather (inprocess if workers are threads)"
        )
    if method.sends == "weights":
        yield from sent_weights_conflicts(compress, feedback)
    if method.sends == "some weights":
        yield from partial_weights_conflicts(compress, feedback, exchange)
    if method.sends != "differences" and not aggregate.linear:
        yield (
            "this method averages weights, but this aggregate is not a plain mean (it drops zeros, clips, or weights"
            " peers): set aggregate=mean, or method=diloco"
        )


def sent_weights_conflicts(compress: Compressor, feedback: Feedback) -> Iterator[str]:
    """Yield the reasons why a method that sends weights cannot work with a codec or a feedback."""
    if feedback.remembers or sparse(compress):
        yield (
            "this method sends weights, which cannot be sparsified or combined with feedback:"
            " set feedback=none compress=cast, or method=diloco"
        )
    if (loss := lossiness(compress)) > FAITHFUL:
        yield (
            f"this method sends weights, but this compressor changes them by {loss:.0%} of their norm in every round:"
            " set compress=cast or compress=int8, or method=diloco"
        )


def partial_weights_conflicts(compress: Compressor, feedback: Feedback, exchange: Capabilities) -> Iterator[str]:
    """Yield the reasons why a method that sends a part of the weights cannot work with the other parts."""
    if feedback.remembers:
        yield (
            "this method sends weights, and unsent weights stay in the model, so that a feedback would count them"
            " twice: set feedback=none, or method=diloco"
        )
    if not compress.linear:
        yield (
            "this method averages the weights that all peers send, but with this compressor each peer sends different"
            " positions or altered values: set compress=randomk or compress=cast, or method=diloco"
        )
    if exchange.agrees and not exchange.waits_for_all:
        yield (
            "this method leaves different slow weights on each peer, but this exchange sends late joiners one set of"
            " slow weights for all: set exchange=inprocess or exchange=distributed, or method=sgd"
        )


def gradient_conflicts(feedback: Feedback, schedule: Schedule, merge_local: float | str) -> Iterator[str]:
    """Yield the reasons why a method that uses the gradient of every step cannot work with the other parts."""
    if schedule.sync_every != 1 or schedule.delay or schedule.step_s:
        yield "this method uses the gradient of every single step: set schedule=every_h schedule.sync_every=1"
    if in_fast_weights(feedback):
        yield (
            "this feedback leaves unsent values in the fast weights, but this method sends gradients, which do not"
            " contain them: set feedback=ef, or feedback=none"
        )
    if merge_local not in (0, "carry"):
        yield (
            "this method uses the gradient at the slow weights, but merge_local mixes old weights into the model:"
            " set merge_local=0.0"
        )


def delay_conflicts(eager: bool, schedule: Schedule, merge_local: float | str) -> Iterator[str]:
    """Yield the reasons why `eager`, the schedule's delay and `merge_local` are incompatible."""
    if eager and merge_local != 0:
        yield (
            f"merge_local={merge_local} keeps the local progress since the launch, but eager updates already send it in"
            " the next round: set merge_local=0.0"
        )
    if eager != (schedule.delay == schedule.sync_every):
        yield (
            f"eager={str(eager).lower()} does not fit schedule.delay={schedule.delay}; eager updates require a delay of"
            f" exactly sync_every={schedule.sync_every}, and such a delay requires eager updates:"
            f" set eager=true schedule.delay={schedule.sync_every}"
        )


def eager_conflicts(
    method: OuterMethod, compress: Compressor, feedback: Feedback, aggregate: Aggregate, exchange: Capabilities
) -> Iterator[str]:
    """Yield the reasons why eager updates cannot work with another part.

    Eager updates replace this peer's contribution to the mean with a newer one.
    """
    if not exchange.waits_for_all:
        yield (
            "eager updates assume that every payload counts, but this exchange may complete a round without a late one:"
            " set eager=false schedule.delay=0, or exchange=inprocess"
        )
    if announces(compress):
        yield (
            "this compressor takes its positions from the previous round, but with eager=true that round has not landed"
            " when the next one launches: set compress=randomk, or eager=false schedule.delay=0"
        )
    if not aggregate.linear:
        yield (
            "eager updates replace this peer's part of a mean, but this aggregate is not a plain mean (it drops zeros,"
            " clips, or weights peers): set aggregate=mean, or eager=false schedule.delay=0"
        )
    if feedback.remembers:
        yield (
            "eager updates launch each round before the previous one has landed, but only at that landing does this"
            " feedback store the unsent values: set feedback=none, or eager=false schedule.delay=0"
        )
    if not method.shared or not adds_up(method):
        yield (
            "eager updates make peers differ until the mean has landed, and only additive outer steps (SGD with or"
            " without momentum, without clipping) make them equal again: set method=diloco method.clip_norm=null,"
            " or eager=false schedule.delay=0"
        )
    if getattr(method, "scheduled", False) or not steady(method):
        yield (
            "this method changes its learning rate or momentum over the rounds, or dampens all but the first update."
            " With eager=true, each landing undoes an earlier eager update, so the same mean must give the same outer"
            " step in all rounds: set method.lr_factor=null method.momentum_factor=null method.optimizer.dampening=0,"
            " or eager=false schedule.delay=0"
        )
    if decays(method):
        yield (
            "this method shrinks the slow weights in every outer step, whatever the mean. With eager=true, they differ"
            " between peers until the mean has landed, and would stay different:"
            " set method.optimizer.weight_decay=0, or eager=false schedule.delay=0"
        )


def compressor_conflicts(compress: Compressor, exchange: Capabilities) -> Iterator[str]:
    """Yield the reasons why a compressor cannot work with an exchange."""
    if not exchange.agrees and announces(compress):
        yield (
            "this compressor takes its positions from contributions that are equal on all peers, but this exchange"
            " gives each peer different ones: set compress=randomk, or exchange=inprocess"
        )
    if not (exchange.agrees or exchange.lockstep) and redraws(compress):
        yield (
            "this compressor draws new random values every round, but in this exchange a pair of peers may be in rounds"
            " with different numbers: set compress=identity, or exchange=inprocess_gossip"
        )
    if isinstance(compress, CostAware) and not exchange.measures_transfer:
        yield (
            "this compressor adapts to the transfer time of payloads, but this exchange cannot distinguish it from the"
            " time spent waiting for late peers: set compress=topk, or exchange=swarm_gather"
        )


def adaptive_schedule_conflicts(method: OuterMethod, exchange: Capabilities) -> Iterator[str]:
    """Yield the reasons why a schedule that adapts H (inner steps per round) cannot work with the other parts."""
    if not exchange.agrees:
        yield (
            "this schedule derives H from contributions that are equal on all peers, but this exchange gives each peer"
            " different ones: set schedule=every_h, or exchange=swarm_gather (inprocess if workers are threads)"
        )
    if method.sends != "differences":
        yield (
            "this schedule adapts to how far pseudo-gradients agree, but this method sends weights:"
            " set schedule=every_h, or method=diloco"
        )
    if method.reads == "gradients":
        yield (
            "this method uses the gradient of every single step, but this schedule changes H:"
            " set schedule=every_h schedule.sync_every=1"
        )


def requirement_conflicts(parts: Mapping[str, Any]) -> Iterator[str]:
    """For each requirement of a part that another part does not meet, yield the reason."""
    for part in parts.values():
        for need in getattr(part, "requires", ()):
            if fact(parts[need.axis], need.fact) != need.value:
                yield need.reason


def fact(part: Any, name: str) -> object:
    """Return a property of a part, determined by a trial or declared by the part, or None if the part lacks it."""
    return TRIED[name](part) if name in TRIED else getattr(part, name, None)
