"""`outerloop join`: join a running training run, given only the address of one of its peers."""

from __future__ import annotations

import argparse
import getpass
import signal
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from outerloop.commands import service
from outerloop.commands.arguments import Parser, add_public_name, check_listen_address, public_name_overrides
from outerloop.commands.join.checks import memory_of_model, of_machine, of_network, refuse_failed
from outerloop.commands.join.invitation import Invitation
from outerloop.commands.join.offer import ask_peer, refuse_without_peers
from outerloop.commands.join.other_peers import address_to_ask
from outerloop.commands.join.settings import (
    chosen_overrides,
    load_settings,
    mark_newcomer,
    typed_values,
    uses_open_internet,
)
from outerloop.commands.join.summary import summary
from outerloop.commands.train import train_with
from outerloop.config import part_checks
from outerloop.config.instantiate import make
from outerloop.config.manifest.machine_options import refuse_shared
from outerloop.launcher.corpus_download import fetch_index
from outerloop.launcher.interrupts import raise_terminated
from outerloop.state import checkpoint
from outerloop.swarm.membership.known_addresses import peer_of
from outerloop.swarm.p2p.daemon import check_addresses
from outerloop.types import UserError

DESCRIPTION = """\
Joins a running training run. The peer at ADDRESS sends the settings that all machines of the run share: names of parts
that outerloop contains, numbers, short texts and at most the name of a dataset. Settings that contain code or paths are
refused. This command checks this machine, shows the run, asks whether to join, downloads the current state of the run
and trains. If the peers share their training data, it is downloaded from them first. Ctrl-C leaves the run at any time.
The same command joins it again and continues training, even after a crash. If the peer at ADDRESS has left, it asks
another peer of the same run, whose address this machine remembers."""

EXAMPLES = """\
examples
  outerloop join /ip4/198.51.100.7/tcp/4242/p2p/12D3Koo...           the address that a peer of the run printed
  outerloop join /ip4/198.51.100.7/tcp/4242/p2p/12D3Koo... --yes     do not ask
  outerloop join /ip4/198.51.100.7/tcp/4242/p2p/12D3Koo... --public-name "Ada's laptop"
                       a name that others see next to the peer id
  outerloop join /ip4/198.51.100.7/tcp/4242/p2p/12D3Koo... --systemd
                       print a systemd unit that joins after every reboot; --docker: a docker command
  outerloop join /ip4/198.51.100.7/tcp/4242/p2p/12D3Koo... --port 4242
                       listen on a port that is open in your firewall
  outerloop join /ip4/198.51.100.7/tcp/4242/p2p/12D3Koo... exchange.open_internet=true
                       behind a router that forwards no port: use relays and hole punching
  outerloop join /ip4/198.51.100.7/tcp/4242/p2p/12D3Koo... run_dir=/data/summer threads=4 exchange.max_mbit=20
  outerloop join /ip4/198.51.100.7/tcp/4242/p2p/12D3Koo... --invite oli1_...
                       a run with an allow-list: one of its operators sent this line (outerloop invite)

options of this machine
  Only options of this machine may follow the address, for example run_dir, threads, inner.device or exchange.max_mbit.
  All other options are those of the run. run_dir is runs/join-NAME by default, where NAME is the name of the run, or
  runs/join-NAME-2 if that is of another run with the same name. It contains the key of this machine, so keep it. How
  many sequences of a batch fit in memory at once is measured, unless inner.micro_batch is among the options.

what it does
  It dials the peer at ADDRESS, which proves its identity with its key, and reads the manifest that this key signed.
  From the manifest, it derives the settings of this machine, and stops if their fingerprint differs from the run's:
  this machine then has another version of outerloop, or hardware that this run cannot use. It runs those checks of
  outerloop doctor whose failure would stop training: of the machine before it asks, of the network after that. It then
  trains like outerloop train."""


def parser() -> Parser:
    """Return the option parser."""
    out = Parser("join", example="outerloop join ADDRESS", description=DESCRIPTION, epilog=EXAMPLES)
    out.add_argument("address", metavar="ADDRESS", help="address of any running peer of the run")
    out.add_argument("options", nargs="*", metavar="option=value", help="options of this machine, such as run_dir=DIR")
    out.add_argument("--yes", action="store_true", help="join without asking")
    out.add_argument("--invite", metavar="TOKEN", help="token from outerloop invite, for a run with an allow-list")
    add_public_name(out)
    out.add_argument("--host", default="0.0.0.0", help="IP address to listen on (default: 0.0.0.0, all interfaces)")
    out.add_argument("--port", type=int, default=0, help="TCP port to listen on (default: 0, any free port)")
    service.add_flags(out, asks="without --invite, the peer at ADDRESS")
    return out


def main(arguments: Sequence[str]) -> int:
    """Run the command and return the exit code.

    Raises UserError if an argument is invalid, if the run cannot be joined, or if a check of this machine fails.
    """
    options = parser().parse_intermixed_args(arguments)
    options.options += public_name_overrides(options.public_name)
    options.yes = options.yes or service.is_requested(options, arguments)
    check(options)
    signal.signal(signal.SIGTERM, raise_terminated)
    run = choose_address(options)
    invitation = Invitation.read(options.invite, options.options, address=options.address) if options.invite else None
    open_internet = uses_open_internet(typed_values(options.options))
    ask = partial(ask_peer, options.address, run=run, open_internet=open_internet)
    if service.is_requested(options, arguments):
        unasked = ["join", *arguments, *["--yes"] * ("--yes" not in arguments)]
        name = service.service_name("join", invitation.run if invitation else ask().manifest.run)
        print(service.service_text(options, unasked, name=name, user=getpass.getuser()), end="")
        return 0
    refuse_failed(of_machine())
    offer = invitation.ask_peer() if invitation else ask()
    overrides = chosen_overrides(
        offer.manifest,
        options.options,
        addresses=[options.address, *offer.others],
        peers={peer_of(options.address), *offer.peers},
        host=options.host,
        port=options.port,
        run_dir=invitation.run_dir if invitation else None,
    )
    overrides += invitation.overrides if invitation else []
    config = load_settings(offer.manifest, overrides)
    if not checkpoint.sealed(Path(config.run_dir)):
        refuse_without_peers(offer, options.address)
        overrides = [*mark_newcomer(config), *overrides]
    fetch_index(config, invitation.sources() if invitation else None, print)
    corpus = make(config.data)
    params = sum(x.numel() for x in part_checks.meta_model(config, corpus).parameters())
    shown = summary(offer, config, params, data=getattr(corpus, "what", type(corpus).__name__))
    refuse_failed([memory_of_model(config, params)])
    print("\n".join(shown))
    if not options.yes and not is_confirmed():
        return 0
    refuse_failed(of_network(config))
    if invitation:
        invitation.use()
    return train_with(config, overrides)


def check(options: argparse.Namespace) -> None:
    """Check the arguments. Raises UserError if one is invalid."""
    check_addresses("join", [options.address], must_name="p2p")
    refuse_shared(options.options)
    check_listen_address(options.host, options.port)
    if not options.yes and not sys.stdin.isatty():
        raise UserError(
            "join asks before it joins, but standard input is not a terminal: pass --yes to join without asking"
        )


def choose_address(options: argparse.Namespace) -> str | None:
    """Replace the typed address by that of another peer of the run if no program listens there (other_peers.py).

    Return the id of the run that the peer must be in, or None if the address was not replaced.
    """
    asked, run = address_to_ask(options.address, typed_values(options.options), invited=bool(options.invite))
    if run is not None:
        note = f"no program listens at {options.address}: asking {asked}, which is stored as a peer of run {run}"
        print(note, file=sys.stderr)  # standard output may be a systemd unit
        options.address = asked
    return run


def is_confirmed() -> bool:
    """Ask whether to join, and return the answer. Any answer other than y or yes means no."""
    try:
        answer = input("Join? [y/N] ")
    except EOFError:
        return False
    return answer.strip().lower() in ("y", "yes")
