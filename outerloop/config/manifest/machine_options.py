"""List the options that belong to one machine, and refuse to set shared options on a machine that joins a run."""

from __future__ import annotations

from collections.abc import Sequence

from outerloop.config.options.compose import parse_overrides
from outerloop.config.options.resumed_settings import is_in
from outerloop.types import UserError

PROGRAM = (
    "hydra",
    "island",
    "workers_as",
    *(
        f"exchange.{name}"
        for name in (
            "worker",
            "identity_path",
            "initial_peers",
            "fingerprint",
            "settings",
            "corpus",
            "manifest",
            "on_status",
            "newcomer",
        )
    ),
    "exchange.allow",
    "exchange.reform",
    "corpus.share",
)
"""Options that `outerloop join` sets itself, or that do not apply to a machine that joins."""
MACHINE = (
    "run_dir",
    "workers",
    "threads",
    "init_from",
    "log",
    "watch",
    "log_every",
    "keep_payload_rounds",
    "state_device",
    "max_failed_rounds",
    "inner.device",
    "inner.compile",
    "inner.micro_batch",
    "eval",
    "checkpoint",
    "samples",
    "corpus",
    *(f"data.{name}" for name in ("files", "val_files", "data_files", "tokenizer", "folder")),
    *(
        f"exchange.{name}"
        for name in ("host", "port", "announce", "join_timeout_s", "max_mbit", "open_internet", "public_name")
    ),
)
"""Options that each machine sets itself. They are not part of a run manifest."""
SUGGESTED = ("data", "inner.precision", "scores")
"""Groups and options that a run manifest may set, but that a machine may override."""


def is_machine_option(key: str) -> bool:
    """Return whether an option is never part of a run manifest."""
    return is_in(key, (*PROGRAM, *MACHINE))


def refuse_shared(overrides: Sequence[str]) -> None:
    """Raise UserError if an override sets an option that all machines of a run share, or that the program sets."""
    for override in parse_overrides(overrides):
        key = override.key_or_group
        if is_in(key, PROGRAM):
            raise UserError(f"{key} cannot be set with outerloop join: leave it out")
        if not is_in(key, (*MACHINE, *SUGGESTED)):
            raise UserError(
                f"{key} is shared by all machines of the run: leave it out, or start a run of your own with"
                " outerloop train"
            )
