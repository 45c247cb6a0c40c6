"""`outerloop relay`: offer a second address at which volunteers join a run, without training."""

from __future__ import annotations

import argparse
import getpass
import signal
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NoReturn

from outerloop.commands import service
from outerloop.commands.arguments import Parser, check_listen_address
from outerloop.commands.join.offer import ask_peer
from outerloop.commands.join_line import JoinLine
from outerloop.commands.relay.serving import manifest_of, serve_until_alone
from outerloop.config.run_directory import refuse_unusable
from outerloop.launcher.interrupts import raise_terminated
from outerloop.output import print_leniently
from outerloop.swarm.access.identity import ensure_identity
from outerloop.swarm.membership.answering_peers import answering_peers
from outerloop.swarm.membership.known_addresses import peer_of
from outerloop.swarm.p2p.daemon import check_addresses
from outerloop.swarm.p2p.observer import visit
from outerloop.swarm.p2p.reachability import is_loopback
from outerloop.types import printable

DESCRIPTION = """\
Offers a second address at which volunteers join the run of the peer at ADDRESS. This machine does not train: it needs
no GPU, and it holds neither the model nor data. It forwards the signed settings of the run, introduces newcomers to the
peers, relays connections for machines behind routers, and remembers the peers, so that the run can be found while its
host restarts. The state of the run comes from the peers that train."""

EXAMPLES = """\
examples
  outerloop relay /ip4/198.51.100.7/tcp/4242/p2p/12D3Koo...          the address that a peer of the run printed
  outerloop relay /ip4/198.51.100.7/tcp/4242/p2p/12D3Koo... --announce /ip4/203.0.113.5/tcp/4242
                       behind a router that forwards TCP port 4242; the address is that of the router
  outerloop relay /ip4/198.51.100.7/tcp/4242/p2p/12D3Koo... --systemd
                       print a systemd unit that runs this command after every reboot; --docker: a docker command

its address
  The folder --run-dir holds the key of this relay and with it its address, so keep it. A relay with a public address is
  worth the most: volunteers behind routers reach each other through it. It can also be named in a host's
  exchange.initial_peers, so that a host that restarts finds the volunteers."""


def parser() -> Parser:
    """Return the option parser."""
    out = Parser("relay", example="outerloop relay ADDRESS", description=DESCRIPTION, epilog=EXAMPLES)
    out.add_argument("address", metavar="ADDRESS", help="address of a running peer of the run, or of another relay")
    out.add_argument(
        "--run-dir",
        type=Path,
        default=Path("runs/relay"),
        metavar="DIR",
        help="folder for this relay's files, such as its key (default: runs/relay)",
    )
    out.add_argument("--host", default="0.0.0.0", help="IP address to listen on (default: 0.0.0.0, all interfaces)")
    out.add_argument(
        "--port", type=int, default=4242, help="TCP port, which others must be able to reach (default: 4242)"
    )
    out.add_argument(
        "--announce", action="append", default=[], metavar="ADDR", help="address to announce to others; repeatable"
    )
    out.add_argument("--qr", action="store_true", help="print the QR code even if the output is not a terminal")
    service.add_flags(out, asks="the peer at ADDRESS")
    return out


def main(arguments: Sequence[str]) -> int:
    """Serve until the command is stopped. Raises UserError if an option is invalid or the run cannot be joined."""
    options = parser().parse_args(arguments)
    check_addresses("relay", [options.address], must_name="p2p")
    check_addresses("--announce", options.announce, must_name="tcp")
    check_listen_address(options.host, options.port)
    if service.is_requested(options, arguments):
        name = service.service_name("relay", ask_peer(options.address).manifest.run)
        print(service.service_text(options, ["relay", *arguments], name=name, user=getpass.getuser()), end="")
        return 0
    signal.signal(signal.SIGTERM, raise_terminated)
    run_relay(options)
    return 0


def run_relay(options: argparse.Namespace) -> NoReturn:
    """Serve with one node after another: whenever a node no longer finds any peer, join the run with a new one.

    Raises UserError if the folder cannot be used or the run cannot be joined.
    """
    with refuse_unusable("pass another --run-dir"):
        identity = ensure_identity(options.run_dir / "identity.key")
    manifest, why = manifest_of(options.address, identity)
    if why:
        report(f"forwarding the settings that this relay has kept, because {why}")
    announce = "--announce /ip4/ADDRESS/tcp/{port}"
    join_line = JoinLine(manifest.run, qr=options.qr, announce=announce)
    open_internet = not is_loopback(options.host)
    answering = partial(answering_peers, identity, named=[options.address], open_internet=open_internet)
    while True:
        with visit(
            initial_peers=answering(),
            host=options.host,
            port=options.port,
            announce=options.announce,
            observer=False,
            identity_path=identity,
            open_internet=open_internet,
        ) as node:
            join_line.show(node.addresses)
            manifest = serve_until_alone(
                node,
                manifest,
                source=peer_of(options.address),
                identity=identity,
                report=report,
                others_answer=lambda: bool(answering()),
            )


def report(line: str) -> None:
    """Print one line, if standard output can be written: a relay continues without it."""
    print_leniently(printable(line))
