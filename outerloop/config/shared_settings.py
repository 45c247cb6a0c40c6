"""Collect the settings of a run that must be equal on all machines, and compute their fingerprint."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from omegaconf import DictConfig

from outerloop.config.instantiate import make
from outerloop.config.options.resumed_settings import comparable, is_in
from outerloop.config.options.setting_differences import format_setting
from outerloop.kernels import arithmetic_platform
from outerloop.protocols import AdaptiveSchedule

ROUND_RULES = ("quorum", "min_peers", "min_fraction", "absent_rounds", "max_blob_bytes", "invites")
"""Options of the exchange that may change when a run is resumed, but must stay equal on all machines."""
CORPUS = "data.sha256"
"""Hash of the training data that the peers of a run share (data=shared). With other data, machines may differ."""

MAY_DIFFER_IF_WEIGHTED = ("inner.batch", "inner.accumulate", "schedule.sync_every")
"""Options that determine how much work a peer does in a round.

They may differ between peers if contributions are weighted by the number of samples.
"""


def training_settings(config: DictConfig) -> dict[str, Any]:
    """Return the settings that determine what is trained, as dotted key -> value.

    If contributions are weighted by the number of samples, the options in MAY_DIFFER_IF_WEIGHTED may differ between
    peers and are omitted. schedule.sync_every is kept if the schedule adapts it, because all peers change it together.
    """
    may_differ = MAY_DIFFER_IF_WEIGHTED if getattr(make(config.aggregate), "weighs_samples", False) else ()
    adaptive_key = "schedule.sync_every" if isinstance(make(config.schedule), AdaptiveSchedule) else None
    return {key: value for key, value in comparable(config).items() if key not in may_differ or key == adaptive_key}


def samples_per_round(config: DictConfig) -> int | None:
    """Return the number of samples that a peer processes in a round, or None if it may differ between peers or rounds.

    The number is batch · accumulate · H. It may differ if contributions are weighted by the number of samples, if H
    adapts, or if rounds last a fixed number of seconds.
    """
    schedule = make(config.schedule)
    varies = isinstance(schedule, AdaptiveSchedule) or schedule.step_s > 0
    if varies or getattr(make(config.aggregate), "weighs_samples", False):
        return None
    return int(config.inner.batch * config.inner.accumulate * schedule.sync_every)


def shared_settings(config: DictConfig, *, lanes: int = 1) -> dict[str, Any]:
    """Return the settings that must be equal on all machines of a run, as dotted key -> value.

    Paths, data that is not shared by the peers, evaluation, checkpoints, the device, the precision of inner steps and
    the numbers of local workers and ranks may differ, so they are omitted. The hardware is included if the outer method
    gives bitwise equal results only on equal hardware.

    `lanes`: number of shards in each message of an island.
    """
    local = ("workers", "island", "data", "eval", "checkpoint", "inner.device", "inner.compile", "inner.precision")
    shared = {key: value for key, value in training_settings(config).items() if not is_in(key, local)}
    shared |= {f"exchange.{rule}": config.exchange.get(rule) for rule in ROUND_RULES}
    shared |= {CORPUS: config.data.sha256} if "sha256" in config.data else {}
    shared |= {"lanes": lanes} if lanes > 1 else {}
    return shared | ({} if make(config.method).portable else {"hardware": arithmetic_platform.described()})


def fingerprint(config: DictConfig, *, lanes: int = 1) -> str:
    """Return the SHA-256 hash of `shared_settings`, in hexadecimal."""
    shared = shared_settings(config, lanes=lanes)
    return hashlib.sha256(json.dumps(shared, sort_keys=True).encode()).hexdigest()


def settings_to_compare(config: DictConfig, *, lanes: int = 1) -> dict[str, Any]:
    """Return the arguments that a swarm's exchange needs to detect and name settings that differ between peers."""
    from outerloop.swarm.membership.run_settings import RunSettings  # imports hivemind, which other runs do not need

    shared = shared_settings(config, lanes=lanes)
    values = {key: format_setting(shared, key) for key in shared}
    return {"fingerprint": fingerprint(config, lanes=lanes), "settings": RunSettings(values)}
