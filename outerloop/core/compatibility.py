"""Which points of the product make sense: refused or warned about when a run is put together, with what to type.

Nothing here knows an algorithm by name: parts say what they are (`shared`, `sends`, `reads`, `linear`, `agrees`,
`lockstep`, `tells_moving`, `remembers`), and codecs, feedbacks and methods are asked by trying them on a small gaussian
tensor.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain

import torch
from torch import Tensor

from outerloop.protocols import (
    AdaptiveSchedule,
    Aggregate,
    Compressor,
    CostAware,
    Exchange,
    Feedback,
    OuterMethod,
    Schedule,
)
from outerloop.types import CodecContext, UserError

LOSSY = 0.3
"""Relative L2 error of a codec on gaussian values above which it needs feedback: 4 bits make .1 to .2, 2 bits .35."""
FAITHFUL = 0.05
"""Relative L2 error above which a codec is not for weights: 8 bits make 0.007, 4 bits 0.13 of the weights' own norm."""
RECALLED = 0.3
"""Share of what was not sent that a feedback must offer again to make up for a lossy codec: a moving average of the
error with weight 0.8 for the old one offers 0.2."""


def doubts(*, method: OuterMethod, compress: Compressor, feedback: Feedback, schedule: Schedule) -> list[str]:
    """One line for each thing that is allowed but unlikely to be meant."""
    lines = []
    if method.shared and lossiness(compress) > LOSSY and recalled(feedback) < RECALLED:
        lines.append(
            "the compressor drops most of what it is given, and this feedback offers too little of it again:"
            " type feedback=ef"
        )
    if method.momentum >= 0.9 and schedule.sync_every < 100 and not schedule.step_s:
        lines.append(
            f"outer momentum .9 is much for H = {schedule.sync_every} (below 100):"
            " type method.optimizer.momentum=0.6, or more schedule.sync_every"
        )
    return lines


def refuse(
    *,
    method: OuterMethod,
    compress: Compressor,
    feedback: Feedback,
    aggregate: Aggregate,
    exchange: Exchange,
    schedule: Schedule,
    eager: bool,
    merge_local: float | str,
) -> None:
    """Raises UserError for what cannot work."""
    reasons = chain(
        of_method(method, compress, feedback, aggregate, exchange),
        of_gradients(method, feedback, schedule, merge_local) if method.reads == "gradients" else (),
        of_delay(eager, schedule, merge_local),
        of_eager(method, compress, feedback, aggregate, exchange) if eager else (),
        of_compressor(compress, exchange),
        of_evolving(method, exchange) if isinstance(schedule, AdaptiveSchedule) else (),
    )
    for reason in reasons:
        raise UserError(reason)


def refuse_fragments(schedule: Schedule, names: Sequence[str]) -> None:
    """Check that a schedule can cut a model with these parameter names. Raises UserError."""
    for index in range(schedule.fragments):
        schedule.fragment(index, names)


def of_method(
    method: OuterMethod, compress: Compressor, feedback: Feedback, aggregate: Aggregate, exchange: Exchange
) -> Iterator[str]:
    """Why a method cannot work with what surrounds it."""
    if method.shared and not exchange.agrees:
        yield (
            "this exchange gives every peer other contributions, and this method needs equal ones:"
            " type method=noloco, or exchange=swarm_gather (inprocess: workers as threads)"
        )
    if method.sends == "weights":
        yield from of_weights(compress, feedback)
    if method.sends == "some weights":
        yield from of_some_weights(compress, feedback, exchange)
    if method.sends != "differences" and not aggregate.linear:
        yield (
            "this method takes the mean of weights, and this aggregate is another one (it drops zeros, clips, or"
            " weighs): type aggregate=mean, or method=diloco"
        )


def of_weights(compress: Compressor, feedback: Feedback) -> Iterator[str]:
    """Why a method that sends weights cannot work with a codec or a feedback."""
    if feedback.remembers or sparse(compress):
        yield (
            "this method sends weights, which can be neither sparse nor remembered:"
            " type feedback=none compress=cast, or method=diloco"
        )
    if (loss := lossiness(compress)) > FAITHFUL:
        yield (
            f"this method sends weights, and this compressor changes them by {loss:.0%} of their norm in every round:"
            " type compress=cast or compress=int8, or method=diloco"
        )


def of_some_weights(compress: Compressor, feedback: Feedback, exchange: Exchange) -> Iterator[str]:
    """Why a method that sends a part of the weights cannot work with a codec, a feedback or an exchange."""
    if feedback.remembers:
        yield (
            "this method sends weights, and what it does not send is kept where it is, not owed:"
            " type feedback=none, or method=diloco"
        )
    if not compress.linear:
        yield (
            "this method averages the part of the weights that all peers send, and with this compressor each sends"
            " another part, or another value: type compress=randomk or compress=cast, or method=diloco"
        )
    if exchange.agrees and not exchange.waits_for_all:
        yield (
            "this method leaves every peer with slow weights of its own, and this exchange hands those that all share"
            " to who comes late: type exchange=inprocess or exchange=distributed, or method=sgd"
        )


def of_gradients(
    method: OuterMethod, feedback: Feedback, schedule: Schedule, merge_local: float | str
) -> Iterator[str]:
    """Why a method that takes the gradient of every step cannot work with what happens between steps."""
    if schedule.sync_every != 1 or schedule.delay or schedule.step_s:
        yield "this method takes the gradient of every single step: type schedule=every_h schedule.sync_every=1"
    if in_fast_weights(feedback):
        yield (
            "this feedback leaves what was not sent in the fast weights, and this method sends gradients, which do not"
            " show it: type feedback=ef, or feedback=none"
        )
    if merge_local not in (0, "carry"):
        yield (
            "this method takes the gradient at the slow weights, and merge_local mixes old ones into the model:"
            " type merge_local=0.0"
        )


def of_delay(eager: bool, schedule: Schedule, merge_local: float | str) -> Iterator[str]:
    """Why eager updates do not fit the schedule, or a delay does not without them."""
    if eager and merge_local != 0:
        yield (
            f"merge_local={merge_local} keeps what came since the launch, which eager updates have put into the next"
            " round: type merge_local=0.0"
        )
    if eager != (schedule.delay == schedule.sync_every):
        yield (
            f"eager={str(eager).lower()} with schedule.delay={schedule.delay}: eager updates need a delay of exactly"
            f" sync_every={schedule.sync_every}, and such a delay needs them:"
            f" type eager=true schedule.delay={schedule.sync_every}"
        )


def of_eager(
    method: OuterMethod, compress: Compressor, feedback: Feedback, aggregate: Aggregate, exchange: Exchange
) -> Iterator[str]:
    """Why eager updates, which replace this peer's part of the mean by a newer one, cannot work with a part."""
    if not exchange.waits_for_all:
        yield (
            "eager updates take it that every payload counts, and this exchange may go on without a late one:"
            " type eager=false schedule.delay=0, or exchange=inprocess"
        )
    if announces(compress):
        yield (
            "this compressor takes its positions from the round before, and with eager=true that one has not landed"
            " when the next leaves: type compress=randomk, or eager=false schedule.delay=0"
        )
    if not aggregate.linear:
        yield (
            "eager updates replace this peer's part of a mean, and this aggregate is another one (it drops zeros,"
            " clips, or weighs): type aggregate=mean, or eager=false schedule.delay=0"
        )
    if feedback.remembers:
        yield (
            "eager updates replace what was sent a round ago, and of that one it is not known yet what this feedback"
            " will remember: type feedback=none, or eager=false schedule.delay=0"
        )
    if not method.shared or not adds_up(method):
        yield (
            "eager updates move every peer otherwise until the mean has landed, and only steps that add up (SGD, with"
            " or without momentum, not clipped) bring peers together again: type method=diloco method.clip_norm=null,"
            " or eager=false schedule.delay=0"
        )


def of_compressor(compress: Compressor, exchange: Exchange) -> Iterator[str]:
    """Why a compressor cannot work through an exchange."""
    if not exchange.agrees and announces(compress):
        yield (
            "this compressor takes its positions from what all peers land alike, and this exchange gives every peer"
            " other contributions: type compress=randomk, or exchange=inprocess"
        )
    if not (exchange.agrees or exchange.lockstep) and redraws(compress):
        yield (
            "this compressor draws anew every round, and peers of this exchange meet in rounds of different numbers:"
            " type compress=identity, or exchange=inprocess_gossip"
        )
    if isinstance(compress, CostAware) and not exchange.tells_moving:
        yield (
            "this compressor goes by how long payloads take, which this exchange cannot tell from waiting for who is"
            " late: type compress=topk, or exchange=swarm_gather"
        )


def of_evolving(method: OuterMethod, exchange: Exchange) -> Iterator[str]:
    """Why a schedule that moves H cannot work."""
    if not exchange.agrees:
        yield (
            "this schedule takes H from what all peers land alike, and this exchange gives every peer other"
            " contributions: type schedule=every_h, or exchange=swarm_gather (inprocess: workers as threads)"
        )
    if method.sends != "differences":
        yield (
            "this schedule goes by how far pseudo-gradients agree, and this method sends weights:"
            " type schedule=every_h, or method=diloco"
        )
    if method.reads == "gradients":
        yield (
            "this method takes the gradient of every single step, and this schedule moves H:"
            " type schedule=every_h schedule.sync_every=1"
        )


def lossiness(compress: Compressor) -> float:
    """Relative L2 error on 8192 gaussian values, after any warm-up."""
    x, moment = probe()
    return float((x - compress.decode(compress.encode(x, moment), x.shape, moment)).norm() / x.norm())


def sparse(compress: Compressor) -> bool:
    """Whether most values come back as zero."""
    x, moment = probe()
    return float((compress.decode(compress.encode(x, moment), x.shape, moment) == 0).float().mean()) > 0.5


def announces(compress: Compressor) -> bool:
    """Whether a leader tells the others something for the next round."""
    x, moment = probe()
    return "next" in compress.encode(x, replace(moment, leads=True))


def redraws(compress: Compressor) -> bool:
    """Whether what comes back of the same values depends on the round's draw."""
    x, moment = probe()
    first, other = (
        compress.decode(compress.encode(x, at), x.shape, at) for at in (moment, replace(moment, seed=moment.seed + 1))
    )
    return not torch.equal(first, other)


def recalled(feedback: Feedback) -> float:
    """Share of values that were not sent at all which the next offer holds, put there or left in the fast weights."""
    x, trial = probe()[0], copy.deepcopy(feedback)
    trial.keep("trial", x, torch.zeros_like(x))
    fast = trial.begin("trial", torch.zeros_like(x))
    return float(trial.add("trial", -fast).norm() / x.norm())


def in_fast_weights(feedback: Feedback) -> bool:
    """Whether inner steps begin from elsewhere than the slow weights when something was not sent."""
    x, trial = probe()[0], copy.deepcopy(feedback)
    trial.keep("trial", x, torch.zeros_like(x))
    return bool(trial.begin("trial", torch.zeros_like(x)).any())


def adds_up(method: OuterMethod) -> bool:
    """Whether a step of two means' sum is the sum of the steps of both, to rounding, however long they are."""
    x = 1e6 * probe()[0]
    step, other, both = moved(method, x), moved(method, x.flip(0)), moved(method, x + x.flip(0))
    return torch.allclose(step + other, both, rtol=1e-4, atol=float(1e-4 * both.norm() / both.numel() ** 0.5))


def moved(method: OuterMethod, mean: Tensor) -> Tensor:
    """Slow weights that were zero, after one update with this mean; changes nothing of the method."""
    trial, slow = copy.deepcopy(method), {"trial": torch.zeros_like(mean)}
    trial.init(slow)
    trial.update(slow, {"trial": mean}, {})
    return slow["trial"]


def probe() -> tuple[Tensor, CodecContext]:
    """Gaussian values as a matrix, and a moment late in a run."""
    return torch.randn(64, 128, generator=torch.Generator().manual_seed(0)), CodecContext(round=10**9, seed=0)
