"""Write docs/reference/options.md: every option of `outerloop train`, from the yaml files in configs/.

python scripts/docs_options.py            # rewrite the page
python scripts/docs_options.py --check    # exit code 1 if the page is out of date
"""

from __future__ import annotations

import re
import sys
from itertools import groupby
from pathlib import Path

from outerloop.config.options.option_docs import Choice, Option, all_choices

PAGE = Path(__file__).resolve().parents[1] / "docs/reference/options.md"
HEAD = """\
# Options

Every option of `outerloop train`, with its default and meaning. `outerloop options WORD` shows the same in a terminal.
This page is written by `python scripts/docs_options.py` from the files in `configs/`.

An option is set as `name=value`; a group as `group=choice`, which also sets the options below that choice. Precedence:
command line, then recipe, then the choice's own file. `null` means no value; `???` must be set. Prefix an option of
your own part with `+`.
"""


def page() -> str:
    """Return the text of docs/reference/options.md."""
    groups = [(group, list(choices)) for group, choices in groupby(all_choices(), key=lambda choice: choice.group)]
    return "\n\n".join([HEAD.rstrip(), *(section(group, choices) for group, choices in groups)]) + "\n"


def section(group: str, choices: list[Choice]) -> str:
    """Return the section of one group."""
    if not group:
        return "\n\n".join(["## General", *map(table, choices)])
    names = ", ".join(f"`{choice.name}`" for choice in choices)
    return "\n\n".join([f"## {group}", f"`{group}=` one of {names}.", *map(described, choices)])


def described(choice: Choice) -> str:
    """Return the section of one choice: its comment, what it selects, and its options."""
    selects = " ".join(f"`{group}={name}`" for group, name in choice.selects.items())
    texts = [f"### {choice.group}={choice.name}", cell(choice.comment), f"Selects {selects}." if selects else ""]
    return "\n\n".join(filter(None, [*texts, table(choice)]))


def table(choice: Choice) -> str:
    """Return the table of a choice's options, or an empty string if it has none."""
    rows = [f"| `{option.name}` | {default(option)} | {cell(option.comment)} |" for option in choice.options]
    return "\n".join(["| option | default | |", "| --- | --- | --- |", *rows]) if rows else ""


def default(option: Option) -> str:
    """Return the default as inline code, or an empty string if it is empty."""
    return f"`{option.default}`" if option.default else ""


def cell(text: str) -> str:
    """Escape a text for a table cell. Inline code (in backticks) remains markup."""
    pieces = re.split(r"(`[^`]*`)", text.replace("|", "\\|"))
    return "".join(piece if piece.startswith("`") else plain(piece) for piece in pieces)


def plain(text: str) -> str:
    """Escape the Markdown characters of a text.

    < becomes an entity, because Python's Markdown does not support a backslash before it.
    """
    return re.sub(r"([*_])", r"\\\1", text.replace("<", "&lt;"))


def main() -> int:
    """Write the page or, with --check, check that it is up to date. Return the exit code."""
    if "--check" in sys.argv[1:]:
        return 0 if PAGE.read_text() == page() else 1
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
