"""Check the arguments and options of `simulate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from omegaconf import DictConfig
from torch import Tensor
from torch.nn import Module

from outerloop.config.option_mapping import refuse_options
from outerloop.types import UserError

UNUSED = ("batch", "micro_batch", "seq_len", "accumulate", "precision", "compile")
"""Options of the inner trainer that do not apply, because the functions `batches` and `loss` determine these values."""
REASONS = {
    "recipe": "pass recipe=",
    "rounds": "pass steps=",
    "steps": "pass steps=",
    "tokens": "pass steps=",
    "workers": "pass workers=",
    "seed": "pass seed=",
    "run_dir": "pass run_dir=",
    "model": "make_model creates the model",
    "data": "batches returns the data",
    "corpus": "batches returns the data",
    "assignment": "batches returns the data",
    "eval.sequences": "pass validation=",
    "init_from": "load the weights in make_model",
    "checkpoint": "a simulation saves no checkpoints",
    "samples": "a simulation has no tokenizer",
    "scores": "a simulation has no training text, from which the windows of a score are drawn",
    "exclude_accused": "the workers of a simulation accuse no peers",
    "keep_payload_rounds": "a simulation stores no payloads",
    "round_timeout_s": "rounds between threads do not time out",
    "max_failed_rounds": "rounds between threads do not fail",
    "island": "each worker is a single process",
    "log": "rows are in the results, and in run_dir",
    "watch": "run outerloop watch with the run_dir",
    **{f"inner.{name}": "batches and loss determine the inner step" for name in UNUSED},
}
"""Option of `outerloop train` -> why a simulation refuses it."""
REPLACED = ("optimizer", "lr_factor", "clip_norm")
"""Options of a method that exchanges gradients that the user's optimizer replaces."""


def check_functions(functions: Mapping[str, object]) -> None:
    """Raise UserError if one of these arguments is not a function. `functions`: name -> argument."""
    for name, function in functions.items():
        if not callable(function) or (name == "make_model" and isinstance(function, Module)):
            raise UserError(
                f"{name} must be a function, but is of type {type(function).__name__}: see outerloop.simulate"
            )


def list_batches(validation: Any) -> list[Any]:
    """Return the validation batches as a list. Raises UserError if it is empty, or if `validation` is one batch."""
    parts = validation if isinstance(validation, tuple) else ()
    is_batch = isinstance(validation, Tensor | dict) or any(isinstance(part, Tensor) for part in parts)
    if is_batch or not (hasattr(validation, "__iter__") or hasattr(validation, "__getitem__")):
        kind = f"one batch, a {type(validation).__name__}" if is_batch else f"of type {type(validation).__name__}"
        raise UserError(f"validation= must be a list of batches, but is {kind}: pass validation=[batch, ...]")
    batches = list(validation)
    if not batches:
        raise UserError(
            "validation= has no batches: pass at least one, or omit it to hold out the first batch of each worker"
        )
    return batches


def refuse_replaced(typed: Sequence[str], settings: DictConfig) -> None:
    """Raise UserError if an override sets an option that the user's optimizer replaces.

    The user's optimizer replaces all options of `inner` except the device. If the method exchanges gradients, it also
    replaces those in REPLACED.
    """
    reason = (
        "your optimizer takes the steps, without warm-up, decay or clipping: set the value there, or leave out"
        " optimizer="
    )
    groups = ["inner"]
    if settings.method.get("reads") == "gradients":
        groups += [f"method.{name}" for name in REPLACED]
    others = [override for override in typed if override.lstrip("+").partition("=")[0] != "inner.device"]
    refuse_options(others, dict.fromkeys(groups, reason), "a simulation with optimizer=")
