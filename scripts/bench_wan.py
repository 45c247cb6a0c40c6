"""Measure rounds over slow links: N hosts as network namespaces (scripts/wan.sh), one `outerloop train` on each.

    sudo .venv/bin/python scripts/bench_wan.py --hosts 4 --rates 100mbit --runs FOLDER --json FILE \\
        [--recipes sparseloco-delay sparseloco diloco-fp16] [--sync-every 30] [--delay 4] [--step-s 0.2] [OPTION...]
    sudo .venv/bin/python scripts/bench_wan.py --goodput --rates 20mbit 100mbit 1000mbit --json FILE

Compression, transfer, consensus and landing are real, and so is training, with a few tokens per step. Only the duration
of an inner step is EMULATED: each step is made to take --step-s (wan_pace.py), because the hosts share this machine's
cores, while real hosts would have a GPU each. --step-s 0 does not delay the steps.

FILE gets one flat row per configuration, with medians over all hosts and all rounds but the first two; the file next to
it that ends in .rounds.json gets one row per round and host. `inner_s`: measured seconds of one inner step.
`measured_round_s`: seconds from one landing to the next, excluding evaluations: compute_s + communication_s + others_s
(see outerloop/inner/run_totals.py).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import wan_goodput
from benchmark_records import write_records
from faults_machine import COMMON, Machine
from namespaces import Network, network, ready_or_exit
from result_rows import Row, show

from outerloop.config import build, instantiate, load
from outerloop.core.utilization import SPENT, utilization
from outerloop.report.units import parse_bandwidth, parse_seconds
from outerloop.types import UserError

SCRIPTS = Path(__file__).absolute().parent
SKIPPED = 2
"""Number of initial rounds that are not counted, because they include compilation and connection setup."""
LATE = ["schedule.delay={delay}", "merge_local={merge_local}"]
DELAY, MERGE_LOCAL = 4, "carry"
"""Values of --delay and --merge-local if they are not given."""
RECIPES = {
    "sparseloco": ["recipe=sparseloco"],
    "sparseloco-delay": ["recipe=sparseloco", *LATE],
    "diloco-fp16": ["recipe=diloco", "compress=fp16"],
    "diloco-fp16-delay": ["recipe=diloco", "compress=fp16", *LATE],
    "streaming": ["recipe=streaming_diloco", "schedule.delay={delay}"],
    "noloco": ["recipe=noloco", "exchange=swarm_gossip"],
}
MODEL = "model.hidden_size=384 model.intermediate_size=1024 model.layers=6 model.heads=6 model.kv_heads=6"
TRAINING = f"{MODEL} inner.batch=1 inner.seq_len=16 eval.every=0 eval.sequences=64 checkpoint.every=0"
GATHER = ["exchange.quorum=all", "exchange.deadline_s=600"]
LIMIT_S = 3000.0
SECONDS = (*SPENT, "launch_s", "wait_s", "land_s")


@dataclass
class Host(Machine):
    """A machine of the run, in its own network namespace."""

    network: Network = field(kw_only=True)

    def command(self, initial_peers: Any) -> list[str]:
        """Return the command that a user would run on this host."""
        where = f"exchange.host={self.network.address(self.index)}"
        return self.network.inside(self.index, [*super().command(initial_peers), where])

    def environment(self) -> dict[str, str]:
        """Return an environment in which wan_pace can be imported."""
        return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(SCRIPTS), os.environ.get("PYTHONPATH")]))}


def testbed(hosts: int, rate: str, delay_s: float) -> AbstractContextManager[Network]:
    """Return a context manager that creates hosts, and on exit removes them with all processes on them."""
    return network(hosts, *(["--rate", f"{mbit(rate):g}mbit"] if mbit(rate) else []), *delayed(delay_s))


def delayed(delay_s: float) -> list[str]:
    """Return the options of wan.sh for links that delay each packet; empty for 0 s."""
    return ["--delay", f"{1e3 * delay_s:g}ms"] if delay_s else []


def options_of(recipe: str, args: argparse.Namespace) -> list[str]:
    """Return the `outerloop train` options of one run."""
    chosen = [option.format(delay=args.delay, merge_local=args.merge_local) for option in RECIPES[recipe]]
    gather = GATHER if "exchange=swarm_gossip" not in chosen else []
    chosen += [f"exchange.peers={args.hosts}", f"rounds={args.rounds}", f"schedule.sync_every={args.sync_every}"]
    if args.step_s:
        chosen += ["inner.optimizer._target_=wan_pace.PacedAdamW", f"+inner.optimizer.step_s={args.step_s}"]
    return [*chosen, "exchange.max_blob_bytes=2000000000", *gather, *TRAINING.split(), *args.options]


def train(hosts: list[Host]) -> None:
    """Start all hosts and wait until they have finished. Raises RuntimeError on failure, TimeoutError after LIMIT_S."""
    ends_s = time.monotonic() + LIMIT_S
    hosts[0].start([])
    while not all(host.finished for host in hosts):
        for host in hosts:
            host.poll()
            if host.ended and not host.finished:
                raise RuntimeError(f"host {host.index} failed: see {host.folder.with_suffix('.txt')}")
            if host.process is None and hosts[0].address:
                host.start([hosts[0].address])
        if time.monotonic() > ends_s:
            raise TimeoutError(f"the run did not finish within {LIMIT_S:g} s: see {hosts[0].folder}")
        time.sleep(0.2)


def rounds_of(host: Host) -> list[Row]:
    """Return the costs of each round on this host, summed over the fragments that landed in the round."""
    host.poll()
    rows = [row for row in host.rows if row["event"] == "round"]
    of_round = {number: [row for row in rows if row["round"] == number] for number in {row["round"] for row in rows}}
    return [
        {"host": host.index, "round": number}
        | {name: sum(row[name] for row in parts) for name in (*SECONDS, "payload_bytes")}
        | {"peers": min(row["peers"] for row in parts), "failed": sum(bool(row["failed"]) for row in parts)}
        for number, parts in sorted(of_round.items())
    ]


def measured(recipe: str, rate: str, args: argparse.Namespace) -> tuple[Row, list[Row]]:
    """Measure one configuration. Return its row, and the rows of its rounds."""
    folder = args.runs.absolute() / f"{recipe}-{rate}-{args.hosts}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    options = options_of(recipe, args)
    with testbed(args.hosts, rate, args.link_delay) as net:
        hosts = [Host(index, folder / f"m{index}", options, network=net) for index in range(args.hosts)]
        train(hosts)
    rounds = [{"method": recipe, "rate": rate, **row} for host in hosts for row in rounds_of(host)]
    summaries = [json.loads((host.folder / "summary.json").read_text()) for host in hosts]
    return row_of(recipe, rate, args, rounds, summaries), rounds


def row_of(recipe: str, rate: str, args: argparse.Namespace, rounds: list[Row], summaries: list[Row]) -> Row:
    """Return one row with the medians and the settings of a configuration."""
    counted = [row for row in rounds if row["round"] > SKIPPED]
    settings = load.load([*COMMON, *options_of(recipe, args)])
    schedule = instantiate.make(settings.schedule)
    seconds = {name: statistics.median(row[name] for row in counted) for name in SECONDS}
    spent = {name: sum(row[name] for row in counted) for name in SPENT}
    return {
        "method": recipe,
        "peers": args.hosts,
        "mbit": mbit(rate),
        "delay_ms": 1e3 * args.link_delay,
        "params": summaries[0]["params"],
        "payload_bytes": statistics.median(row["payload_bytes"] for row in counted),
        "exchange": "gather" if build.capabilities(settings).agrees else "gossip",
        "fragments": schedule.fragments,
        "sync_every": schedule.sync_every,
        "delay_steps": schedule.delay,
        "step_s": args.step_s,
        "inner_s": seconds["compute_s"] / schedule.sync_every,
        "measured_round_s": statistics.median(sum(row[name] for name in SPENT) for row in counted),
        **seconds,
        "utilization": utilization(**spent),
        "least_peers": min(row["peers"] for row in counted),
        "rounds": args.rounds,
        "failed": sum(row["failed"] for row in rounds),
        "val_loss": summaries[0]["val_loss"],
        "slow_hashes": len({summary["slow_hash"][0] for summary in summaries}),
    }


def goodput(rate: str, args: argparse.Namespace) -> Row:
    """Measure --times transfers, each sized to take about --seconds at this rate. Return the row of the fastest one."""
    cap = mbit(rate)
    size = int(min(args.most_megabytes * 1e6, (cap or 8000.0) * 1e6 / 8 * args.seconds))
    with testbed(2, rate, args.link_delay) as net:
        took_s = min(wan_goodput.measure(size, net) for _ in range(args.times))
    found = size * 8e-6 / took_s
    return {"mbit": cap, "bytes": size, "took_s": took_s, "goodput_mbit": found, "share": found / cap if cap else None}


def mbit(rate: str) -> float | None:
    """Parse "100mbit" as 100, and "none" as None. Raises UserError for an invalid rate."""
    return None if rate == "none" else parse_bandwidth(rate, "--rates") * 1e-6


def parsed() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True, metavar="FILE")
    parser.add_argument("--runs", type=Path, default=Path("runs/wan"), metavar="FOLDER")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rates", nargs="+", default=["100mbit"], help="rate of each host's link; none: no cap")
    parser.add_argument("--link-delay", default="0ms", help="delay of each packet; needs the kernel's netem")
    parser.add_argument(
        "--recipes", nargs="+", choices=RECIPES, default=["sparseloco-delay", "sparseloco", "diloco-fp16"]
    )
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--sync-every", type=int, default=30)
    parser.add_argument("--delay", type=int, help="inner steps until the landing, for delayed recipes; default: 4")
    parser.add_argument("--merge-local", help="value of merge_local for delayed recipes; default: carry")
    parser.add_argument("--step-s", type=float, default=0.2, help="emulated duration of an inner step in seconds")
    parser.add_argument("--goodput", action="store_true", help="transfer one payload between two hosts; do not train")
    parser.add_argument("--seconds", type=float, default=10.0, help="approximate duration of a transfer")
    parser.add_argument("--times", type=int, default=2)
    parser.add_argument("--most-megabytes", type=float, default=500.0)
    parser.add_argument("options", nargs="*")
    args = parser.parse_intermixed_args()
    if unused := unused_option(args):
        parser.error(unused)
    if not args.goodput and args.rounds <= SKIPPED:
        parser.error(f"--rounds {args.rounds}: choose at least {SKIPPED + 1}, because the first {SKIPPED} do not count")
    args.delay = DELAY if args.delay is None else args.delay
    args.merge_local = args.merge_local or MERGE_LOCAL
    try:
        list(map(mbit, args.rates))
        args.link_delay = parse_seconds(args.link_delay, "--link-delay")
    except UserError as error:
        parser.error(str(error))
    return args


def unused_option(args: argparse.Namespace) -> str:
    """Return one line about an option that was given although no chosen recipe uses it; "" without such an option."""
    for name in ("delay", "merge_local"):
        using = [recipe for recipe, options in RECIPES.items() if f"{{{name}}}" in "".join(options)]
        if getattr(args, name) is not None and (args.goodput or not set(using) & set(args.recipes)):
            chosen = "--goodput" if args.goodput else f"--recipes {' '.join(args.recipes)}"
            option = f"--{name.replace('_', '-')}"
            return f"{option} has no effect with {chosen}: omit it, or choose one of --recipes {' '.join(using)}"
    return ""


def main() -> None:
    """Measure all configurations. Print and save the row of each as soon as it is measured."""
    args, rows, rounds = parsed(), [], []
    ready_or_exit(*delayed(args.link_delay))
    for rate in args.rates:
        for recipe in ["goodput"] if args.goodput else args.recipes:
            row, of_run = (goodput(rate, args), []) if args.goodput else measured(recipe, rate, args)
            rows.append(row)
            rounds += of_run
            show(row)
            write_records(args.json, rows)
            if rounds:
                write_records(args.json.with_suffix(".rounds.json"), rounds, indent=None)


if __name__ == "__main__":
    main()
