"""Compare the settings of a run with those saved in its run directory, when the run is resumed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf

from outerloop.config.options.saved_settings import saved_settings
from outerloop.config.options.setting_differences import first_difference, format_setting
from outerloop.config.renamed_parts import with_new_names
from outerloop.report.runs import flatten
from outerloop.types import UserError

MAY_DIFFER = (
    "run_dir",
    "steps",
    "tokens",
    "init_from",
    "log",
    "threads",
    "inner.micro_batch",
    "watch",
    "log_every",
    "round_timeout_s",
    "max_failed_rounds",
    "keep_payload_rounds",
    "checkpoint.keep",
    "checkpoint.hf_every",
    "samples",
    "scores",
    "corpus",
    "data.folder",
    "exchange",
    "island",
    "state_device",
    "hydra",
)
"""Settings that may change when a run is resumed, because they do not determine what is trained.

`steps` and `tokens` only determine `rounds`, which is compared instead.
"""
MUST_MATCH = (
    *(f"exchange.{key}" for key in ("_target_", "peers", "trust", "group", "together", "seed", "pairing")),
    "exchange.audit",
    "exchange.audit_every",
    "island.kind",
)
"""Exceptions to MAY_DIFFER: options of the exchange and the island that must not change when a run is resumed."""
OLD_DEFAULTS = {
    "assignment": "by_worker",
    "clip": "none",
    "exclude_accused": False,
    "exchange.audit": 0.0,
    "exchange.audit_every": 5,
    "exchange.trust": "members",
    "feedback.growth": 0.0,
    "inner.lr_schedule": "cosine",
}
"""Setting -> the value that it has in older runs, whose config.yaml does not contain the setting."""

PEERS = "exchange.peers"
HINTS = {
    PEERS: ", exchange.reform=true if machines are lost for good,",
    "data.sha256": " (with corpus.share: restore the files as they were when they were published)",
    "workers": ", or init_from={path} to start a new run from its weights,",
}
"""Option that cannot change when a run is resumed -> alternatives that the error message suggests."""


def refuse_other_run(path: Path, config: DictConfig) -> DictConfig:
    """Return `config` with the saved number of rounds, if that is smaller.

    Raises UserError if other settings differ from those saved in the run directory.
    """
    earlier = with_saved_rounds(path, config)
    refuse_other_settings(path, comparable(earlier), reform=bool(config.exchange.get("reform")))
    return earlier


def with_saved_rounds(path: Path, config: DictConfig) -> DictConfig:
    """Return `config` with the number of rounds of the earlier run in this directory, if that number is smaller.

    All settings that refer to the number of rounds, such as a learning-rate decay, change with it.
    """
    earlier = config.copy()
    earlier.rounds = min(saved_settings(path).get("rounds", config.rounds), config.rounds)
    return earlier


def refuse_other_settings(path: Path, settings: dict[str, Any], *, reform: bool = False) -> None:
    """Raise UserError, naming the first difference, if the settings differ from those saved in the run directory.

    `reform`: allow a different number of peers, because machines were lost permanently.
    """
    defaults = {key: value for key, value in OLD_DEFAULTS.items() if key in settings}
    earlier = defaults | with_new_names(comparable(saved_settings(path)))
    if reform:
        earlier[PEERS] = settings.get(PEERS)
    if (key := first_difference(settings, earlier)) is not None:
        saved, current = format_setting(earlier, key), format_setting(settings, key)
        hint = HINTS.get(key, "").format(path=path)
        raise UserError(
            f"run_dir={path} belongs to another configuration: {key} is {saved} there and {current} here:"
            f" set {key}={saved}{hint} or another run_dir="
        )


def comparable(config: DictConfig | ListConfig) -> dict[str, Any]:
    """Return the settings that determine what is trained, as dotted key -> value."""
    return {
        key: value
        for key, value in flatten(OmegaConf.to_container(config, resolve=True)).items()
        if not may_differ(key) or key in MUST_MATCH
    }


def may_differ(key: str) -> bool:
    """Return whether this option or its top-level group is listed in MAY_DIFFER."""
    return is_in(key, MAY_DIFFER)


def is_in(key: str, options: Sequence[str]) -> bool:
    """Return whether an option, or a group that contains it, is listed in `options`."""
    return any(f"{key}.".startswith(f"{option}.") for option in options)
