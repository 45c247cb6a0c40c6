"""Load a user's recipes and parts from yaml files, as in `recipe=./mine.yaml`, and from the user's folders.

Each file is stored under its name in hydra's ConfigStore, which hydra also passes to sweep jobs in other processes. A
recipe file needs no `@package` header. A recipe is named after its file, unless the file sets `recipe`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.types import ChoiceSweep, Override, Quote, QuotedString
from omegaconf import OmegaConf

from outerloop.types import UserError

SUFFIX = ".yaml"
GLOBAL = "recipe"
"""The group whose files may set options of any group."""


def stored_choices(group: str) -> list[str]:
    """Return the choices of a group that were loaded from yaml files, by any call in this process."""
    node = ConfigStore.instance().repo.get(group, {})
    return [name.removesuffix(SUFFIX) for name in node]


def forget(choices: Mapping[str, Sequence[str]]) -> None:
    """Remove stored files that have the same name as one of `choices`.

    They are left over from an earlier call, which searched other folders.
    """
    for group, names in choices.items():
        for name in {*names} & {*stored_choices(group)}:
            del ConfigStore.instance().repo[group][name + SUFFIX]


def with_stored_files(text: str, override: Override, choices: Mapping[str, Sequence[str]]) -> str:
    """Store each yaml file that an override names, and return the override with file names replaced by choices.

    `choices`: group -> the choices that already exist. Raises UserError if a file cannot be used.
    """
    values, group = values_of(override), override.key_or_group
    if group not in choices or not any(value.endswith(SUFFIX) for value in values):
        return text
    names = [store(group, Path(value), choices[group]) if value.endswith(SUFFIX) else value for value in values]
    return f"{text.partition('=')[0]}={','.join(names)}"


def values_of(override: Override) -> list[str]:
    """Return the value of an override as text, or all of its values if it is a sweep over choices."""
    value = override.value()
    return [str(one) for one in (value.list if isinstance(value, ChoiceSweep) else [value])]


def store(group: str, path: Path, taken: Sequence[str]) -> str:
    """Store a yaml file as a choice of a group and return the choice's name.

    Raises UserError if the file cannot be read as a mapping, or if its name is in `taken`.
    """
    content, name = read_mapping(path), path.stem
    if name in taken:
        raise UserError(f"{group}={path} has the name of another {group}: rename the file")
    if group == GLOBAL:
        content.setdefault("recipe", name)
    package = "_global_" if group == GLOBAL else group
    node, provider = OmegaConf.create(content), str(path.absolute())
    ConfigStore.instance().store(name=name, node=node, group=group, package=package, provider=provider)
    return name


def with_file_paths(overrides: Sequence[str]) -> list[str]:
    """Return the overrides of one run with the names of stored choices replaced by the paths of their files."""
    return [with_file_path(*text.partition("=")) for text in overrides]


def with_file_path(group: str, equals: str, name: str) -> str:
    """Return the override group=name. If a file is stored as this choice, its quoted absolute path replaces `name`.

    `equals`: "=", or an empty string for an override without a value.
    """
    node = ConfigStore.instance().repo.get(group, {}).get(name + SUFFIX)
    value = name if node is None else QuotedString(node.provider, Quote.single).with_quotes()
    return f"{group}{equals}{value}"


def read_mapping(path: Path) -> dict[str, Any]:
    """Read a yaml file. Raises UserError if it is not a readable yaml mapping."""
    try:
        content = yaml.safe_load(path.read_text())
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): pass the path of a yaml file") from error
    except (ValueError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{path} is not yaml: {reason}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} does not contain options: write lines such as rounds: 10")
    return content


def searching(folders: Sequence[Path]) -> str:
    """Return the override that sets hydra's search path to these folders."""
    entries = [QuotedString(f"file://{folder.absolute()}", Quote.single).with_quotes() for folder in folders]
    return f"hydra.searchpath=[{','.join(entries)}]"
