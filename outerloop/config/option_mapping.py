"""Convert a mapping of options to overrides, and reject options that do not apply to a user's own training loop."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Quote, QuotedString
from omegaconf import DictConfig, OmegaConf

from outerloop.config import added_options, load
from outerloop.config.options.resumed_settings import is_in
from outerloop.report.runs import flatten
from outerloop.types import UserError

AXES = ("recipe", "method", "compress", "feedback", "aggregate", "schedule")
OUTER = (*AXES, "merge_local", "buffers", "eager", "clip", "exclude_accused", "state_dtype", "seed")
"""Options of the outer loop. They must be equal on all peers, whatever inner loop trains the model."""
APPLICABLE = {*OUTER, "exchange", "state_device", "round_timeout_s"} - {"recipe"}
"""Options and groups that the outer loop reads."""
REASONS = {
    "recipe": "the recipe is the first argument",
    "run_dir": "pass run_dir= as an argument",
    "inner": "your program's training loop takes the inner steps, with its own optimizer and batches",
    "model": "the model is passed as an argument",
    "data": "your program reads its own data",
    "eval": "your program evaluates the model",
    "rounds": "your program's training loop determines when training ends",
    "workers": "each process of your program is one worker: set exchange.peers",
    "exchange": "the exchange is passed as an object",
    "island": "the model itself determines its island: wrap it in DistributedDataParallel or fully_shard",
}
"""Top-level option of `outerloop train` -> why it does not apply to a user's own training loop."""
STEP_REASONS = {
    f"inner.{name}": "your program's training loop takes the inner steps, with its own batches"
    for name in ("batch", "micro_batch", "seq_len", "accumulate", "precision", "compile", "device")
}
"""Option of `inner` -> why it does not apply to a user's own training loop, even if other options of `inner` do."""


def to_overrides(options: Mapping[Any, Any] | None) -> list[str]:
    """Convert options to "key=value" strings, as on the command line. Keys of nested mappings are joined with dots.

    Args:
        options: {"exchange.port": 4242, "compress": "int8"}, {"exchange": {"port": 4242}}, a DictConfig, or None.

    Raises:
        UserError: if `options` is not a mapping, or if a value is not text, a number, a bool, None, or a list of these.
    """
    if isinstance(options, DictConfig):
        options = OmegaConf.to_container(options, resolve=True)  # type: ignore[assignment]
    if options is not None and not isinstance(options, Mapping):
        raise UserError(
            f"options is a {type(options).__name__}, not a mapping: pass options={{'exchange.port': 4242}}, or pass"
            ' each override as a positional argument, as in simulate(..., "method=lion", "compress._target_=mine.Half")'
        )
    return [f"{key}={format_value(key, value)}" for key, value in flatten(dict(options or {})).items() if key]


def format_value(key: str, value: Any) -> str:
    """Format a value in the syntax of hydra's overrides. Raises UserError if the syntax does not support its type."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str | Path):
        return QuotedString(str(value), Quote.single).with_quotes()
    if isinstance(value, list | tuple):
        return f"[{','.join(format_value(key, member) for member in value)}]"
    raise UserError(
        f"option {key} is a {type(value).__name__}: set it to text, a number, True, False, None or a list of these"
    )


def refuse_options(overrides: Sequence[str], reasons: Mapping[str, str], what: str) -> None:
    """Raise UserError, with the reason, if an override sets an option in `reasons` or inside a group in `reasons`.

    Args:
        reasons: option or group -> why it does not apply, and what to do instead.
        what: what is being configured, for the error message: "a simulation".
    """
    for override in load.parse_overrides(overrides):
        key = override.key_or_group
        for refused, reason in reasons.items():
            if is_in(key, [refused]):
                raise UserError(f"{key} does not apply to {what}: {reason}")


def applicable_options(settings: DictConfig, *, has_exchange: bool) -> set[str]:
    """Return the options and groups that an outer loop with these settings reads.

    A method that exchanges gradients also reads `inner` and `rounds`: it takes its learning rate from `inner` and
    decays it over the rounds. `has_exchange`: the exchange is passed as an object, so its options do not apply.
    """
    more = {"inner", "rounds"} if settings.method.get("reads") == "gradients" else set()
    return (APPLICABLE | more) - ({"exchange"} if has_exchange else set())


def refuse_inapplicable(overrides: Sequence[str], applicable: Collection[str], what: str) -> None:
    """Raise UserError, with the reason, if an override sets an option that is not applicable.

    Args:
        applicable: options and groups. The options in STEP_REASONS are refused even if `inner` is applicable.
        what: what is being configured, for the error message: "an inner optimizer".
    """
    refuse_options(overrides, STEP_REASONS, what)
    for override in load.parse_overrides(overrides):
        first = override.key_or_group.split(".")[0]
        if first not in applicable and not added_options.is_about_hydra(override):
            reason = REASONS.get(first, "it is an option of outerloop train")
            raise UserError(f"{override.key_or_group} does not apply to {what}: {reason}")
