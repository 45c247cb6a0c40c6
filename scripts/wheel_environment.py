"""Install this checkout as a wheel, with or without edits, into a new environment.

The environment imports the dependencies from that of the calling interpreter, so nothing is downloaded. For a test of
the dependencies that the wheel names, see scripts/test_wheel.sh.
"""

from __future__ import annotations

import shutil
import site
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).absolute().parents[1]
PACKAGED = ("outerloop", "configs", "pyproject.toml", "README.md", "LICENSE")


@dataclass(frozen=True)
class Edit:
    """A text that occurs once in a file of the checkout, and its replacement."""

    file: str
    old: str
    new: str


def wheel_environment(folder: Path, edits: Sequence[Edit] = ()) -> str:
    """Create an environment in a new folder, with the edited checkout installed, and return its interpreter."""
    copy_sources(folder / "source")
    for edit in edits:
        apply(edit, folder / "source")
    run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder, cwd=folder / "source")
    run(sys.executable, "-m", "venv", "--without-pip", folder / "venv")
    python = folder / "venv/bin/python"
    (wheel,) = folder.glob("*.whl")
    pip = (sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check")
    run(*pip, "install", "--quiet", "--no-index", "--no-deps", wheel)
    (packages,) = (folder / "venv").glob("lib/*/site-packages")
    (packages / "dependencies.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    return str(python)


def copy_sources(folder: Path) -> None:
    """Copy the files of the checkout that a wheel is built from."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *PACKAGED]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)


def apply(edit: Edit, folder: Path) -> None:
    """Replace the text in the file. Raises ValueError unless it occurs exactly once."""
    file = folder / edit.file
    text = file.read_text()
    if text.count(edit.old) != 1:
        raise ValueError(f"{edit.old!r} occurs {text.count(edit.old)} times in {edit.file}")
    file.write_text(text.replace(edit.old, edit.new))


def run(*command: object, cwd: Path | None = None) -> None:
    """Run a command. Raises CalledProcessError if it fails."""
    subprocess.run([*map(str, command)], cwd=cwd, check=True, stdout=subprocess.DEVNULL)
