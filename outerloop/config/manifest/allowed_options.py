"""Check the options in a run manifest, so that none of them names code or a file, or sets an option of this machine.

A manifest comes from another machine. It may select a recipe and other choices that are packaged with outerloop, and
set values. A value is a number, true, false, null, a short plain text, or a list of these. A plain text contains no `$`
(hydra would interpolate it) and no `/` (it would be a path).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from outerloop.config.manifest.content import Value
from outerloop.config.manifest.machine_options import is_machine_option
from outerloop.config.option_mapping import to_overrides
from outerloop.config.options.search_path import choices_in, config_dir
from outerloop.swarm.validation import MAX_AMOUNT, MAX_PEERS, quote
from outerloop.types import UserError

KEY = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*")
"""Form of an option's name. No part begins with an underscore, so `_target_` is excluded."""
MAX_KEY = 64
PLAIN_TEXT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_ .,:+-]{0,63}")
DATASET = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}/[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
"""Form of the name of a dataset on the Hugging Face Hub, the only text with a slash that is allowed."""
MAX_LIST = 16
EXCHANGES = ("swarm_gather", "swarm_gossip")
MAX_NUMBER = 1 << 24
"""Maximum value of a whole number, unless MAXIMA contains its option. Whole numbers must not be negative."""
MAXIMA = {
    "model.layers": 1024,
    "schedule.fragments": 1024,
    "exchange.peers": MAX_PEERS,
    "seed": MAX_AMOUNT,
    "rounds": MAX_AMOUNT,
    "exchange.max_blob_bytes": MAX_AMOUNT,
}
"""Option -> maximum value.

These maxima limit the work that a manifest causes before the user agrees to join. To describe the run to the user, the
settings are loaded and the model is built, without memory for its weights.
"""
DATA_PATH = "data.path"
OWN_CLASS = ("model", "module")
"""The choice model=module, whose class the user sets."""


def checked_overrides(options: Mapping[str, Value]) -> list[str]:
    """Return the overrides for the options in a run manifest. Raises UserError, naming the first refused option."""
    choices = choices_in([config_dir()])
    for key, value in options.items():
        if why := objection(key, value, choices):
            raise UserError(f"the run manifest sets {quote(key)} {why}: join another run, or ask its operator")
        refuse_own_file(key, value)
    if "recipe" not in options:
        raise UserError("the run manifest names no recipe: join another run, or ask its operator")
    return to_overrides(options)


def objection(key: str, value: Value, choices: Mapping[str, list[str]]) -> str:
    """Return why a run manifest may not contain this option, or "" if it may. `choices`: the packaged choices."""
    if len(key) > MAX_KEY or not KEY.fullmatch(key):
        return "which is not the name of an option"
    if is_machine_option(key):
        return "which each machine sets itself"
    if key in choices:
        allowed = EXCHANGES if key == "exchange" else choices[key]
        is_choice = isinstance(value, str) and value in allowed and (key, value) != OWN_CLASS
        return "" if is_choice else f"to {quote(value)}, which is not one of outerloop's own choices"
    members = value if isinstance(value, list) else [value]
    if len(members) > MAX_LIST:
        return f"to a list of {len(members)} values; at most {MAX_LIST} are allowed"
    limit = MAXIMA.get(key, MAX_NUMBER)
    if any(not 0 <= one <= limit if isinstance(one, int) else key in MAXIMA for one in members):
        return f"to {quote(value)}; whole numbers from 0 to {limit} are allowed"
    text = next((one for one in members if isinstance(one, str) and not is_plain(key, one)), None)
    return "" if text is None else f"to {quote(text)}, which is not a plain text"


def refuse_own_file(key: str, value: Value) -> None:
    """Raise UserError if a dataset's name is also the path of a file or folder on this machine.

    The library `datasets` would read that file or folder instead of downloading the dataset.
    """
    if key == DATA_PATH and isinstance(value, str) and Path(value).exists():
        raise UserError(
            f"the run's dataset {quote(value)} is also a file or folder here, which would be used instead: run the"
            " command in an empty folder"
        )


def is_plain(key: str, text: str) -> bool:
    """Return whether an option may have this text as its value. Only data.path may be the name of a dataset."""
    return bool(PLAIN_TEXT.fullmatch(text)) or (key == DATA_PATH and bool(DATASET.fullmatch(text)))
