"""Names that parts had in version 0.1.0: a run directory whose config.yaml names them is resumed all the same.

To be deleted with the version after the next.
"""

from __future__ import annotations

RENAMED = {
    "outerloop.compress.adaptive.Adaptive": "outerloop.compress.energy_topk.Adaptive",
    "outerloop.compress.auto.Auto": "outerloop.compress.bandwidth_topk.Auto",
    "outerloop.compress.auto.Chosen": "outerloop.compress.bandwidth_topk.Chosen",
    "outerloop.compress.ladder.Ladder": "outerloop.compress.multi_k.Ladder",
    "outerloop.feedback.local.LocalError": "outerloop.feedback.local_error.LocalError",
    "outerloop.lr.warmup_cosine": "outerloop.inner.lr_schedule.warmup_cosine",
}
"""`_target_` of before -> that of now."""


def with_new_names(settings: dict[str, object]) -> dict[str, object]:
    """Return flat settings in which every renamed part goes by its present name."""
    return {key: RENAMED.get(value, value) if isinstance(value, str) else value for key, value in settings.items()}
