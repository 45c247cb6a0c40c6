"""Refuse combinations of parts that cannot work, and warn about doubtful ones, with the settings to use instead.

No check refers to an algorithm by name. Parts declare properties (`shared`, `sends`, `reads`, `linear`, `agrees`,
`lockstep`, `measures_transfer`, `remembers`), and codecs, feedbacks and methods are tried on a small Gaussian tensor
(trials.py). A part may also declare which properties it `requires` of another part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from outerloop.core.compatibility.trials import (
    adds_up,
    aligned,
    announces,
    in_fast_weights,
    lossiness,
    recalled,
    redraws,
    sparse,
)
from outerloop.protocols import (
    AdaptiveSchedule,
    Aggregate,
    Compressor,
    CostAware,
    Feedback,
    OuterMethod,
    Schedule,
)
from outerloop.types import Capabilities, UserError

LOSSY = 0.3
"""Maximum relative L2 error, on Gaussian values, of a codec that needs no feedback.

4 bits per value give an error of 0.1 to 0.2, 2 bits 0.35.
"""
FAITHFUL = 0.05
"""Maximum relative L2 error of a codec that is suitable for weights: 8 bits give 0.007, 4 bits 0.13."""
RECALLED = 0.3
"""Minimum fraction of the unsent values that a feedback must add to the next round if the codec is lossy.

A moving average of the error in which the old error has weight 0.8 adds 0.2.
"""
TRIED: dict[str, Callable[[Any], object]] = {"aligned": aligned}
"""Property that no part declares, but that a part may require -> the trial that determines it."""


def warnings(*, method: OuterMethod, compress: Compressor, feedback: Feedback, schedule: Schedule) -> list[str]:
    """Return one line for each setting that is allowed but probably not intended."""
    lines = []
    if method.shared and lossiness(compress) > LOSSY and recalled(feedback) < RECALLED:
        lines.append(
            "the compressor drops most of its input, and this feedback adds too little of it to later rounds:"
            " set feedback=ef"
        )
    if method.momentum >= 0.9 and schedule.sync_every < 100 and not schedule.step_s:
        lines.append(
            f"outer momentum 0.9 is high for H = {schedule.sync_every} (below 100):"
            " set method.optimizer.momentum=0.6, or a larger schedule.sync_every"
        )
    return lines


def refuse(
    *,
    method: OuterMethod,
    compress: Compressor,
    feedback: Feedback,
    aggregate: Aggregate,
    exchange: Capabilities,
    schedule: Schedule,
    eager: bool,
    merge_local: float | str,
) -> None:
    """Check that the parts can work together. Raises UserError with the reason if they cannot."""
    reasons = chain(
        of_method(method, compress, feedback, aggregate, exchange),
        of_gradients(method, feedback, schedule, merge_local) if method.reads == "gradients" else (),
        of_delay(eager, schedule, merge_local),
        of_eager(method, compress, feedback, aggregate, exchange) if eager else (),
        of_compressor(compress, exchange),
        of_evolving(method, exchange) if isinstance(schedule, AdaptiveSchedule) else (),
        of_requirements(
            {
                "method": method,
                "compress": compress,
                "feedback": feedback,
                "aggregate": aggregate,
                "exchange": exchange,
                "schedule": schedule,
            }
        ),
    )
    for reason in reasons:
        raise UserError(reason)


def refuse_fragments(schedule: Schedule, names: Sequence[str]) -> None:
    """Check that a schedule can divide a model with these parameter names into fragments. Raises UserError if not."""
    for index in range(schedule.fragments):
        schedule.fragment(index, names)


def of_method(
    method: OuterMethod, compress: Compressor, feedback: Feedback, aggregate: Aggregate, exchange: Capabilities
) -> Iterator[str]:
    """Yield the reasons why a method cannot work with the other parts."""
    if method.shared and not exchange.agrees:
        yield (
            "this exchange gives each peer different contributions, and this method needs equal ones:"
            " set method=noloco, or exchange=swarm_gather (inprocess if workers are threads)"
        )
    if method.sends == "weights":
        yield from of_weights(compress, feedback)
    if method.sends == "some weights":
        yield from of_some_weights(compress, feedback, exchange)
    if method.sends != "differences" and not aggregate.linear:
        yield (
            "this method takes the mean of weights, and this aggregate is not a plain mean (it drops zeros, clips, or"
            " weighs): set aggregate=mean, or method=diloco"
        )


def of_weights(compress: Compressor, feedback: Feedback) -> Iterator[str]:
    """Yield the reasons why a method that sends weights cannot work with a codec or a feedback."""
    if feedback.remembers or sparse(compress):
        yield (
            "this method sends weights, which can be neither sparse nor remembered by a feedback:"
            " set feedback=none compress=cast, or method=diloco"
        )
    if (loss := lossiness(compress)) > FAITHFUL:
        yield (
            f"this method sends weights, and this compressor changes them by {loss:.0%} of their norm in every round:"
            " set compress=cast or compress=int8, or method=diloco"
        )


def of_some_weights(compress: Compressor, feedback: Feedback, exchange: Capabilities) -> Iterator[str]:
    """Yield the reasons why a method that sends a part of the weights cannot work with the other parts."""
    if feedback.remembers:
        yield (
            "this method sends weights; weights that it does not send stay in place, and no feedback needs to remember"
            " them: set feedback=none, or method=diloco"
        )
    if not compress.linear:
        yield (
            "this method averages the part of the weights that all peers send, and with this compressor each peer sends"
            " a different part, or changed values: set compress=randomk or compress=cast, or method=diloco"
        )
    if exchange.agrees and not exchange.waits_for_all:
        yield (
            "this method leaves each peer with different slow weights, and this exchange sends shared slow weights to"
            " late peers: set exchange=inprocess or exchange=distributed, or method=sgd"
        )


def of_gradients(
    method: OuterMethod, feedback: Feedback, schedule: Schedule, merge_local: float | str
) -> Iterator[str]:
    """Yield the reasons why a method that uses the gradient of every step cannot work with the other parts."""
    if schedule.sync_every != 1 or schedule.delay or schedule.step_s:
        yield "this method uses the gradient of every single step: set schedule=every_h schedule.sync_every=1"
    if in_fast_weights(feedback):
        yield (
            "this feedback leaves unsent values in the fast weights, and this method sends gradients, which do not"
            " contain them: set feedback=ef, or feedback=none"
        )
    if merge_local not in (0, "carry"):
        yield (
            "this method uses the gradient at the slow weights, and merge_local mixes old weights into the model:"
            " set merge_local=0.0"
        )


def of_delay(eager: bool, schedule: Schedule, merge_local: float | str) -> Iterator[str]:
    """Yield the reasons why `eager`, the delay of the schedule and `merge_local` do not fit together."""
    if eager and merge_local != 0:
        yield (
            f"merge_local={merge_local} keeps the progress since the launch, which eager updates have put into the next"
            " round: set merge_local=0.0"
        )
    if eager != (schedule.delay == schedule.sync_every):
        yield (
            f"eager={str(eager).lower()} does not fit schedule.delay={schedule.delay}; eager updates need a delay of"
            f" exactly sync_every={schedule.sync_every}, and such a delay needs them:"
            f" set eager=true schedule.delay={schedule.sync_every}"
        )


def of_eager(
    method: OuterMethod, compress: Compressor, feedback: Feedback, aggregate: Aggregate, exchange: Capabilities
) -> Iterator[str]:
    """Yield the reasons why eager updates cannot work with another part.

    Eager updates replace this peer's contribution to the mean with a newer one.
    """
    if not exchange.waits_for_all:
        yield (
            "eager updates assume that every payload counts, and this exchange may continue without a late one:"
            " set eager=false schedule.delay=0, or exchange=inprocess"
        )
    if announces(compress):
        yield (
            "this compressor takes its positions from the previous round, and with eager=true that round has not landed"
            " when the next one is launched: set compress=randomk, or eager=false schedule.delay=0"
        )
    if not aggregate.linear:
        yield (
            "eager updates replace this peer's part of a mean, and this aggregate is not a plain mean (it drops zeros,"
            " clips, or weighs): set aggregate=mean, or eager=false schedule.delay=0"
        )
    if feedback.remembers:
        yield (
            "eager updates replace the contribution to the previous round before it is known what this feedback will"
            " store of it: set feedback=none, or eager=false schedule.delay=0"
        )
    if not method.shared or not adds_up(method):
        yield (
            "eager updates move each peer differently until the mean has landed, and only steps that add up (SGD, with"
            " or without momentum, not clipped) make peers equal again: set method=diloco method.clip_norm=null,"
            " or eager=false schedule.delay=0"
        )


def of_compressor(compress: Compressor, exchange: Capabilities) -> Iterator[str]:
    """Yield the reasons why a compressor cannot work with an exchange."""
    if not exchange.agrees and announces(compress):
        yield (
            "this compressor takes its positions from contributions that are equal on all peers, and this exchange"
            " gives each peer different ones: set compress=randomk, or exchange=inprocess"
        )
    if not (exchange.agrees or exchange.lockstep) and redraws(compress):
        yield (
            "this compressor draws new random values every round, and peers of this exchange meet in rounds with"
            " different numbers: set compress=identity, or exchange=inprocess_gossip"
        )
    if isinstance(compress, CostAware) and not exchange.measures_transfer:
        yield (
            "this compressor adapts to the transfer time of payloads, which this exchange cannot distinguish from"
            " waiting for late peers: set compress=topk, or exchange=swarm_gather"
        )


def of_evolving(method: OuterMethod, exchange: Capabilities) -> Iterator[str]:
    """Yield the reasons why a schedule that adapts H cannot work."""
    if not exchange.agrees:
        yield (
            "this schedule derives H from contributions that are equal on all peers, and this exchange gives each peer"
            " different ones: set schedule=every_h, or exchange=swarm_gather (inprocess if workers are threads)"
        )
    if method.sends != "differences":
        yield (
            "this schedule adapts to how far pseudo-gradients agree, and this method sends weights:"
            " set schedule=every_h, or method=diloco"
        )
    if method.reads == "gradients":
        yield (
            "this method uses the gradient of every single step, and this schedule changes H:"
            " set schedule=every_h schedule.sync_every=1"
        )


def of_requirements(parts: Mapping[str, Any]) -> Iterator[str]:
    """Yield a reason for each requirement of a part that another part does not meet."""
    for part in parts.values():
        for need in getattr(part, "requires", ()):
            if fact(parts[need.axis], need.fact) != need.value:
                yield need.reason


def fact(part: Any, name: str) -> object:
    """Return a property that is found by a trial or declared by the part; None if there is no such property."""
    return TRIED[name](part) if name in TRIED else getattr(part, name, None)
