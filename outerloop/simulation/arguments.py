"""Check the arguments and options of `simulate`."""

from __future__ import annotations

from collections.abc import Sequence

from omegaconf import DictConfig

from outerloop.config.option_mapping import refuse_options

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
