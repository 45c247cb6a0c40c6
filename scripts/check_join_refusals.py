"""Show what `outerloop join` prints when it refuses: one line that states what was found and what to do, exit code 2.

    sudo .venv/bin/python scripts/check_join_refusals.py [--json FILE]

This checkout is installed as a wheel, and twice more with edits: with another setting, and with another setting and
another version. Hosts are network namespaces (scripts/wan.sh). The newcomer types `outerloop join ADDRESS` on a
terminal of a host with an empty home folder (scripts/join_refusals.py lists the cases). Needs cgroup version 1 for the
memory limit. Exit code 1 if a newcomer is not refused as expected.

    refused    whether the exit code is 2, and the terminal shows one line, which is that of the case
    first_s    seconds from the start of the command until the first output
    seconds    seconds until the command has ended
    cpu_s      CPU time of the command; the difference to first_s is waiting, on a busy machine also for a core
    load       load average of the machine (one minute) when the command ended
"""

from __future__ import annotations

import argparse
import json
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from join_refusals import EXPECTED, HOSTS, SCENES, WHEELS, Scene
from namespaces import network, ready_or_exit
from result_rows import Row, show
from terminal import Shown
from wheel_environment import wheel_environment

from outerloop.state.checkpoint import write_atomically


def is_refused(case: str, shown: Shown) -> bool:
    """Return whether the terminal shows nothing but the line of this case, and the exit code is 2."""
    line = rf"outerloop: .*{EXPECTED[case]}.*"
    return shown.exit_code == 2 and len(shown.lines) == 1 and bool(re.fullmatch(line, shown.lines[0]))


def rows() -> Iterator[Row]:
    """Yield the result of each case."""
    with tempfile.TemporaryDirectory() as folder:
        pythons = {name: wheel_environment(Path(folder) / name, edits) for name, edits in WHEELS.items()}
        for scene in SCENES:
            place = Path(folder) / scene.__name__
            place.mkdir()
            with network(HOSTS) as hosts:
                for case, shown in scene(Scene(place, pythons, hosts)):
                    yield row(case, shown)


def row(case: str, shown: Shown) -> Row:
    """Return the record of a case."""
    return {
        "case": case,
        "refused": is_refused(case, shown),
        "exit_code": shown.exit_code,
        "first_s": shown.first_s,
        "seconds": shown.seconds,
        "cpu_s": shown.cpu_s,
        "load": os.getloadavg()[0],
        "printed": shown.text,
    }


def main() -> None:
    """Print and store a row for each case. Raises SystemExit with code 1 if a newcomer is not refused as expected."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    ready_or_exit()
    found = []
    for one in rows():
        found.append(one)
        show(one, but=["printed"])
        print(one["printed"])
        if args.json:
            write_atomically(args.json, (json.dumps(found, indent=1, ensure_ascii=False) + "\n").encode())
    if wrong := [one["case"] for one in found if not one["refused"]] + [
        *EXPECTED.keys() - {one["case"] for one in found}
    ]:
        raise SystemExit(f"not refused as expected: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
