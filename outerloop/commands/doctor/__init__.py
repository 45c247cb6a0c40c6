"""`outerloop doctor`: check whether this machine can take part in a run, and print what to do if it cannot."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

from outerloop.commands.arguments import Parser, check_listen_address
from outerloop.commands.doctor import machine, network
from outerloop.commands.doctor.finding import Finding
from outerloop.config.run_directory import identity_file, refuse_unusable
from outerloop.launcher.interrupts import raise_terminated
from outerloop.swarm.access.identity import ensure_identity
from outerloop.swarm.access.signatures import Signatures
from outerloop.swarm.p2p.daemon import check_addresses
from outerloop.swarm.validation import MAX_PEERS
from outerloop.types import UserError

DESCRIPTION = """\
Checks whether this machine can take part in a run, before you start one: versions, disk, memory, open files, GPU, the
network daemon, the addresses to announce to other peers, and with --peer the connection to a running peer. Prints one
line per check: ✓ passed, ✗ failed (with what to do), ? unknown, or depends on what you plan. The exit code is 1 if a
check failed."""

EXAMPLES = """\
examples
  outerloop doctor                                 check only this machine
  outerloop doctor --host 0.0.0.0 --port 4242      with the exchange.host and exchange.port of the run
  outerloop doctor --host 0.0.0.0 --port 4242 --announce /ip4/198.51.100.7/tcp/4242
  outerloop doctor --peer /ip4/198.51.100.7/tcp/4242/p2p/12D3Koo...
                       also check the connection to a peer: its id, round trip, bandwidth, clock difference, and the
                       address at which it sees this machine
  outerloop doctor --run-dir runs/mine --workers 2
                       also show the peer ids that the two workers of run_dir=runs/mine will have, for exchange.allow
                       on other machines

what it does
  It starts p2pd for a few seconds and dials it from a second p2pd on this machine. That does not test the firewalls and
  routers between this machine and others. With --peer, it dials the peer, asks it for the time, sends 1 MB and receives
  1 MB. A peer answers up to 8 such probes a minute in total. No other machine is contacted. Nothing is left on disk
  except the keys in --run-dir, which are created if they are missing."""


def parser() -> Parser:
    """Return the option parser."""
    out = Parser("doctor", example="outerloop doctor", description=DESCRIPTION, epilog=EXAMPLES)
    out.add_argument("--peer", action="append", default=[], metavar="ADDR", help="a running peer's address; repeatable")
    out.add_argument("--run-dir", type=Path, metavar="DIR", help="show this run's peer ids; creates missing keys")
    out.add_argument(
        "--workers", type=int, default=1, metavar="N", help="number of workers of this run on this machine (default: 1)"
    )
    out.add_argument(
        "--host", default="127.0.0.1", help="IP address that a run would listen on (default: 127.0.0.1, as in a run)"
    )
    out.add_argument("--port", type=int, default=0, help="TCP port that a run would use (default: 0, any)")
    out.add_argument(
        "--announce", action="append", default=[], metavar="ADDR", help="address to announce to other peers; repeatable"
    )
    return out


def main(arguments: Sequence[str]) -> int:
    """Run the checks. Return exit code 0, or 1 if a check failed. Raises UserError if an option or key is invalid."""
    options = parser().parse_args(arguments)
    check_addresses("--peer", options.peer, must_name="p2p")
    check_addresses("--announce", options.announce, must_name="tcp")
    check_listen_address(options.host, options.port)
    if not 1 <= options.workers <= MAX_PEERS:
        raise UserError(f"--workers {options.workers} is out of range: pass 1 to {MAX_PEERS}")
    signal.signal(signal.SIGTERM, raise_terminated)
    network_findings = network.findings(
        host=options.host, port=options.port, announce=options.announce, peers=options.peer
    )
    with closing(network_findings):
        own = identity_findings(options.run_dir, options.workers) if options.run_dir else iter(())
        return print_findings([machine.findings(), own, network_findings])


def print_findings(parts: Sequence[Iterator[Finding]]) -> int:
    """Print each finding as soon as it is available. Return exit code 1 if a check failed, else 0."""
    failed = 0
    for part in parts:
        for finding in part:
            print(finding.line(), flush=True)
            failed += finding.passed is False
    print(f"failed checks: {failed}" if failed else "no check failed")
    return min(1, failed)


def identity_findings(run_dir: Path, workers: int) -> Iterator[Finding]:
    """Yield a finding that lists the workers' peer ids. Creates missing keys.

    Raises UserError if a key is invalid, or if the folder cannot be used.
    """
    with refuse_unusable("pass another --run-dir"):
        ids = [Signatures.of(ensure_identity(identity_file(run_dir, index))).peer_id for index in range(workers)]
    advice = f"if the run has an allow-list, add {','.join(ids)} to exchange.allow on all machines"
    count = "1 peer id" if workers == 1 else f"{workers} peer ids, one for each worker"
    yield Finding("identity", True, f"run_dir={run_dir} has {count}", advice)
