"""`outerloop options`: list the options of `outerloop train` with their defaults and meaning."""

from __future__ import annotations

import difflib
import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import replace

from outerloop.commands.arguments import Parser
from outerloop.config.options.option_docs import Choice, Option, all_choices
from outerloop.types import UserError

DESCRIPTION = """\
Lists the options of outerloop train with their defaults and meaning, grouped by the choice that they belong to."""
EXAMPLES = """\
examples
  outerloop options                     all options
  outerloop options schedule            the options of a group
  outerloop options recipe=diloco       one choice, and what it sets
  outerloop options sync                options and choices with this word in their name or description
"""
NAME_WIDTH = 44
"""Column where descriptions start, unless the name and default are too long for it."""


def parser() -> Parser:
    """Return the option parser."""
    out = Parser("options", example="outerloop options schedule", description=DESCRIPTION, epilog=EXAMPLES)
    out.add_argument("word", nargs="?", default="", metavar="WORD", help="a group, a choice, or a word to search for")
    return out


def main(arguments: Sequence[str]) -> int:
    """Run the command and return exit code 0. Raises UserError if nothing matches."""
    word = parser().parse_args(arguments).word.lower()
    choices = all_choices()
    if not (found := find(choices, word)):
        names = [choice.group for choice in choices] + [option.name for c in choices for option in c.options]
        close = difflib.get_close_matches(word, names, n=1)
        hint = f": run outerloop options {close[0]}" if close else ": run outerloop options to list them all"
        raise UserError(f"no option, choice or description contains {word!r}{hint}")
    width = shutil.get_terminal_size((120, 24)).columns
    print("\n\n".join("\n".join(lines(choice, width)) for choice in found))
    return 0


def find(choices: Sequence[Choice], word: str) -> list[Choice]:
    """Return the choices in the group `word`, or the choice titled `word`, such as "recipe=diloco".

    If there is no such group or choice, search: return every choice that contains the word, with its matching options
    only. An empty word returns all choices.
    """
    named = [choice for choice in choices if word in ("", choice.group, title(choice))]
    return named or [part for choice in choices if (part := matching(choice, word))]


def matching(choice: Choice, word: str) -> Choice | None:
    """Return a copy of a choice with only the options whose name or comment contains `word`.

    Return None if the word is not found in any option, nor in the title or comment of the choice.
    """
    options = [option for option in choice.options if word in f"{option.name} {option.comment}".lower()]
    in_title = bool(choice.group) and word in f"{title(choice)} {choice.comment}".lower()
    return replace(choice, options=options) if options or in_title else None


def title(choice: Choice) -> str:
    """Return the argument that selects a choice, such as "recipe=diloco", or a heading for the top-level options."""
    return f"{choice.group}={choice.name}" if choice.group else "outerloop train"


def lines(choice: Choice, width: int) -> list[str]:
    """Format a choice and its options as lines of text."""
    selects = [f"{group}={name}" for group, name in choice.selects.items() if choice.group]
    about = [choice.comment, f"Selects {' '.join(selects)}" if selects else ""]
    wrapped = [line for text in about for line in textwrap.wrap(text, width - 4)]
    body = [line for option in choice.options for line in option_lines(option, width)]
    return [title(choice), *(f"    {line}" for line in wrapped), *body]


def option_lines(option: Option, width: int) -> list[str]:
    """Format one option as lines: name and default in the first column, the description in the second."""
    name = f"  {option.name}={option.default}".ljust(NAME_WIDTH - 1)
    text = textwrap.wrap(option.comment, max(30, width - NAME_WIDTH)) or [""]
    first = [name.rstrip()] if len(name) >= NAME_WIDTH else [f"{name} {text.pop(0)}".rstrip()]
    return first + [" " * NAME_WIDTH + line for line in text if line]
