"""`outerloop doctor`: can this machine take part, and if not, what to type. One line a check."""

from __future__ import annotations

import ipaddress
import signal
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

from outerloop.commands.arguments import Parser
from outerloop.commands.doctor import identities, machine, network
from outerloop.commands.doctor.finding import Finding
from outerloop.swarm.p2p.daemon import check_addresses
from outerloop.swarm.validation import MAX_PEERS
from outerloop.types import UserError

DESCRIPTION = """\
Checks whether this machine can take part in a run, before one is started: versions, disk, memory, open files, GPU, the
network daemon, the addresses that others would be given, and with --peer the way to a running peer. One line a check:
✓ well, ✗ not, with what to do, ? could not be told or depends on what is wanted. Exit code 1 when there is a ✗."""

EXAMPLES = """\
examples
  outerloop doctor                                 this machine alone
  outerloop doctor --host 0.0.0.0 --port 4242      with the exchange.host and exchange.port of the run
  outerloop doctor --host 0.0.0.0 --port 4242 --announce /ip4/198.51.100.7/tcp/4242
  outerloop doctor --peer /ip4/198.51.100.7/tcp/4242/p2p/12D3Koo...
                       and the way to a peer: its id, round trip, bandwidth, clock, where it sees this machine
  outerloop doctor --run-dir runs/mine --workers 2
                       and the peer ids that two workers of run_dir=runs/mine will have, for exchange.allow of others

what it does
  It starts p2pd for a few seconds and dials it from a second one on this machine; that says nothing about firewalls and
  routers between this machine and others. A peer is dialled at its address, asked for the time, sent 1 MB and asked for
  1 MB; it grants 8 such probes a minute to all who ask. Nobody else is asked, and nothing stays behind
  but the keys of --run-dir, where they were not there yet."""


def parser() -> Parser:
    """The options."""
    out = Parser("doctor", example="outerloop doctor", description=DESCRIPTION, epilog=EXAMPLES)
    out.add_argument("--peer", action="append", default=[], metavar="ADDR", help="a running peer's address; repeatable")
    out.add_argument("--run-dir", type=Path, metavar="DIR", help="show the peer ids of this run's workers; makes them")
    out.add_argument("--workers", type=int, default=1, metavar="N", help="... of so many (default: 1)")
    out.add_argument("--host", default="127.0.0.1", help="where a run would listen (default: 127.0.0.1, as in a run)")
    out.add_argument("--port", type=int, default=0, help="the TCP port that it would take (default: 0, any)")
    out.add_argument(
        "--announce", action="append", default=[], metavar="ADDR", help="an address others would be given; repeatable"
    )
    return out


def main(arguments: Sequence[str]) -> int:
    """Exit code 0, or 1 when something is not well. Raises UserError."""
    options = parser().parse_args(arguments)
    check_addresses("--peer", options.peer, must_name="p2p")
    check_addresses("--announce", options.announce, must_name="tcp")
    if not 0 <= options.port <= 65535:
        raise UserError(f"--port {options.port} is no port: type one from 1 to 65535, or 0 for any")
    try:
        ipaddress.ip_address(options.host)
    except ValueError as error:
        raise UserError(f"--host {options.host} is no IP address: type --host 0.0.0.0 for all interfaces") from error
    if not 1 <= options.workers <= MAX_PEERS:
        raise UserError(f"--workers {options.workers} is none: type a number from 1 to {MAX_PEERS}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ended from outside: the same clean way out as Ctrl-C
    network_findings = network.findings(
        host=options.host, port=options.port, announce=options.announce, peers=options.peer
    )
    with closing(network_findings):
        own = identities.findings(options.run_dir, options.workers) if options.run_dir else iter(())
        return tell([machine.findings(), own, network_findings])


def tell(parts: Sequence[Iterator[Finding]]) -> int:
    """Each finding as it comes; the exit code."""
    failed = 0
    for part in parts:
        for finding in part:
            print(finding.line(), flush=True)
            failed += finding.good is False
    print(f"{failed} of these need something done" if failed else "nothing stands in the way")
    return min(1, failed)
