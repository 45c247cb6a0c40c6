"""List the package files whose code runs during one gather round: the files to read to follow a round.

    .venv/bin/python scripts/count_round_files.py [--round 3] [option=value ...]

Two workers, each a peer of its own, train a tiny model on this machine with `recipe=sparseloco exchange=swarm_gather`.
The script observes all function calls in all of their threads while OuterLoop.after_inner_step launches the round.
Without a delay, the same call also lands the round. The script prints the union over both peers, one line per
package. Files that only define values (types, protocols, timeouts) do not appear, as they have no functions to call.
Compiled loops are not observed either, but the functions that call them are.
"""

from __future__ import annotations

import argparse
import atexit
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from outerloop.state.checkpoint import write_atomically

PACKAGE = Path(__file__).parents[1] / "outerloop"
PEERS = 2
OPTIONS = (
    *("recipe=sparseloco", "exchange=swarm_gather", f"workers={PEERS}", "rounds=6", "schedule.sync_every=5"),
    *("model=nano", "inner.batch=2", "eval.sequences=2"),
)


class Recorder:
    """A profiling hook that records the files whose functions run during each call of OuterLoop.after_inner_step."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self._files: set[str] | None = None

    def __call__(self, frame: Any, event: str, argument: Any) -> None:
        code = frame.f_code
        if not code.co_filename.startswith(str(PACKAGE)) or event not in ("call", "return"):
            return
        is_step = code.co_name == "after_inner_step" and code.co_filename.endswith("core/loop.py")
        if event == "call":
            if is_step:
                self._files = set()
            if self._files is not None:
                self._files.add(code.co_filename)
        elif is_step and self._files is not None:
            self.calls.append(sorted(self._files))
            self._files = None

    def save(self, folder: str) -> None:
        if self.calls:
            write_atomically(Path(folder) / f"{os.getpid()}.json", json.dumps(self.calls).encode())


def record(folder: str) -> None:
    """Observe all threads of this process until it exits, then save the recorded files to `folder`."""
    recorder = Recorder()
    threading.setprofile(recorder)
    sys.setprofile(recorder)
    atexit.register(recorder.save, folder)


def files_of_round(calls: list[list[str]], number: int) -> set[str]:
    """Return the files that run in round `number`. A round is run by a call that reaches the swarm exchange."""
    launches = [files for files in calls if any("/exchange/" in file and "swarm" in file for file in files)]
    rounds = [files for files in launches if any(file.endswith("core/land.py") for file in files)]
    return set(rounds[number])


def main() -> None:
    """Run the two peers and print the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--round", type=int, default=3)
    parser.add_argument("options", nargs="*")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        hook = Path(folder) / "sitecustomize.py"
        hook.write_text(f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n")
        hook.write_text(hook.read_text() + f"from {Path(__file__).stem} import record; record({folder!r})\n")
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")])}
        command = [
            sys.executable,
            "-c",
            "from outerloop.commands.main import entry; entry()",
            "train",
            *OPTIONS,
            f"run_dir={folder}/run",
        ]
        subprocess.run([*command, *args.options], env=environment, check=True, stdout=sys.stderr)
        while len(found := sorted(Path(folder).glob("*.json"))) < PEERS:  # a peer can exit after the command
            time.sleep(0.1)
        peers = [json.loads(path.read_text()) for path in found]
    files = set().union(*(files_of_round(calls, args.round) for calls in peers))
    print_files(sorted(str(Path(file).relative_to(PACKAGE)) for file in files))


def print_files(files: list[str]) -> None:
    """Print the files by folder, and their total number."""
    folders = Counter(str(Path(file).parent) for file in files)
    for folder, count in sorted(folders.items()):
        names = " ".join(Path(file).stem for file in files if str(Path(file).parent) == folder)
        print(f"{folder:28} {count:3}  {names}")
    print(f"{len(files)} files")


if __name__ == "__main__":
    main()
