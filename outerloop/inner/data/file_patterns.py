"""Find the files that match glob patterns."""

from __future__ import annotations

from collections.abc import Sequence
from glob import glob
from pathlib import Path

from outerloop.types import UserError


def match_files(patterns: str | Sequence[str], *, option: str) -> list[Path]:
    """Return the files that match any of the patterns, sorted by path. ** matches nested folders.

    If several paths lead to one file, only the first of them is returned.
    Raises UserError if there is no pattern, or if a pattern matches no file.
    """
    patterns = [patterns] if isinstance(patterns, str) else list(patterns)
    if not patterns:
        raise UserError(f"{option} is empty; set {option}=[FILE_OR_GLOB,...]")
    paths = sorted({path for pattern in patterns for path in _match(pattern, option)})
    return sorted({path.resolve(): path for path in reversed(paths)}.values())


def left_out(files: Sequence[Path], held_out: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """Return the training files without those that are also validation files, and notes for the user.

    Raises UserError if no file is left.
    """
    validation = {path.resolve() for path in held_out}
    training = [path for path in files if path.resolve() not in validation]
    if files and not training:
        raise UserError(
            "all of data.files, or of data.data_files, are also in data.val_files: set other validation files, or"
            " data.val_files=null to hold out 5 % of the text"
        )
    count, first = len(files) - len(training), next((path for path in files if path.resolve() in validation), None)
    more = f" and {count - 1} more" if count > 1 else ""
    notes = [f"{first}{more}, also in data.val_files: left out of the training files"] if count else []
    return training, notes


def _match(pattern: str, option: str) -> list[Path]:
    names = glob(str(Path(pattern).expanduser()), recursive=True)  # noqa: PTH207  (Path.glob takes no absolute pattern)
    paths = [Path(name) for name in names]
    files = [path for path in paths if path.is_file()]
    if not files:
        raise UserError(
            f"{option}: {pattern} matches no file in {Path.cwd()}; give a path or a glob such as '/data/**/*.txt'"
        )
    return files
