"""The testbed: hosts that reach each other at the rate they are given, and of which nothing stays."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from namespaces import SCRIPT, Network, lacking

RATE_MBIT = 20
SIZE = 2_000_000
BURST = 256 * 1024
GIVE = f"""
import socket
server = socket.create_server(("", 7000))
print("listens", flush=True)
server.accept()[0].sendall(bytes({SIZE}))
"""
TAKE = """
import socket, sys, time
began_s, taken = time.monotonic(), 0
with socket.create_connection((sys.argv[1], 7000)) as peer:
    while piece := peer.recv(1 << 16):
        taken += len(piece)
print(taken, time.monotonic() - began_s)
"""


@pytest.fixture
def net() -> Iterator[Network]:
    """Without hosts; none are left at the end."""
    if reason := lacking():
        pytest.skip(reason)
    made = Network(f"{os.getpid()}-test")
    yield made
    made.down()
    assert spaces(made) == []


def spaces(net: Network) -> list[str]:
    listed = subprocess.run(["ip", "netns", "list"], check=True, capture_output=True, text=True).stdout.splitlines()
    return sorted(line.split()[0] for line in listed if line.startswith(f"outerloop-{net.name}-"))


def start(net: Network, host: int, *command: str) -> subprocess.Popen[str]:
    """A command that has begun on a host, which it says with a line."""
    process = subprocess.Popen(net.inside(host, command), stdout=subprocess.PIPE, text=True)
    assert process.stdout and process.stdout.readline()
    return process


def test_hosts_reach_each_other_and_no_faster_than_they_may(net: Network) -> None:
    net.up(3, "--rate", f"{RATE_MBIT}mbit")
    with start(net, 0, sys.executable, "-c", GIVE):
        take = net.inside(2, [sys.executable, "-c", TAKE, net.address(0)])
        taken, took_s = map(float, subprocess.check_output(take, text=True).split())
    least_s = (SIZE - 2 * BURST) * 8 / (RATE_MBIT * 1e6)  # a bucket on the way up, another one on the way down
    assert taken == SIZE and took_s > least_s


def test_a_second_start_clears_what_a_crashed_one_left(net: Network) -> None:
    net.up(3)
    process = start(net, 2, "sh", "-c", "echo here; exec sleep 600")
    net.up(1)
    assert process.wait(10) == -9
    assert spaces(net) == [f"outerloop-{net.name}-0", f"outerloop-{net.name}-hub"]


def test_names_that_begin_alike_are_other_hosts(net: Network) -> None:
    longer = Network(f"{net.name}-2")
    net.up(1)
    longer.up(1)
    net.down()
    assert len(spaces(longer)) == 2
    longer.down()


def test_delay_is_had_or_refused(net: Network) -> None:
    try:
        net.up(1, "--delay", "10ms", "--loss", "0.1%")
    except subprocess.CalledProcessError as error:
        assert error.returncode == 2 and "no netem" in error.stderr and spaces(net) == []
    else:
        shown = subprocess.check_output(net.inside(0, ["tc", "qdisc", "show", "dev", "eth0"]), text=True)
        assert "netem" in shown and "10ms" in shown and "0.1%" in shown


def told_by_up(folder: Path, number: int, path: str) -> subprocess.CompletedProcess[str]:
    """What `up` says to the user of that number, who has what lies in `folder` and on `path`."""
    (folder / "id").write_text(f"#!/bin/sh\necho {number}\n")
    (folder / "id").chmod(0o755)
    return subprocess.run([SCRIPT, "up", "2"], capture_output=True, text=True, env={"PATH": f"{folder}:{path}"})


@pytest.mark.parametrize("missing", ["ip", "tc"])
def test_a_missing_tool_is_named(tmp_path: Path, missing: str) -> None:
    for tool in {"bash", "ip", "tc"} - {missing}:
        (tmp_path / tool).symlink_to(shutil.which(tool) or "/bin/true")
    told = told_by_up(tmp_path, 0, "")
    assert told.returncode == 2 and told.stderr == f"wan.sh: {missing} is missing: run apt-get install iproute2\n"


def test_a_user_other_than_root_is_told_so(tmp_path: Path) -> None:
    told = told_by_up(tmp_path, 1000, os.environ["PATH"])
    assert told.returncode == 2 and told.stderr == "wan.sh: network namespaces need root: run sudo scripts/wan.sh\n"
