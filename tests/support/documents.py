"""The pages for users, README.md and docs/**/*.md: their fenced blocks, commands and options, with page and line.

A comment on the line before a block keeps it from being run, and says why: `<!-- not run: needs SLURM -->`.
"""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(
    r"^(?:[ ]*<!-- not run: (?P<reason>[^\n]+?) -->\n)?(?P<indent>[ ]*)```(?P<language>\w+)(?P<info>[^\n]*)\n"
    r"(?P<text>.*?)^(?P=indent)```[ ]*$",
    flags=re.DOTALL | re.MULTILINE,
)
OPTION = r'[a-z][a-z_.]*=(?!True|False)[^\s`"]+'


@dataclass(frozen=True)
class Block:
    """A fenced block. `title`: the file whose text it is, or empty. `reason`: why it is not run, or empty."""

    page: str
    line: int
    language: str
    title: str
    reason: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def commands(self) -> list[list[str]]:
        """The words of each command of a bash block, without those that start with a comment."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [words for words in (shlex.split(line, comments=True) for line in lines) if words]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks_of(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for fence in FENCE.finditer(text):
        title = re.search(r'title="([^"]+)"', fence["info"])
        yield Block(
            page=name_of(page),
            line=text.count("\n", 0, fence.start("indent")) + 1,
            language=fence["language"],
            title=title[1] if title else "",
            reason=fence["reason"] or "",
            text=textwrap.dedent(fence["text"]),
        )


def prose_of(page: Path) -> str:
    """The page without its blocks, and with a word for each placeholder in angle brackets."""
    return re.sub(r"<[^>\n]*>", "here", FENCE.sub("", page.read_text()))


def options_of(page: Path) -> Iterator[list[str]]:
    """The options in each piece of inline code that holds nothing else."""
    yield from (words.split() for words in re.findall(rf'`"?({OPTION}(?: {OPTION})*)"?`', prose_of(page)))


BLOCKS = [block for page in PAGES for block in blocks_of(page)]
