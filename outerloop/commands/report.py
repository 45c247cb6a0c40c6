"""`outerloop report`: compare runs, averaged over seeds: print a table, and write an HTML page and its figures."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from outerloop.commands.arguments import Parser
from outerloop.report import runs, terminal
from outerloop.report.groups import DEFAULT_BASELINE, Comparison
from outerloop.report.runs import Run
from outerloop.report.units import parse_bandwidth
from outerloop.sinks.sink import print_line
from outerloop.state import checkpoint
from outerloop.types import UserError

SLOW_S = 2.0
"""Reading time in seconds after which a progress bar appears."""

DESCRIPTION = """\
Compares runs: loss, cost, and the settings that differ. Runs that differ only in their seed form one group, shown as
mean and standard deviation. Runs that died or are still running are listed, but excluded from the means."""

EXAMPLES = """\
examples
  outerloop report runs                                all runs in and under runs/, at any depth
  outerloop report runs/a runs/b --out compared        two runs; page and pictures go to compared/
  outerloop report runs/2026-11-21_03-58-52-sweep      one sweep (train -m); the page goes to its report/
  outerloop report runs --bandwidth 20mbit             simulated clock for a slow link
  outerloop report runs --baseline diloco              gaps to diloco's loss, in percent

files written
  report.html      everything on one self-contained page: embedded pictures, no scripts
  loss_tokens.png loss_bytes.png loss_clock.png pareto.png, and spread.png when replicas differ (gossip)

the simulated clock
  measured seconds per inner step, plus payload bytes x copies / bandwidth for each round: the time that the same run
  would take on that link. Latency is ignored."""


def parser() -> Parser:
    """Return the option parser."""
    out = Parser("report", example="outerloop report runs", description=DESCRIPTION, epilog=EXAMPLES)
    out.add_argument("dirs", nargs="+", type=Path, metavar="DIR", help="a run, or a folder with runs at any depth")
    out.add_argument("--out", type=Path, metavar="FOLDER", help="where to write (default: report/ in the first DIR)")
    out.add_argument("--bandwidth", default="100mbit", help="uplink per worker: kbit, mbit, gbit (default: 100mbit)")
    out.add_argument(
        "--baseline", metavar="RECIPE", help=f"recipe to measure gaps against (default: {DEFAULT_BASELINE})"
    )
    return out


def main(arguments: Sequence[str]) -> int:
    """Run the command and return exit code 0.

    Raises UserError if an option is invalid, a run cannot be read, or the report cannot be written.
    """
    options = parser().parse_args(arguments)
    console = terminal.console()
    bits_per_s = parse_bandwidth(options.bandwidth)
    comparison = Comparison(read_all(runs.find(options.dirs)), baseline=options.baseline)
    page = write(comparison, options.out or options.dirs[0] / "report", bits_per_s=bits_per_s)
    terminal.print_comparison(comparison, console)
    print_line(console, f"page  {page}")
    return 0


def read_all(paths: Sequence[Path]) -> list[Run]:
    """Read all runs. Show a progress bar if reading takes longer than SLOW_S."""
    bar = Progress(console=Console(stderr=True), transient=True)
    task, start_s, found = bar.add_task("reading runs", total=len(paths)), time.monotonic(), []
    try:
        for path in paths:
            if bar.console.is_terminal and time.monotonic() - start_s > SLOW_S:
                bar.start()
            found.append(runs.read(path))
            bar.advance(task)
    finally:
        if bar.live.is_started:
            bar.stop()
    return found


def write(comparison: Comparison, folder: Path, *, bits_per_s: float) -> Path:
    """Write the pictures and the page that embeds them. Return the path of the page.

    Raises UserError if they cannot be written.
    """
    from outerloop.report.figures import draw_all
    from outerloop.report.html import page

    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        pictures = draw_all(comparison, folder, bits_per_s=bits_per_s)
        html = page(comparison, pictures).encode(errors="backslashreplace")
        checkpoint.write_atomically(folder / "report.html", html)
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"{folder} cannot be written ({reason}): pass --out with another name") from error
    return folder / "report.html"
