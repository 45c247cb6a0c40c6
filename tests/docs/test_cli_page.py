"""docs/reference/cli.md has every command, and every option of its parser."""

import re
from importlib import import_module
from pathlib import Path

import pytest

from outerloop.commands import main

PAGE = (Path(__file__).parents[2] / "docs/reference/cli.md").read_text()
PARSED = [name for name, module in main.MODULES.items() if hasattr(import_module(module), "parser")]


def part_of(command: str) -> str:
    (part,) = (part for part in PAGE.split("\n## ") if part.startswith(f"{command}\n"))
    return part


@pytest.mark.parametrize("command", PARSED)
def test_every_option_of_a_command_is_on_the_page(command):
    help_text = import_module(main.MODULES[command]).parser().format_help()
    options = set(re.findall(r"^  (?:-\w, )?(--[a-z-]+)", help_text, re.MULTILINE))
    assert set(re.findall(r"`(--[a-z-]+)", part_of(command))) == options - {"--help"}


def test_every_command_is_on_the_page():
    commands = {*main.MODULES} - {*main.HIDDEN}
    assert set(re.findall(r"^## (\S+)$", PAGE, re.MULTILINE)) == commands
