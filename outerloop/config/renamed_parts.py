"""Map former class names of parts to their current names, so that run directories with old names can be resumed.

This module will be deleted in the version after the next one.
"""

from __future__ import annotations

RENAMED = {
    "outerloop.compress.adaptive.Adaptive": "outerloop.compress.energy_topk.EnergyTopK",
    "outerloop.compress.auto.Auto": "outerloop.compress.bandwidth_topk.BandwidthTopK",
    "outerloop.compress.auto.Chosen": "outerloop.compress.bandwidth_topk.AdjustableTopK",
    "outerloop.compress.bandwidth_topk.Auto": "outerloop.compress.bandwidth_topk.BandwidthTopK",
    "outerloop.compress.bandwidth_topk.Chosen": "outerloop.compress.bandwidth_topk.AdjustableTopK",
    "outerloop.compress.energy_topk.Adaptive": "outerloop.compress.energy_topk.EnergyTopK",
    "outerloop.compress.ladder.Ladder": "outerloop.compress.multi_k.MultiKTopK",
    "outerloop.compress.multi_k.Ladder": "outerloop.compress.multi_k.MultiKTopK",
    "outerloop.feedback.local.LocalError": "outerloop.feedback.local_error.LocalError",
    "outerloop.lr.warmup_cosine": "outerloop.inner.lr_schedule.warmup_cosine",
}
"""Old `_target_` -> current `_target_`."""


def with_new_names(settings: dict[str, object]) -> dict[str, object]:
    """Return the settings (dotted key -> value) with old names of parts replaced by their current names."""
    return {key: RENAMED.get(value, value) if isinstance(value, str) else value for key, value in settings.items()}
