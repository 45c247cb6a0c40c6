"""`outerloop watch`: show a run, a swarm or a sweep as a live web page."""

from __future__ import annotations

import os
import signal
import sys
import threading
from argparse import SUPPRESS
from collections.abc import Sequence
from pathlib import Path

from outerloop.commands.arguments import Parser, check_listen_address
from outerloop.commands.watch.sources import source_of
from outerloop.launcher.interrupts import Terminated, raise_terminated

DESCRIPTION = """\
Serves a live page of a run, a swarm or a sweep. It only observes: it takes no part in any round and changes no file.
The page needs nothing from any other server."""

EXAMPLES = """\
examples
  outerloop watch runs/mine                                  a run on this machine, running or finished
  outerloop watch /ip4/198.51.100.7/tcp/4242/p2p/12D3Koo...  all peers of a swarm; the address that a peer printed
  outerloop watch runs/2026-11-21_03-58-52-sweep             a sweep (train -m), or any folder that contains runs
  outerloop watch runs/mine --host 0.0.0.0 --port 80         for other machines too: anyone who can connect can read it

other forms of the page
  curl http://127.0.0.1:8080/                plain text
  http://127.0.0.1:8080/status.json          for programs; its schema is /status.schema.json
  http://127.0.0.1:8080/metrics              for Prometheus

Only this machine can connect, unless --host says otherwise. There is no login: to read the page from elsewhere, prefer
ssh -L 8080:127.0.0.1:8080 MACHINE."""


def parser() -> Parser:
    """Return the option parser."""
    out = Parser("watch", example="outerloop watch RUN_DIR", description=DESCRIPTION, epilog=EXAMPLES)
    out.add_argument("what", metavar="ADDRESS|DIR", help="address of a running peer, a run directory, or a sweep")
    out.add_argument("--host", default="127.0.0.1", help="IP address to listen on (default: 127.0.0.1)")
    out.add_argument("--port", type=int, default=8080, help="TCP port, or 0 for any free port (default: 8080)")
    out.add_argument(
        "--allow-name",
        action="append",
        default=[],
        metavar="NAME",
        help="host name by which browsers may call this server, in addition to IP addresses and localhost",
    )
    out.add_argument("--stop-with-input", action="store_true", help=SUPPRESS)  # for `outerloop train watch=PORT`
    out.add_argument("--run", metavar="NAME", help="exchange.run of the peer (default: the peer is asked)")
    out.add_argument("--run-dir", type=Path, metavar="DIR", help="run_dir of the peer, if the run has exchange.allow")
    return out


def main(arguments: Sequence[str]) -> int:
    """Run the command until it is stopped. Return exit code 0 after Ctrl-C.

    Raises UserError if an option is invalid, if there is nothing to watch, or if the port cannot be used.
    """
    options = parser().parse_args(arguments)
    check_listen_address(options.host, options.port)
    from outerloop.watch.serve import serve

    signal.signal(signal.SIGTERM, raise_terminated)
    if options.stop_with_input:
        threading.Thread(target=stop_with_input, daemon=True).start()
    with source_of(options) as source:
        try:
            serve(source, host=options.host, port=options.port, names=options.allow_name, show=show_address)
        except Terminated:
            if not options.stop_with_input:
                raise
        except KeyboardInterrupt:
            pass
    return 0


def stop_with_input() -> None:
    """Ask this process to end once its standard input is closed, which happens if its parent process is gone."""
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)


def show_address(address: str) -> None:
    """Print the address of the page."""
    print(f"watch {address}  (Ctrl-C ends the page, not the run)", flush=True)
