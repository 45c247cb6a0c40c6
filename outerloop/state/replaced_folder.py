"""Replace a folder so that neither a killed process nor a power failure leaves an incomplete one.

.NAME.partial-<id>    the new folder while its files are written
.NAME.old-<id>        the previous folder, until the new one has its name
"""

from __future__ import annotations

import os
import shutil
import uuid
from pathlib import Path

from outerloop.state.durable import sync_folder


def partial_path(folder: Path) -> Path:
    """Return a new path next to `folder`, at which its replacement is written."""
    return folder.with_name(f".{folder.name}.partial-{uuid.uuid4().hex[:8]}")


def replace_folder(new: Path, folder: Path) -> None:
    """Sync `new` to disk, rename it to `folder`, then delete the previous folder. `new` is a path by `partial_path`."""
    sync_files(new)
    old = new.with_name(new.name.replace(".partial-", ".old-"))
    if folder.exists():
        folder.rename(old)
    new.rename(folder)
    sync_folder(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def recover_folder(folder: Path) -> None:
    """Remove what killed calls of `replace_folder` left. If `folder` itself is missing, restore the previous one."""
    for old in folder.parent.glob(f".{folder.name}.old-*"):
        if folder.exists():
            shutil.rmtree(old)
        else:
            old.rename(folder)
    for partial in folder.parent.glob(f".{folder.name}.partial-*"):
        shutil.rmtree(partial)


def sync_files(folder: Path) -> None:
    """Flush all files below a folder to disk, and the folders that list them."""
    for path in folder.rglob("*"):
        if path.is_dir():
            sync_folder(path)
        else:
            with path.open("rb") as file:
                os.fsync(file.fileno())
    sync_folder(folder)
