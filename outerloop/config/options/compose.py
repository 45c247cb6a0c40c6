"""Compose the configuration from yaml files and overrides with hydra, without checking it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from outerloop.config.options.search_path import choices_in, config_dir, user_folders
from outerloop.config.options.user_files import forget, searching, stored_choices, values_of, with_stored_files
from outerloop.config.user_code import enable_user_code
from outerloop.types import UserError

SEARCH_PATH = "hydra.searchpath"
"""Option that lists the folders that hydra searches for yaml files after outerloop's own folder."""


def groups(overrides: Sequence[str] = ()) -> dict[str, list[str]]:
    """Return a map from config group to its choices.

    The choices are those in outerloop, in the user's folders, and in the folders and yaml files named in `overrides`.
    """
    completed = complete(overrides)
    choices = choices_in([config_dir(), *search_path(completed)])
    named = {(override.key_or_group, value) for override in parse_overrides(completed) for value in values_of(override)}
    return {
        group: sorted({*names, *(name for name in stored_choices(group) if (group, name) in named)})
        for group, names in choices.items()
    }


def complete(overrides: Sequence[str]) -> list[str]:
    """Return the overrides with yaml file names replaced by choices, and with the user's folders in the search path.

    Each yaml file that an override names is stored as a choice of its group. Overrides that have already been completed
    are returned unchanged. Raises UserError if a file or folder cannot be used.
    """
    parsed, typed, added = parse_overrides(overrides), search_path(overrides), user_folders()
    choices = choices_in([config_dir(), *typed, *added])
    forget(choices)
    texts = [with_stored_files(text, override, choices) for text, override in zip(overrides, parsed, strict=True)]
    if all(folder in typed for folder in added):
        return texts
    kept = [text for text, o in zip(texts, parsed, strict=True) if o.key_or_group != SEARCH_PATH]
    return [*kept, searching([*typed, *(folder for folder in added if folder not in typed)])]


def search_path(overrides: Sequence[str]) -> list[Path]:
    """Return the folders in `hydra.searchpath` (file://FOLDER or pkg://PACKAGE). Raises UserError if one is missing."""
    entries = [override.value() for override in parse_overrides(overrides) if override.key_or_group == SEARCH_PATH]
    return [search_path_folder(str(entry)) for listed in entries if isinstance(listed, list) for entry in listed]


def search_path_folder(entry: str) -> Path:
    """Return the folder that an entry of the search path names. Raises UserError if it does not exist."""
    try:
        package = entry.removeprefix("pkg://")
        enable_user_code([package] if package != entry else [])
        folder = Path(str(files(package)) if package != entry else entry.removeprefix("file://"))
    except ImportError:
        folder = Path(entry)
    if not folder.is_dir():
        raise UserError(f"hydra.searchpath={entry} is not a folder: set 'hydra.searchpath=[file://FOLDER]'")
    return folder


def compose_config(overrides: Sequence[str]) -> DictConfig:
    """Compose train.yaml with these overrides, using hydra. Compositions of outerloop's own yaml files are cached.

    Overrides that only set values are then applied to the cached composition of the others, as hydra does. If this
    fails, hydra composes all of them, and raises the error.
    """
    key = tuple(overrides)
    if uses_other_files(overrides):
        return compose_anew(key)
    parsed = parse_overrides(overrides)
    if all(map(can_be_applied_later, parsed)):
        choices = tuple(text for text, override in zip(key, parsed, strict=True) if not sets_value(override))
        with suppress(HydraException, OmegaConfBaseException, ValueError):
            config = deepcopy(composed(choices))
            for override in filter(sets_value, parsed):
                OmegaConf.update(config, override.key_or_group, override.value(), merge=True)
            return config
    return deepcopy(composed(key))


def can_be_applied_later(override: Override) -> bool:
    """Return whether an override changes one value, or chooses a yaml file. A dictionary for a group does neither."""
    is_change = override.type is OverrideType.CHANGE and not override.is_sweep_override()
    return is_change and (sets_value(override) or not isinstance(override.value(), dict))


def sets_value(override: Override) -> bool:
    """Return whether an override sets a value, and does not choose one of outerloop's or hydra's yaml files."""
    key = override.key_or_group
    return override.package is None and "/" not in key and not (config_dir() / key).is_dir()


def uses_other_files(overrides: Sequence[str]) -> bool:
    """Return whether hydra reads yaml files other than outerloop's own for these overrides. They may change."""
    return any(
        override.key_or_group == SEARCH_PATH or {*values_of(override)} & {*stored_choices(override.key_or_group)}
        for override in parse_overrides(overrides)
    )


@lru_cache(maxsize=128)
def composed(overrides: tuple[str, ...]) -> DictConfig:
    """Return what `compose_anew` returns. It is cached, so do not modify it."""
    return compose_anew(overrides)


def compose_anew(overrides: tuple[str, ...]) -> DictConfig:
    """Compose train.yaml with these overrides, using hydra, which takes about 0.1 s."""
    with outside_applications(), initialize_config_dir(version_base="1.3", config_dir=str(config_dir())):
        return compose("train", overrides=list(overrides))


@contextmanager
def outside_applications() -> Iterator[None]:
    """Clear hydra's global state inside the block, to compose within a hydra application, and restore it afterwards."""
    application, GlobalHydra.instance().hydra = GlobalHydra.instance().hydra, None
    try:
        yield
    finally:
        GlobalHydra.instance().hydra = application


def group_choices(overrides: Sequence[str]) -> list[str]:
    """Return only the overrides that determine which yaml files are used: group choices and the search path."""
    known = [*groups(overrides), SEARCH_PATH]
    return [text for text, o in zip(overrides, parse_overrides(overrides), strict=True) if o.key_or_group in known]


def parse_overrides(overrides: Sequence[str]) -> list[Override]:
    """Parse overrides with hydra's parser. Raises UserError if one is not of the form key=value."""
    return [parse_override(text) for text in overrides]


@lru_cache(maxsize=1024)
def parse_override(text: str) -> Override:
    """Parse one override. Raises UserError if it is not of the form key=value, or if its value must be quoted.

    The result is cached, so do not modify it.
    """
    try:
        return OverridesParser.create().parse_overrides([text])[0]
    except HydraException as error:
        if "=" not in text:
            raise UserError(f"{text!r} is not an option: options look like rounds=10 or recipe=diloco") from error
        raise UserError(
            f"{text!r} cannot be read: quote a value that contains quotes or brackets, as in 'run_dir=\"a [b]\"'"
        ) from error
