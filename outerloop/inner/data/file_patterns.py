"""Find the files that match glob patterns."""

from __future__ import annotations

from collections.abc import Sequence
from glob import glob
from pathlib import Path

from outerloop.types import UserError


def match_files(patterns: str | Sequence[str], *, option: str) -> list[Path]:
    """Return the files that match any of the patterns, without duplicates, sorted by path. ** matches nested folders.

    Raises UserError if there is no pattern, or if a pattern matches no file.
    """
    patterns = [patterns] if isinstance(patterns, str) else list(patterns)
    if not patterns:
        raise UserError(f"{option} is empty; set {option}=[FILE_OR_GLOB,...]")
    return sorted({path for pattern in patterns for path in _match(pattern, option)})


def _match(pattern: str, option: str) -> list[Path]:
    names = glob(str(Path(pattern).expanduser()), recursive=True)  # noqa: PTH207  (Path.glob takes no absolute pattern)
    paths = [Path(name) for name in names]
    files = [path for path in paths if path.is_file()]
    if not files:
        raise UserError(
            f"{option}: {pattern} matches no file in {Path.cwd()}; give a path or a glob such as '/data/**/*.txt'"
        )
    return files
