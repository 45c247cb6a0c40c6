"""Which points of the product make sense: refused or warned about when a run is put together, with what to type.

Nothing here knows an algorithm by name: parts say what they are (`shared`, `sends`, `agrees`, `lockstep`,
`tells_moving`, `remembers`), and codecs are asked by trying them on a small gaussian tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain

import torch

from outerloop.protocols import Choosing, Compressor, Evolving, Exchange, Feedback, OuterMethod, Schedule
from outerloop.types import Moment, UserError

LOSSY = 0.3
"""Relative L2 error of a codec on gaussian values above which it needs feedback: 4 bits make .1 to .2, 2 bits .35."""


def doubts(*, method: OuterMethod, compress: Compressor, feedback: Feedback, schedule: Schedule) -> list[str]:
    """One line for each thing that is allowed but unlikely to be meant."""
    lines = []
    if method.shared and lossiness(compress) > LOSSY and not feedback.remembers:
        lines.append("the compressor drops most of what it is given and nothing remembers it: type feedback=ef")
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
    exchange: Exchange,
    schedule: Schedule,
    eager: bool,
    merge_local: float | str,
) -> None:
    """Raises UserError for what cannot work."""
    reasons = chain(
        of_method(method, compress, feedback, exchange, schedule),
        of_eager(eager, compress, exchange, schedule, merge_local),
        of_compressor(compress, exchange),
        of_evolving(method, exchange) if isinstance(schedule, Evolving) else (),
    )
    for reason in reasons:
        raise UserError(reason)


def refuse_fragments(schedule: Schedule, names: Sequence[str]) -> None:
    """Check that a schedule can cut a model with these parameter names. Raises UserError."""
    for index in range(schedule.fragments):
        schedule.fragment(index, names)


def of_method(
    method: OuterMethod, compress: Compressor, feedback: Feedback, exchange: Exchange, schedule: Schedule
) -> Iterator[str]:
    """Why a method cannot work with the other parts."""
    if method.shared and not exchange.agrees:
        yield (
            "this exchange gives every peer other contributions, and this method needs equal ones:"
            " type method=noloco, or exchange=swarm_gather (inprocess: workers as threads)"
        )
    if method.sends == "weights" and (feedback.remembers or sparse(compress)):
        yield (
            "this method sends weights, which can be neither sparse nor remembered:"
            " type feedback=none compress=cast, or method=diloco"
        )
    if method.reads == "gradients" and (schedule.sync_every != 1 or schedule.delay or schedule.step_s):
        yield "this method takes the gradient of every single step: type schedule=every_h schedule.sync_every=1"


def of_eager(
    eager: bool, compress: Compressor, exchange: Exchange, schedule: Schedule, merge_local: float | str
) -> Iterator[str]:
    """Why eager updates cannot work, or a delay without them."""
    if eager and merge_local == "carry":
        yield (
            "merge_local=carry keeps what came since the launch, which eager updates have put into the next round:"
            " type merge_local=0.0"
        )
    if eager != (schedule.delay == schedule.sync_every):
        yield (
            f"eager={str(eager).lower()} with schedule.delay={schedule.delay}: eager updates need a delay of exactly"
            f" sync_every={schedule.sync_every}, and such a delay needs them:"
            f" type eager=true schedule.delay={schedule.sync_every}"
        )
    if eager and not exchange.waits_for_all:
        yield (
            "eager updates take it that every payload counts, and this exchange may go on without a late one:"
            " type eager=false schedule.delay=0, or exchange=inprocess"
        )
    if eager and announces(compress):
        yield (
            "this compressor takes its positions from the round before, and with eager=true that one has not landed"
            " when the next leaves: type compress=randomk, or eager=false schedule.delay=0"
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
    if isinstance(compress, Choosing) and not exchange.tells_moving:
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
    if method.sends == "weights":
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


def probe() -> tuple[torch.Tensor, Moment]:
    """Gaussian values as a matrix, and a moment late in a run."""
    return torch.randn(64, 128, generator=torch.Generator().manual_seed(0)), Moment(round=10**9, seed=0)
