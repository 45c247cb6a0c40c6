"""Measure the time from `outerloop join ADDRESS` on a machine with an empty home folder to its first counted payload.

    sudo .venv/bin/python scripts/bench_open_run.py --python FILE [--rate MBIT] [--delay 20ms] [--runs 3]
        [--json FILE] [option=value ...]

--python is the interpreter of an environment in which the wheel is installed (see scripts/test_wheel.sh). `outerloop
host` and `outerloop join` run on two hosts of their own (scripts/wan.sh), with links of the given rate and delay. The
newcomer's home folder is empty before each run, and the only command there is `join ADDRESS --yes`. Options are those
of `outerloop host`.

    state_s             time from the command until the newcomer holds the state of the run
    counted_s           time from the command until the first round that contains its payload has landed there
    received_megabytes  received on the newcomer's link until it held the state
    at_link_s           time that the link needs for these bytes
    over_s              counted_s - at_link_s
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import time
from pathlib import Path

from namespaces import Network, network, ready_or_exit
from open_run import HOST, NEWCOMER, address_in, has, start, wait_for
from result_rows import Row, show

from outerloop.state.checkpoint import write_atomically

NAME = "bench"


def received_bytes(hosts: Network) -> int:
    """Return the number of bytes that the newcomer's link has received."""
    command = hosts.inside(NEWCOMER, ["cat", "/proc/net/dev"])
    devices = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return int(devices.partition("eth0:")[2].split()[0])


def measure(args: argparse.Namespace, folder: Path, hosts: Network, bits_per_s: float) -> Row:
    """Start a host and, once it trains alone, a newcomer. Return the newcomer's times."""
    options = ["--name", NAME, "--host", hosts.address(HOST), "exchange.peers=1", *args.options]
    host = start(hosts, HOST, folder / "host", args.python, "host", *options)
    try:
        address = wait_for(lambda: address_in(folder / "host/output"), host, folder / "host/output")
        wait_for(lambda: has(folder / f"host/runs/{NAME}", "round"), host, folder / "host/output")
        already, began = received_bytes(hosts), time.monotonic()
        newcomer = start(hosts, NEWCOMER, folder / "home", args.python, "join", address, "--yes")
        run_dir, output = folder / f"home/runs/join-{NAME}", folder / "home/output"
        wait_for(lambda: has(run_dir, "state"), newcomer, output)
        state_s, received = time.monotonic() - began, received_bytes(hosts) - already
        wait_for(lambda: has(run_dir, "round", peers=2), newcomer, output)
        counted_s = time.monotonic() - began
    finally:
        hosts.down()
        host.wait()
    at_link_s = received * 8 / bits_per_s
    row = {"state_s": state_s, "counted_s": counted_s, "received_megabytes": received / 1e6, "at_link_s": at_link_s}
    return row | {"over_s": counted_s - at_link_s}


def main() -> None:
    """Measure several joins, each in a new run, and print a row of results for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="interpreter with the installed wheel")
    parser.add_argument("--rate", type=int, default=100, metavar="MBIT", help="rate of each link; default: 100")
    parser.add_argument("--delay", default="0ms", help="delay of each packet; default: 0ms")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("options", nargs="*", help="options of outerloop host")
    args = parser.parse_intermixed_args()
    ready_or_exit()
    rows = []
    for _ in range(args.runs):
        link = ("--rate", f"{args.rate}mbit", *(() if args.delay == "0ms" else ("--delay", args.delay)))
        with tempfile.TemporaryDirectory() as folder, network(2, *link) as hosts:
            row = measure(args, Path(folder), hosts, args.rate * 1e6)
        settings = {"rate_mbit": args.rate, "delay": args.delay, "options": args.options, "cpus": os.cpu_count()}
        rows.append(settings | row)
        show(rows[-1])
        if args.json:
            write_atomically(args.json, (json.dumps(rows, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
