"""A folder that is replaced is old or new, wherever the process is killed."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from outerloop.state.replaced_folder import partial_path, recover_folder, replace_folder


class Killed(BaseException):
    """Ends the process at a call that it would have made."""


def written(folder: Path, content: str) -> Path:
    """A new version of the folder, whose files are written."""
    new = partial_path(folder)
    (new / "inner").mkdir(parents=True)
    (new / "inner/file").write_text(content)
    return new


@pytest.mark.parametrize(
    ("killed_at", "number", "found"),
    [("rename", 0, "old"), ("rename", 1, "old"), ("rmtree", 0, "new"), ("rmtree", 1, "new")],
)
def test_a_killed_process_leaves_one_version_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed_at: str, number: int, found: str
) -> None:
    """Killed instead of the call of this number; 1 of rmtree is after all of them."""
    folder = tmp_path / "hf"
    replace_folder(written(folder, "old"), folder)
    calls: list[Any] = []
    with monkeypatch.context() as patched:
        place: Any = Path if killed_at == "rename" else shutil
        real = getattr(place, killed_at)

        def call(*args: Any, **named: Any) -> Any:
            calls.append(args)
            if len(calls) > number:
                raise Killed
            return real(*args, **named)

        patched.setattr(place, killed_at, call)
        try:
            replace_folder(written(folder, "new"), folder)
        except Killed:
            pass
    recover_folder(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]
    assert (folder / "inner/file").read_text() == found


def test_nothing_is_found_before_the_first_version(tmp_path: Path) -> None:
    written(tmp_path / "hf", "new")
    recover_folder(tmp_path / "hf")
    assert not list(tmp_path.iterdir())
