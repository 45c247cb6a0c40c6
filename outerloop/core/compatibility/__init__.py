"""Reject combinations of parts that cannot work, warn about doubtful ones, and name the settings to use instead.

No check refers to an algorithm by name. Parts declare properties (`shared`, `sends`, `reads`, `linear`, `agrees`,
`lockstep`, `measures_transfer`, `remembers`), and codecs, feedbacks and methods are tried on a small Gaussian tensor
(trials.py), after a check that the codec follows its protocol (codec_trial.py). A part may also declare properties
that it `requires` of another part. The rules are in rules.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

from torch import Size

from outerloop.core.compatibility.codec_trial import check_codec
from outerloop.core.compatibility.rules import (
    adaptive_schedule_conflicts,
    compressor_conflicts,
    delay_conflicts,
    eager_conflicts,
    gradient_conflicts,
    method_conflicts,
    requirement_conflicts,
)
from outerloop.core.compatibility.trials import lossiness, recalled
from outerloop.protocols import AdaptiveSchedule, Aggregate, Compressor, Feedback, OuterMethod, Schedule
from outerloop.types import Capabilities, UserError

LOSSY = 0.3
"""Maximum relative L2 error on Gaussian values at which a codec works without feedback.

4 bits per value give an error of 0.1 to 0.2; 2 bits give 0.35.
"""
RECALLED = 0.3
"""Minimum fraction of the unsent values that a feedback must carry into the next round if the codec is lossy.

A moving average of the error that gives the old error a weight of 0.8 carries over 0.2.
"""


def warnings(
    *,
    method: OuterMethod,
    compress: Compressor,
    feedback: Feedback,
    schedule: Schedule,
    eager: bool,
    merge_local: float | str,
) -> list[str]:
    """Return a one-line warning for each setting that is allowed but probably unintended."""
    lines = []
    if method.shared and lossiness(compress) > LOSSY and recalled(feedback) < RECALLED:
        lines.append(
            "this compressor loses much of its input, and this feedback adds too little of it to later rounds:"
            " set feedback=ef"
        )
    frequent = schedule.sync_every < 100 and not schedule.step_s
    if frequent and method.sends == "differences" and method.momentum >= 0.9:
        lines.append(
            f"outer momentum of 0.9 or more is high for H = {schedule.sync_every} (below 100):"
            " set method.optimizer.momentum=0.6, or a larger schedule.sync_every"
        )
    if schedule.delay and merge_local == 0 and method.reads == "weights" and not eager:
        lines.append(
            f"with schedule.delay={schedule.delay} and merge_local=0.0, the inner steps between the launch and the"
            " landing of a round are discarded: set merge_local=carry"
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
    """Check that the parts can work together. Raises UserError, stating the reason, if they cannot."""
    check_codec(compress)
    reasons = chain(
        method_conflicts(method, compress, feedback, aggregate, exchange),
        gradient_conflicts(feedback, schedule, merge_local) if method.reads == "gradients" else (),
        delay_conflicts(eager, schedule, merge_local),
        eager_conflicts(method, compress, feedback, aggregate, exchange) if eager else (),
        compressor_conflicts(compress, exchange),
        adaptive_schedule_conflicts(method, exchange) if isinstance(schedule, AdaptiveSchedule) else (),
        requirement_conflicts(
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


def refuse_model(*, schedule: Schedule, compress: Compressor, shapes: Mapping[str, Size]) -> None:
    """Check that the schedule can divide a model into fragments, and the compressor can encode its tensors.

    shapes: parameter name -> shape. Raises UserError if a part cannot.
    """
    for index in range(schedule.fragments):
        schedule.fragment(index, list(shapes))
    check_codec(compress, shapes)
