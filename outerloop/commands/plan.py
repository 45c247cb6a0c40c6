"""`outerloop plan`: forecast each method's time and traffic on machines not yet rented, and recommend one."""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Sequence
from pathlib import Path

from outerloop.commands.arguments import Parser
from outerloop.commands.plan_output import draw_curves, print_plan
from outerloop.config.profile import chosen_recipes, plan_method, recipe_settings
from outerloop.plan.forecast import forecast
from outerloop.plan.links import Links, payload_links
from outerloop.plan.recommend import Budget
from outerloop.plan.scenario import Fleet, Method
from outerloop.report.units import format_bandwidth, parse_bandwidth, parse_seconds, parse_size
from outerloop.types import UserError

MAX_PEERS = 10_000
MAX_SYNC_EVERY = 1_000_000
TOKENS_PER_PARAM = 20
RANGES = {
    "params": (1e4, 1e13, "1e9"),
    "peers": (1, MAX_PEERS, "16"),
    "tokens_per_step": (1, 1e12, "16384"),
    "tokens": (1, 1e18, "1e10"),
    "delay": (0, 1e6, "5"),
    "density": (1e-5, 1.0, "0.0156"),
    "spread": (0.0, 2.0, "0.05"),
    "failure_rate": (0.0, 60.0, "0.01"),
    "hours": (0.01, 1e6, "200"),
}
"""Option -> (minimum, maximum, example value). Both limits are inclusive."""

DESCRIPTION = """\
Forecasts training on machines and links that you do not have yet: seconds per round, share of the time spent in inner
steps (utilization), bytes per day, duration of the run, memory. Prints one row per recipe and marks the recommended
one. Rounds are simulated by the rules of the swarm; message sizes are measured on real encoded messages."""

EXAMPLES = """\
examples
  outerloop plan --params 1e9 --peers 16 --up 100mbit --down 1gbit --step 1.2s --tokens-per-step 16384
                                                  all recipes, each with its default H and delay
  outerloop plan --params 1e9 --peers 16 --up 100mbit --step 1.2s --tokens-per-step 16384 \\
      --recipe sparseloco,diloco --sync-every 30 --delay 10 --density 0.0156 --tokens 1e10
  outerloop plan ... --sync-every 15,30,100 --hours 200 --traffic 500GB
                                                  the lowest loss in 200 hours and with 500 GB sent by each peer
  outerloop plan ... --probe /ip4/198.51.100.7/tcp/4242/p2p/12D3Koo...   measure the link to a running peer
  outerloop plan ... --picture plan.png           seconds per round against the number of peers

columns
  round       seconds for H inner steps with all their exchanges
  exposed     part of the round in which inner steps wait for exchanges (and for --codec), in seconds
  waiting     part of the round in which a peer waits for slower or absent peers, or for a partner, in seconds
  met         share of a peer's rounds with an exchange; in the others it took a solo step (gossip) or was late
              (gather). A late peer skips the inner steps until the next round. With faster links, rounds are decided
              sooner, so more peers may be late
  sent a day  payload bytes that one peer sends per day, counting every copy; it receives the same number of bytes
  recommended the row with the lowest loss in scripts/results (1M parameters, equal tokens), out of the rows within
              --hours and --traffic or, without such a budget, the rows within 5 % of the fastest. An H that was not
              measured has the loss of the nearest measured H; beyond half the smallest or twice the largest, none

assumptions
  All peers and links are identical, except that the pace of peers varies by --spread. Payload uses 80 % of a link, at
  most 1.2 Gbit/s each way, the limit of encryption and memory copies on one host. A failed machine returns after a
  minute plus the time to download the state. The forecast uses the settings listed below the tables: with the default
  settings, slow rounds would close before all bytes have arrived. Memory does not include activations."""


def parser() -> Parser:
    """Return the option parser."""
    example = "outerloop plan --params 1e9 --peers 16 --up 100mbit --step 1.2s --tokens-per-step 16384"
    out = Parser("plan", example=example, description=DESCRIPTION, epilog=EXAMPLES)
    out.add_argument("--params", type=float, required=True, metavar="N", help="number of model parameters")
    out.add_argument("--peers", type=int, required=True, metavar="P", help=f"peers in the run, 1 .. {MAX_PEERS}")
    out.add_argument("--step", required=True, metavar="TIME", help="duration of one inner step: 1.2s, 300ms")
    out.add_argument(
        "--tokens-per-step", type=float, required=True, metavar="N", help="tokens per inner step of one peer"
    )
    out.add_argument(
        "--tokens", type=float, metavar="N", help="training tokens of all peers in total (default: 20 per parameter)"
    )
    out.add_argument("--up", metavar="RATE", help="upload bandwidth of a peer: 100mbit")
    out.add_argument("--down", metavar="RATE", help="download bandwidth of a peer (default: same as --up)")
    out.add_argument("--latency", metavar="TIME", help="one-way latency, half of the ping time (default: 50ms)")
    out.add_argument(
        "--probe", action="append", default=[], metavar="ADDR", help="measure the link to this peer; repeatable"
    )
    out.add_argument("--recipe", default="all", metavar="A,B", help="recipes to compare (default: all)")
    out.add_argument(
        "--sync-every", metavar="H,H", help="inner steps per round; several: a row for each (default: the recipe's)"
    )
    out.add_argument(
        "--delay", type=int, metavar="T", help="inner steps from launch to landing (default: the recipe's)"
    )
    out.add_argument("--density", type=float, metavar="D", help="fraction of values sent, for sparse recipes")
    out.add_argument(
        "--spread",
        type=float,
        default=0.05,
        metavar="S",
        help="sigma of the lognormal distribution of peers' pace (default: 0.05)",
    )
    out.add_argument("--failure-rate", type=float, default=0.0, metavar="F", help="failures per hour of one peer")
    out.add_argument("--hours", type=float, metavar="N", help="budget: duration of the run in hours")
    out.add_argument("--traffic", metavar="SIZE", help="budget: payload that each peer sends in the run: 500GB")
    out.add_argument("--codec", default="0s", metavar="TIME", help="time to launch and land one round (default: 0s)")
    out.add_argument(
        "--picture", type=Path, metavar="FILE", help="plot seconds per round against the number of peers (PNG)"
    )
    return out


def main(arguments: Sequence[str]) -> int:
    """Run the command and return exit code 0. Raises UserError if an option is invalid or a probe fails."""
    options = parser().parse_args(arguments)
    check(options)
    tokens = options.tokens or TOKENS_PER_PARAM * options.params
    fleet, (methods, left_out) = make_fleet(options), make_methods(options)
    methods, too_long = with_whole_rounds(methods, tokens, options.peers * options.tokens_per_step)
    for line in left_out + too_long:
        print(line)
    rows = [forecast(fleet, method) for method in methods]
    changed = [f"--{name} {value:g}" for name in ("delay", "density") if (value := getattr(options, name)) is not None]
    print_plan(
        rows, tokens_per_step=options.tokens_per_step, tokens=tokens, budget=make_budget(options), changed=changed
    )
    if options.picture:
        draw_curves(fleet, methods, options.picture)
    return 0


def check(options: argparse.Namespace) -> None:
    """Check that numeric options are within RANGES and that the picture is a PNG file. Raises UserError if not."""
    for name, (minimum, maximum, example) in RANGES.items():
        value, option = getattr(options, name), f"--{name.replace('_', '-')}"
        if value is not None and not minimum <= value <= maximum:
            raise UserError(f"{option} {value:g} must be {minimum:g} .. {maximum:g}: pass {option} {example}")
    if options.picture and options.picture.suffix != ".png":
        raise UserError(f"--picture {options.picture} is not a PNG file: pass --picture plan.png")


def make_fleet(options: argparse.Namespace) -> Fleet:
    """Return the fleet that the options describe. Raises UserError if an option is invalid or a probe fails."""
    step_s = parse_seconds(options.step, "--step")
    if not step_s:
        raise UserError("--step must be longer than 0 s: pass --step 1.2s")
    codec_s = parse_seconds(options.codec, "--codec")
    return Fleet(options.peers, make_links(options), step_s, options.spread, options.failure_rate, codec_s)


def make_links(options: argparse.Namespace) -> Links:
    """Return the links given by the options, or measured with --probe.

    Raises UserError if an option is invalid or missing, or if a probe fails.
    """
    if options.probe:
        if options.up or options.down or options.latency:
            raise UserError("plan: --probe replaces --up, --down and --latency: pass --probe without them")
        from outerloop.commands.link_probe import probe_links  # imports hivemind, which only --probe needs
        from outerloop.swarm.p2p.daemon import check_addresses

        check_addresses("--probe", options.probe, must_name="p2p")
        found = probe_links(options.probe)
        rates = [format_bandwidth(float(f"{8 * rate:.2g}")) for rate in (found.up, found.down)]
        print(f"measured: at least {rates[0]} up, {rates[1]} down, {1000 * found.latency_s:.1f} ms one way")
        return found
    if not options.up:
        raise UserError("plan: --up or --probe is missing: pass --up 100mbit")
    up = parse_bandwidth(options.up, "--up")
    down = parse_bandwidth(options.down, "--down") if options.down else up
    return payload_links(up, down, parse_seconds(options.latency or "50ms", "--latency"))


def make_budget(options: argparse.Namespace) -> Budget:
    """Return the budget that the options set. Raises UserError if the traffic is not a size."""
    sent_bytes = parse_size(options.traffic, "--traffic") if options.traffic else math.inf
    return Budget(math.inf if options.hours is None else options.hours, sent_bytes)


def make_methods(options: argparse.Namespace) -> tuple[list[Method], list[str]]:
    """Return the methods of the recipes to compare, each with every H, and a line for each one that is left out.

    A recipe without rounds of H steps occurs once. Recipes with more fragments than H are left out. Raises UserError if
    none is left, or if a recipe, its settings or an H are invalid.
    """
    methods: dict[tuple[str, int], Method] = {}
    left_out = []
    for name, sync_every in itertools.product(chosen_recipes(options.recipe), chosen_sync_every(options.sync_every)):
        settings = recipe_settings(name, sync_every=sync_every, delay=options.delay, density=options.density)
        steps, fragments = settings.schedule.sync_every, settings.schedule.get("fragments", 1)
        if fragments > steps:
            left_out.append(
                f"{name}, H {steps} is left out: its {fragments} fragments need an H of {fragments} or more"
            )
            continue
        method = plan_method(settings, params=options.params, peers=options.peers)
        methods.setdefault((name, method.sync_every), method)
    if not methods:
        raise UserError(
            f"--sync-every {options.sync_every} is too small for all chosen recipes: pass --sync-every 30 or more"
        )
    return list(methods.values()), left_out


def with_whole_rounds(methods: list[Method], tokens: float, step_tokens: float) -> tuple[list[Method], list[str]]:
    """Return the methods of which the run has at least one round, and a line for each other one.

    `step_tokens`: tokens of one inner step of all peers. Raises UserError if no method is left.
    """
    steps, shortest = int(tokens / step_tokens), min(method.sync_every for method in methods)
    if steps < shortest:
        raise UserError(
            f"the run has {steps:,} inner steps per peer, fewer than one round (H {shortest} or more):"
            f" pass --tokens {math.ceil(shortest * step_tokens)} or more"
        )
    too_long = [
        f"{m.label} is left out: the run has {steps:,} inner steps per peer" for m in methods if m.sync_every > steps
    ]
    return [method for method in methods if method.sync_every <= steps], too_long


def chosen_sync_every(text: str | None) -> list[int] | list[None]:
    """Parse "15,30" as [15, 30], and None as [None], which stands for the recipe's own H.

    Raises UserError if a number is out of range.
    """
    if text is None:
        return [None]
    words = text.split(",")
    longest = len(str(MAX_SYNC_EVERY))
    if not all(word.isdecimal() and len(word) <= longest and 1 <= int(word) <= MAX_SYNC_EVERY for word in words):
        raise UserError(
            f"--sync-every {text} must be numbers from 1 to {MAX_SYNC_EVERY}, separated by commas:"
            " pass --sync-every 15,30"
        )
    return [int(word) for word in words]
