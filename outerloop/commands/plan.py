"""`outerloop plan`: before machines are rented, what each method would take on them, and which to choose."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from outerloop.commands.arguments import Parser
from outerloop.commands.plan_output import picture, tell
from outerloop.config.profile import chosen, method_of, recipe_of
from outerloop.plan.forecast import outlook
from outerloop.plan.links import Links, links_of
from outerloop.plan.scenario import Fleet, Method
from outerloop.report.units import parse_bandwidth, parse_seconds, show_bandwidth
from outerloop.types import UserError

MOST_PEERS = 10_000
TOKENS_A_PARAMETER = 20
RANGES = {
    "params": (1e4, 1e13, "1e9"),
    "peers": (1, MOST_PEERS, "16"),
    "tokens_per_step": (1, 1e12, "16384"),
    "tokens": (1, 1e18, "1e10"),
    "sync_every": (1, 1e6, "30"),
    "delay": (0, 1e6, "5"),
    "density": (1e-5, 1.0, "0.0156"),
    "spread": (0.0, 2.0, "0.05"),
    "failure_rate": (0.0, 60.0, "0.01"),
}
"""Option -> least, most, what to type."""

DESCRIPTION = """\
Says what training would take on machines and links that are not there yet: seconds a round, the share of the time that
goes into inner steps (utilization), bytes a day, days to the last token, memory; one row a recipe, the recommended one
marked. Rounds are simulated with what the swarm really does, messages are as large as the wire really makes them."""

EXAMPLES = """\
examples
  outerloop plan --params 1e9 --peers 16 --up 100mbit --down 1gbit --step 1.2s --tokens-per-step 16384
                                                  all recipes with their own H and delay
  outerloop plan --params 1e9 --peers 16 --up 100mbit --step 1.2s --tokens-per-step 16384 \\
      --recipe sparseloco,diloco --sync-every 30 --delay 10 --density 0.0156 --tokens 1e10
  outerloop plan ... --probe /ip4/198.51.100.7/tcp/4242/p2p/12D3Koo...   links as measured to a running peer
  outerloop plan ... --picture plan.png           seconds a round against the number of peers

what the columns say
  round       seconds of H inner steps with all their exchanges
  exposed     of these: exchanges (and --codec) that the inner steps wait for
  waiting     of these: waiting for slower or absent peers, or for a partner
  met         share of its rounds in which a peer exchanged; else a solo step (gossip), or too late for it (gather)
  sent a day  payload of one peer, every copy counted; it receives as much
  recommended of those within 5 % of the fastest, the lowest loss measured in scripts/results/recipes (1M parameters)

what is assumed
  equal peers on equal links, all ready at the same pace but for --spread; 80 % of a link carries payload, and no more
  than 1.2 Gbit/s each way, which is what encryption and copies of one host come to; a machine that fails is back after
  a minute and the download of the state; settings named below a table are typed, because the defaults close rounds
  this slow before all their bytes are there. Activations are not in the memory."""


def parser() -> Parser:
    """The options."""
    example = "outerloop plan --params 1e9 --peers 16 --up 100mbit --step 1.2s --tokens-per-step 16384"
    out = Parser("plan", example=example, description=DESCRIPTION, epilog=EXAMPLES)
    out.add_argument("--params", type=float, required=True, metavar="N", help="parameters of the model")
    out.add_argument("--peers", type=int, required=True, metavar="P", help=f"how many take part, 1 .. {MOST_PEERS}")
    out.add_argument("--step", required=True, metavar="TIME", help="of one inner step: 1.2s, 300ms")
    out.add_argument("--tokens-per-step", type=float, required=True, metavar="N", help="of one peer in one inner step")
    out.add_argument("--tokens", type=float, metavar="N", help="of all peers, to the end (default: 20 a parameter)")
    out.add_argument("--up", metavar="RATE", help="what a peer's link carries away: 100mbit")
    out.add_argument("--down", metavar="RATE", help="... and to it (default: as --up)")
    out.add_argument("--latency", metavar="TIME", help="one way, half of a ping (default: 50ms)")
    out.add_argument("--probe", action="append", default=[], metavar="ADDR", help="measure links instead; repeatable")
    out.add_argument("--recipe", default="all", metavar="A,B", help="recipes to compare (default: all)")
    out.add_argument("--sync-every", type=int, metavar="H", help="inner steps a round (default: the recipe's)")
    out.add_argument(
        "--delay", type=int, metavar="T", help="inner steps from launch to landing (default: the recipe's)"
    )
    out.add_argument("--density", type=float, metavar="D", help="share of values kept, for sparse recipes")
    out.add_argument("--spread", type=float, default=0.05, metavar="S", help="sigma of lognormal paces (default: 0.05)")
    out.add_argument("--failure-rate", type=float, default=0.0, metavar="F", help="failures an hour of one peer")
    out.add_argument("--codec", default="0s", metavar="TIME", help="launching and landing of one round (default: 0s)")
    out.add_argument("--picture", type=Path, metavar="FILE", help="draw seconds a round against peers (PNG)")
    return out


def main(arguments: Sequence[str]) -> int:
    """Exit code 0. Raises UserError."""
    options = parser().parse_args(arguments)
    check(options)
    fleet, methods = fleet_of(options), methods_of(options)
    rows = [outlook(fleet, method) for method in methods]
    tell(rows, tokens_per_step=options.tokens_per_step, tokens=options.tokens or TOKENS_A_PARAMETER * options.params)
    if options.picture:
        picture(fleet, methods, options.picture)
    return 0


def check(options: argparse.Namespace) -> None:
    """Numbers that must be in a range. Raises UserError."""
    for name, (least, most, example) in RANGES.items():
        value, option = getattr(options, name), f"--{name.replace('_', '-')}"
        if value is not None and not least <= value <= most:
            raise UserError(f"{option} {value:g} must be {least:g} .. {most:g}: type {option} {example}")
    if options.picture and options.picture.suffix != ".png":
        raise UserError(f"--picture {options.picture} is no PNG file: type --picture plan.png")


def fleet_of(options: argparse.Namespace) -> Fleet:
    """The machines and their links. Raises UserError."""
    step_s = parse_seconds(options.step, "--step")
    if not step_s:
        raise UserError("--step 0 takes no time: type --step 1.2s")
    codec_s = parse_seconds(options.codec, "--codec")
    return Fleet(options.peers, links(options), step_s, options.spread, options.failure_rate, codec_s)


def links(options: argparse.Namespace) -> Links:
    """As typed, or as measured. Raises UserError."""
    if options.probe:
        if options.up or options.down or options.latency:
            raise UserError("plan: --probe measures what --up, --down and --latency would say: type --probe alone")
        from outerloop.commands.link_probe import probed  # with hivemind, which a plan does without
        from outerloop.swarm.p2p.daemon import check_addresses

        check_addresses("--probe", options.probe, must_name="p2p")
        found = probed(options.probe)
        rates = [show_bandwidth(float(f"{8 * rate:.2g}")) for rate in (found.up, found.down)]
        print(f"measured: at least {rates[0]} up, {rates[1]} down, {1000 * found.latency_s:.1f} ms one way")
        return found
    if not options.up:
        raise UserError("plan: --up or --probe is missing: type --up 100mbit")
    up = parse_bandwidth(options.up, "--up")
    down = parse_bandwidth(options.down, "--down") if options.down else up
    return links_of(up, down, parse_seconds(options.latency or "50ms", "--latency"))


def methods_of(options: argparse.Namespace) -> list[Method]:
    """The recipes. Raises UserError."""
    wanted = {"sync_every": options.sync_every, "delay": options.delay, "density": options.density}
    return [
        method_of(recipe_of(name, **wanted), params=options.params, peers=options.peers)
        for name in chosen(options.recipe)
    ]
