"""Run p2pd, hivemind's libp2p daemon, as a child process that is never orphaned and is not affected by Ctrl-C.

This module launches p2pd itself, because three problems arise if hivemind launches it:

- A Ctrl-C in the terminal would reach p2pd as well, and race with this peer's shutdown. So p2pd runs in a separate
  session.
- A kill -9 of the worker would leave p2pd running. So the kernel is asked to kill p2pd when the *thread* that launched
  p2pd ends (PR_SET_PDEATHSIG). p2pd must be launched from the network thread, which lives as long as the process.
- QUIC must be off: over QUIC, 82-100 % of hivemind's streams silently lose their tail. So p2pd listens on TCP only.

A small Python program makes the request to the kernel and then replaces itself with p2pd, which takes 16 ms.
`preexec_fn` of the subprocess module is not used: it would run Python between fork and exec in a process with many
threads, and copy the trainer's page tables.
"""

from __future__ import annotations

import asyncio
import errno
import importlib.resources
import ipaddress
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hivemind.utils.multiaddr import Multiaddr

from outerloop.swarm.timeouts import BOOTSTRAP_S, RELAUNCH_S, START_S, STOP_S, limit
from outerloop.types import UserError, printable

logger = logging.getLogger(__name__)

# argv: the parent's pid, then the command. 1 is PR_SET_PDEATHSIG, 9 is SIGKILL.
# If the parent has already exited, p2pd is not started, because it would never receive that signal.
DIE_WITH_PARENT = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""
MESSAGE_BYTES = 3 << 19
"""Maximum size of a DHT message sent or received: the largest answer (storage.py) plus overhead. p2pd drops larger
messages."""
PORT_POLL_S = 0.1
NO_BOOTSTRAP = "failed to connect to bootstrap peers"


@dataclass(frozen=True, kw_only=True)
class DaemonOptions:
    """A daemon's listening address, identity and initial peers.

    `observer`: whether the daemon belongs to an observer, whose DHT node sends requests but answers none.
    """

    identity_path: Path
    host: str
    port: int
    announce: Sequence[str]
    initial_peers: Sequence[str]
    open_internet: bool
    observer: bool = False

    def __post_init__(self) -> None:
        check_addresses("initial_peers", self.initial_peers, must_name="p2p")
        check_addresses("announce", self.announce, must_name="tcp")
        try:
            ipaddress.ip_address(self.host)
        except ValueError as error:
            raise UserError(
                f"host={self.host} is not an IP address; set exchange.host=0.0.0.0 for all interfaces"
            ) from error


def check_addresses(option: str, addresses: Sequence[str], *, must_name: str) -> None:
    """Check that each address is a multiaddr that contains the protocol `must_name`. Raises UserError if not."""
    for address in addresses:
        try:
            Multiaddr(address)[must_name]
        except (ValueError, LookupError) as error:
            example = "/ip4/192.0.2.1/tcp/4001" + ("/p2p/12D3Koo..." if must_name == "p2p" else "")
            raise UserError(f"{option}: {address!r} is not a full address like {example}") from error


class NoPeerAnswers(UserError):
    """Raised if none of the initial peers answers."""


class _NotUp(Exception):
    """p2pd exited or did not become ready in time. The message is p2pd's last output line, or the reason."""


class Daemon:
    """One p2pd process. `control` is the multiaddr of its control socket."""

    def __init__(self, process: asyncio.subprocess.Process, control: str) -> None:
        self.control = control
        self.pid = process.pid
        self._process = process
        self._last_line = ""
        self._stopping = False
        self._log_task: asyncio.Task[None] | None = None

    async def ready(self) -> None:
        while not self._last_line.startswith("Peer ID:"):
            if not await self._next_line():
                raise _NotUp(self._last_line)
        self._log_task = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        """Stop the process with SIGTERM, or with SIGKILL if it still runs after STOP_S, and wait until it has ended."""
        self._stopping = True
        try:
            async with limit(STOP_S):
                await self._end_by(signal.SIGTERM)
        except TimeoutError:
            await self._end_by(signal.SIGKILL)
        if self._log_task is not None:
            await self._log_task

    async def _end_by(self, number: signal.Signals) -> None:
        if self._process.returncode is None:
            with suppress(ProcessLookupError):  # not send_signal(), which may reap the child before asyncio does
                os.kill(self.pid, number)
        await self._process.wait()

    async def _watch(self) -> None:
        while await self._next_line():
            logger.debug("p2pd: %s", self._last_line)
        if not self._stopping:
            logger.error("p2pd exited unexpectedly, so this peer is disconnected: %s", self._last_line)

    async def _next_line(self) -> bool:
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if line:
            self._last_line = printable(line.decode(errors="replace").strip())
        return bool(line)


async def launch(options: DaemonOptions, folder: Path) -> Daemon:
    """Start a daemon, and return it once it has reached an initial peer (if it has any).

    The initial peers may still be starting, so this retries for BOOTSTRAP_S. Raises UserError if p2pd does not start,
    and NoPeerAnswers if no initial peer answers.
    """
    now_s = asyncio.get_running_loop().time
    begun_s = now_s()
    await wait_for_port(options.host, options.port)
    while True:
        try:
            return await _launch_once(options, folder, begun_s + START_S - now_s())
        except _NotUp as error:
            if NO_BOOTSTRAP not in str(error):
                raise UserError(f"p2pd did not start on {options.host}:{options.port}: {error}") from error
            if now_s() - begun_s > BOOTSTRAP_S:
                raise unreachable(options.initial_peers) from error
        await asyncio.sleep(RELAUNCH_S)


async def wait_for_port(host: str, port: int) -> None:
    """Wait until no program listens on a port. libp2p would share the port, and streams would reach that program.

    Raises UserError after STOP_S, which is as long as a previous peer on this port may take to stop.
    """
    try:
        async with limit(STOP_S):
            while port and _is_taken(host, port):
                await asyncio.sleep(PORT_POLL_S)
    except TimeoutError as error:
        raise UserError(
            f"another program on this machine listens on {host}, port {port}: set exchange.port= to another port, or"
            " to 0 for any free one; each worker of a machine needs its own"
        ) from error


def _is_taken(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # ignore recently closed connections
        try:
            trial.bind((host, port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE  # p2pd will report other errors
    return False


def unreachable(initial_peers: Sequence[str]) -> NoPeerAnswers:
    return NoPeerAnswers(
        f"no initial peer answers at {', '.join(initial_peers)}; is one running, and are its host and port open? "
        "Give an address that a running peer printed; for a run, set exchange.initial_peers=[...]"
    )


async def _launch_once(options: DaemonOptions, folder: Path, limit_s: float) -> Daemon:
    control = f"/unix{folder}/p2pd.sock"
    (folder / "p2pd.sock").unlink(missing_ok=True)  # left by the previous attempt
    daemon = Daemon(await _spawn([str(_binary()), *arguments(options, control)]), control)
    try:
        async with limit(limit_s):
            await daemon.ready()
    except TimeoutError as error:
        await daemon.stop()
        raise _NotUp(NO_BOOTSTRAP if options.initial_peers else f"no output within {limit_s:.0f} s") from error
    except BaseException:
        await daemon.stop()
        raise
    return daemon


async def _spawn(command: list[str]) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", "-c", DIE_WITH_PARENT, str(os.getpid()), *command),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
        env={"GOLOG_LOG_LEVEL": "error", **os.environ},
    )


def _binary() -> Path:
    return Path(str(importlib.resources.files("hivemind.hivemind_cli"))) / "p2pd"


def arguments(options: DaemonOptions, control: str) -> list[str]:
    """Return p2pd's command-line flags. NAT traversal and relays are enabled only if `open_internet` is set."""
    outside = int(options.open_internet)
    family = f"ip{ipaddress.ip_address(options.host).version}"
    flags = {
        "listen": control,
        "id": options.identity_path,
        "hostAddrs": f"/{family}/{options.host}/tcp/{options.port}",
        "dhtClient" if options.observer else "dhtServer": 1,
        "connManager": 1,
        "idleTimeout": "30s",
        "persistentConnMaxMsgSize": MESSAGE_BYTES,
        **dict.fromkeys(("relay", "autoRelay", "autonat", "natPortMap"), outside),
    }
    if options.initial_peers:
        flags |= {"b": 1, "bootstrapPeers": ",".join(options.initial_peers)}
    if options.announce:
        flags |= {"announceAddrs": ",".join(options.announce)}
    return [f"-{name}={value}" for name, value in flags.items()]
