"""Write the state of the page as plain text, for `curl` and terminals."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Literal

from outerloop.report.contributors import COLUMNS as CONTRIBUTOR_COLUMNS
from outerloop.report.contributors import share, short_id
from outerloop.report.units import si_scale
from outerloop.watch.model.page import Contributor, Header, Number, Page, Peer, TableText
from outerloop.watch.model.values import short_name

COLUMNS = (
    "peer",
    "name",
    "state",
    "round",
    "step",
    "loss",
    "tokens/s",
    "samples",
    "sent",
    "received",
    "refused",
    "late",
)
EVENTS = 10
"""Number of events that the text shows: the last ones."""
CONTRIBUTORS = 20
"""Number of contributors that the text shows: the first ones."""
DASH = "–"
ROUNDS: tuple[Literal["rounds", "first_round", "last_round"], ...] = ("rounds", "first_round", "last_round")
"""Fields of a contributor that are numbers of rounds."""
NAME = re.compile(r"\b\d{3}-\w{20,128}", re.ASCII)
"""Pattern of the name of a swarm's peer, which may occur anywhere in a line."""


def page_text(page: Page | None, problem: str) -> str:
    """Return the page as text. `problem`: why the source cannot be read, or ""."""
    lines = [f"problem: {problem}", ""] if problem else []
    if page is None:
        return "\n".join([*lines, "nothing has been read yet"]) + "\n"
    lines += sweep_lines(page) if page["kind"] == "sweep" else run_lines(page)
    return "\n".join(lines) + "\n"


def run_lines(page: Page) -> Iterator[str]:
    """Yield the lines of a run or a swarm."""
    run = page["run"]
    yield from header_lines(run)
    if page["phase"] is not None:
        yield f"now        round {page['phase']['round']}: {with_short_names(page['phase']['text'])}"
    yield ""
    yield from aligned([list(COLUMNS), *(peer_cells(peer) for peer in page["peers"])], words=3)
    for peer in page["peers"]:
        if peer["reason"]:
            yield f"{short_name(peer['name'])}: {with_short_names(peer['reason'])}"
    yield from contributor_lines(page)
    yield ""
    for entry in page["events"][-EVENTS:]:
        what = f"{short_name(entry['peer'])} {with_short_names(entry['text'])}"
        yield f"{duration(entry['time_s']):>9}  {entry['kind']:9}  {what}"


def header_lines(run: Header) -> Iterator[str]:
    """Yield the lines about the run as a whole."""
    yield f"{run['name']}: {run['state']}" + (f", {run['reason']}" if run["reason"] else "")
    if run["cure"]:
        yield f"to do      {run['cure']}"
    yield f"recipe     {run['recipe']}, model {run['model'] or DASH}, {amount(run['params'])} parameters"
    yield f"progress   round {run['round']} of {run['rounds'] or DASH}, step {run['step']} of {run['steps'] or DASH}"
    yield f"tokens     {amount(run['tokens'])} of {amount(run['tokens_total'])}, {amount(run['tokens_per_s'])} tokens/s"
    yield f"time       {duration(run['elapsed_s'])}, left {duration(run['eta_s'])}"
    yield f"loss       {decimal(run['loss'])} training, {decimal(run['val_loss'])} validation [nats per token]"
    per_round, per_step = decimal(run["bits_per_param_per_round"]), decimal(run["bits_per_param_per_step"], 5)
    sent = amount(run["bytes_sent"], "B")
    yield f"payload    {per_round} bits per parameter and round, {per_step} per step, sent {sent}"
    yield f"use        {decimal(run['utilization'])} of the time in inner steps"


def peer_cells(peer: Peer) -> list[str]:
    """Return the cells of one peer."""
    return [
        short_name(peer["name"]),
        peer["public_name"],
        peer["state"],
        str(peer["round"]),
        DASH if peer["step"] is None else str(peer["step"]),
        decimal(peer["loss"]),
        amount(peer["tokens_per_s"]),
        amount(peer["samples"]),
        amount(peer["bytes_sent"], "B"),
        amount(peer["bytes_received"], "B"),
        amount(peer["refused"]),
        duration(peer["late_s"]),
    ]


def contributor_lines(page: Page) -> Iterator[str]:
    """Yield the table of the first CONTRIBUTORS contributors, or nothing if there is none."""
    counted, entries = page["counted"], page["contributors"]
    if counted is None:
        return
    yield ""
    yield f"contributors ({counted['text']})"
    rows = [contributor_cells(entry, counted["samples"]) for entry in entries[:CONTRIBUTORS]]
    yield from aligned([[*CONTRIBUTOR_COLUMNS, "online"], *rows], words=2)
    if counted["peers"] > len(rows):
        yield f"and {counted['peers'] - len(rows)} more"


def contributor_cells(entry: Contributor, total: int) -> list[str]:
    """Return the cells of one contributor. `total`: samples of all contributors."""
    rounds = [DASH if (number := entry[name]) is None else str(number) for name in ROUNDS]
    samples = [f"{entry['samples']:,}", share(entry["samples"], total)]
    online = {True: "yes", False: "no", None: DASH}[entry["online"]]
    return [entry["name"], short_id(entry["peer"]), *samples, *rounds, online]


def sweep_lines(page: Page) -> Iterator[str]:
    """Yield the tables and notes of a sweep."""
    yield page["run"]["name"]
    for table in page["sweep"]["tables"] if page["sweep"] else ():
        yield from table_lines(table)
    for note in page["sweep"]["notes"] if page["sweep"] else ():
        yield f"note: {note}"


def table_lines(table: TableText) -> Iterator[str]:
    """Yield the title and rows of a table, or nothing if it has no rows."""
    if table["rows"]:
        yield ""
        yield table["title"]
        yield from aligned([table["columns"], *table["rows"]], words=table["words"])


def aligned(rows: Sequence[Sequence[str]], *, words: int) -> Iterator[str]:
    """Yield each row as a line with aligned columns: the first `words` columns to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.ljust(width) if i < words else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()


def with_short_names(line: str) -> str:
    """Shorten every name of a peer in a line."""
    return NAME.sub(lambda name: short_name(name[0]), line)


def decimal(value: Number, digits: int = 3) -> str:
    """Format a number with a fixed number of decimals, or a dash if it is not known."""
    if value is None or isinstance(value, str):
        return value or DASH
    return f"{value:.{digits}f}" if abs(value) < 1e6 else f"{value:.{digits}e}"


def amount(value: Number, unit: str = "") -> str:
    """Format a number with an SI prefix: 1234567 -> "1.23 M"."""
    if value is None or isinstance(value, str):
        return value or DASH
    factor, prefix = si_scale(value)
    return f"{value / factor:.4g} {prefix}{unit}".strip()


def duration(value: Number) -> str:
    """Format seconds: 3725 -> "1h02m"."""
    if value is None or isinstance(value, str):
        return value or DASH
    if value < 60:
        return f"{value:.1f}s"
    hours, minutes = divmod(int(value) // 60, 60)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{int(value) % 60:02}s"
