"""`outerloop host`: start an open run for volunteers, or continue it, with one line."""

from __future__ import annotations

import getpass
from collections.abc import Sequence

from outerloop.commands import service
from outerloop.commands.arguments import Parser, add_public_name, check_listen_address, public_name_overrides
from outerloop.commands.host.settings import check_name, host_overrides, refuse_closed
from outerloop.commands.join_line import JoinLine
from outerloop.commands.known_peers import with_known_peers
from outerloop.config import load
from outerloop.launcher.interrupts import handle_interrupts
from outerloop.launcher.train import train

DESCRIPTION = """\
Starts an open run: this machine trains, and volunteers join and leave during the training. The command prints the line
with which they join and, on a terminal, its QR code. The same command in the same folder continues the run, even after
a crash. If volunteers have continued the run meanwhile, this machine joins them. Ctrl-C saves and leaves.

The command is outerloop train with other defaults: workers=1, rounds=100000, run_dir=runs/NAME, exchange.run=NAME, and
exchange.host and exchange.port from --host and --port. Every 20 rounds, it writes the model to run_dir/hf
(checkpoint.hf_every=20). With exchange.open_internet=true, this machine relays
connections for volunteers behind routers. Recipes with aggregate=senders, such as sparseloco and outerloop, get
aggregate=median_cosine, which weakens payloads whose direction differs from that of most others. With recipes that send
pseudo-gradients of the whole model, each peer scores two payloads per round (scores.payloads=2 scores.windows=16), and
a payload does not count if most other peers accuse its sender (exclude_accused=true). Options on the command line
replace these defaults."""

EXAMPLES = """\
examples
  outerloop host --name summer                          the default recipe and model
  outerloop host recipe=outerloop model=60m --name summer exchange.max_mbit=20
  outerloop host --name summer 'exchange.announce=[/ip4/198.51.100.7/tcp/4242]'
                       behind a router that forwards TCP port 4242; the address is that of the router
  outerloop host --name summer --systemd                print a systemd unit that runs this command after every reboot
  outerloop host --name summer --docker                 print a docker command that does the same

what volunteers can join
  Recipes and parts that outerloop contains, with any values. Runs with code or files of your own, an allow-list or
  exchange=inprocess are refused; use outerloop train for them. Before an open run, read the threat model: anyone who
  reaches the port may join.

see also
  outerloop doctor --host 0.0.0.0 --port 4242           can others reach this machine?
  outerloop relay ADDRESS                               a second address for volunteers, without training
  outerloop status ADDRESS                              who takes part"""


def parser() -> Parser:
    """Return the option parser."""
    out = Parser("host", example="outerloop host --name summer", description=DESCRIPTION, epilog=EXAMPLES)
    out.add_argument("options", nargs="*", metavar="option=value", help="options of outerloop train")
    out.add_argument("--name", default="open", help="name of the run (default: open)")
    add_public_name(out)
    out.add_argument("--host", default="0.0.0.0", help="IP address to listen on (default: 0.0.0.0, all interfaces)")
    out.add_argument(
        "--port", type=int, default=4242, help="TCP port, which others must be able to reach (default: 4242)"
    )
    out.add_argument("--qr", action="store_true", help="print the QR code even if the output is not a terminal")
    service.add_flags(out)
    return out


def main(arguments: Sequence[str]) -> int:
    """Run the command and return the exit code.

    Raises UserError if an option is invalid, or if it prevents volunteers from joining.
    """
    options = parser().parse_intermixed_args(arguments)
    check_name(options.name)
    options.options += public_name_overrides(options.public_name)
    check_listen_address(options.host, options.port)
    overrides = host_overrides(options.options, name=options.name, host=options.host, port=options.port)
    config = load.load(overrides)
    refuse_closed(config)
    join_line = JoinLine(options.name, qr=options.qr, announce="exchange.announce=[/ip4/ADDRESS/tcp/{port}]")
    if service.is_requested(options, arguments):
        name = f"outerloop-{options.name}"
        print(service.service_text(options, ["host", *arguments], name=name, user=getpass.getuser()), end="")
        return 0
    handle_interrupts()
    train(with_known_peers(config, overrides), overrides=overrides, show_address=join_line.show)
    return 0
