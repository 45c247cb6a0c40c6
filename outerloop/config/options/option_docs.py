"""Read the options, their defaults and their comments from the yaml files of the configuration.

A comment at the end of a line describes the option on that line; a comment on a separate line describes the next
option. Consecutive comment lines that start in the same column form one comment. The comment at the top of a file
describes the choice that the file defines.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from outerloop.config.options.search_path import choices_in, config_dir

MAIN = "train"
"""Name of the yaml file whose options belong to no group."""
NO_OPTIONS = ("defaults", "hydra", "workers_as", "recipe")
"""Top-level keys of a yaml file that are not options."""
SET_BY_THE_PROGRAM = "set by the program"
"""Start of the comment on a key whose value is set only by the program."""


@dataclass(frozen=True)
class Option:
    """One option. `default`: its value as written in the yaml file. `comment`: its comment as one line, or empty."""

    name: str
    default: str
    comment: str


@dataclass(frozen=True)
class Choice:
    """One yaml file: a choice of a group such as schedule=every_h, or train.yaml, whose group is empty.

    `target`: dotted path of the class or function that the file configures, or "" if it configures no part.
    `selects`: group -> the choice that the file's defaults list selects. Only train.yaml and recipes select choices.
    """

    group: str
    name: str
    comment: str
    target: str
    selects: dict[str, str]
    options: list[Option]


def all_choices(folder: Path | None = None) -> list[Choice]:
    """Return the choices in all yaml files: train.yaml first, then the choices of all groups in alphabetical order.

    `folder`: folder with the yaml files, or None for the package's own folder.
    """
    folder = folder or config_dir()
    files = [(group, name) for group, names in choices_in([folder]).items() for name in names]
    return [read_choice(folder, *file) for file in [("", MAIN), *files] if yaml_file(folder, *file).exists()]


def yaml_file(folder: Path, group: str, name: str) -> Path:
    """Return the path of a choice's yaml file."""
    return folder / group / f"{name}.yaml"


def read_choice(folder: Path, group: str, name: str) -> Choice:
    """Read a choice from its yaml file. Its own options come first, then those of the choices that it extends."""
    text = yaml_file(folder, group, name).read_text()
    lines, tree = text.splitlines(), yaml.compose(text)
    comments, top = comments_by_line(lines), [line[1:].strip() for line in lines[: header_length(lines)]]
    prefix = "" if "@package _global_" in top or not group else f"{group}."
    entries = defaults_list(tree, comments)
    bases = [read_choice(folder, group, base) for base in bases_of(entries) if yaml_file(folder, group, base).exists()]
    own = list(leaves(tree, prefix, comments))
    targets = [option.default for option in own if option.name == f"{group}._target_"]
    axes = [entry for entry in entries if entry.default]
    return Choice(
        group=group,
        name=name,
        comment=" ".join(line for line in top if line != "@package _global_"),
        target=[*targets, *(base.target for base in bases), ""][0],
        selects={key: value for base in bases for key, value in base.selects.items()}
        | {axis.name.removeprefix("override ").removeprefix("/"): axis.default for axis in axes},
        options=(axes if not group else []) + merged(own, [option for base in bases for option in base.options]),
    )


def merged(own: list[Option], inherited: list[Option]) -> list[Option]:
    """Return the options of a file, followed by those of the files that it extends.

    An option without a comment in this file inherits its comment. If the file sets an inherited section to null, the
    section and its options are omitted.
    """
    comments = {option.name: option.comment for option in inherited}
    removed = [o.name for o in own if any(i.name.startswith(f"{o.name}.") for i in inherited)]
    names = {option.name for option in own}
    kept = [i for i in inherited if i.name not in names and not i.name.startswith(tuple(f"{r}." for r in removed))]
    own = [replace(o, comment=o.comment or comments.get(o.name, "")) for o in own if o.name not in removed]
    return [option for option in own if is_option(option)] + kept


def is_option(option: Option) -> bool:
    """Return whether users set this key. Keys such as `_target_` are options only if they have no default (`???`)."""
    hidden = option.name.rpartition(".")[2].startswith("_") and option.default != "???"
    return not hidden and not option.comment.startswith(SET_BY_THE_PROGRAM)


def defaults_list(tree: yaml.Node | None, comments: dict[int, str]) -> list[Option]:
    """Return the entries of a file's defaults list as options: the name is the group, and the default is the choice.

    An entry without a group has the choice as its name and an empty default.
    """
    entries = next((value for key, value in pairs(tree) if key.value == "defaults"), None)
    listed = entries.value if isinstance(entries, yaml.SequenceNode) else []
    return [
        option
        for entry in listed
        for option in (leaves(entry, "", comments) if pairs(entry) else [Option(entry.value, "", "")])
        if "hydra/" not in option.name
    ]


def bases_of(entries: list[Option]) -> list[str]:
    """Return the choices of the same group that a file extends. `entries`: the file's defaults list.

    Entries that only fill in one key, such as sigma_bins@large.values, are not included.
    """
    names = [entry.name for entry in entries if not entry.default and entry.name != "_self_"]
    return [name.partition("@")[0] for name in names if "@" not in name or name.startswith("shared/")]


def pairs(node: yaml.Node | None) -> list[tuple[yaml.ScalarNode, yaml.Node]]:
    """Return the (key, value) nodes of a mapping, or an empty list for any other node."""
    return node.value if isinstance(node, yaml.MappingNode) else []


def leaves(node: yaml.Node | None, prefix: str, comments: dict[int, str], *, depth: int = 0) -> Iterator[Option]:
    """Yield an Option for every key whose value is not a mapping, including nested keys."""
    for key, value in pairs(node):
        name, text = f"{prefix}{key.value}", value.start_mark.buffer
        if depth == 0 and key.value in NO_OPTIONS:
            continue
        if pairs(value):
            yield from leaves(value, f"{name}.", comments, depth=depth + 1)
        elif text is not None:
            default = text[value.start_mark.pointer : value.end_mark.pointer].strip()
            yield Option(name, default, comments.get(key.start_mark.line, ""))


def header_length(lines: list[str]) -> int:
    """Return the number of comment lines at the top of a file."""
    return next((i for i, line in enumerate(lines) if not line.startswith("#")), len(lines))


def comments_by_line(lines: list[str]) -> dict[int, str]:
    """Return a mapping from line number to the comment on the key in that line, joined into one line."""
    comments: dict[int, str] = {}
    above: list[str] = []
    key_line, column = -1, -1
    for number, line in enumerate(lines[header_length(lines) :], header_length(lines)):
        code, mark, comment = line.partition("# ")
        if mark and not code.strip() and len(code) == column:
            comments[key_line] += f" {comment.strip()}"
        elif mark and not code.strip():
            above.append(comment.strip())
        elif code.strip():
            key_line, column = (number, len(code)) if mark else (-1, -1)
            comments[number] = " ".join([*above, comment.strip()]).strip()
            above = []
    return comments
