"""`outerloop status`: show the peers of a running swarm without taking part in its rounds."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from statistics import median_high

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from outerloop.commands.arguments import Parser
from outerloop.commands.inspect import make_table
from outerloop.commands.observe import RunObservation, SeenPeers, observe_run
from outerloop.core.contributor_rows import ContributorTable
from outerloop.launcher.interrupts import Terminated, raise_terminated
from outerloop.report.contributors import COLUMNS, contributor_cells, total_of
from outerloop.sinks.console import format_bytes
from outerloop.swarm.accountability.evidence import Evidence
from outerloop.swarm.membership.known_addresses import peer_of
from outerloop.swarm.membership.roster import Record
from outerloop.swarm.membership.status import Status
from outerloop.swarm.p2p.daemon import check_addresses
from outerloop.swarm.timeouts import HISTORY_S, WATCH_S
from outerloop.types import UserError

PIPE_WIDTH = 180
"""Table width in characters when the output is a file or a pipe."""

DESCRIPTION = """\
Shows the peers of a running swarm: the last round of each, how many peers took part in it ("no": the round failed for
this peer; "not counted": the round landed without its payload, which came late or was refused), loss, speed and bytes.
This command only observes: it is not in the roster and takes part in no round. A second table lists what each peer has
contributed over the whole run: samples and rounds that counted it. Ctrl-C stops the display, not the run."""

EXAMPLES = """\
examples
  outerloop status /ip4/198.51.100.7/tcp/4242/p2p/12D3Koo...           live; use the address that a peer printed
  outerloop status /ip4/198.51.100.7/tcp/4242/p2p/12D3Koo... --once    print one table and exit
  outerloop status /ip4/198.51.100.7/tcp/4242/p2p/12D3Koo... --run mine
                       exchange.run=mine of peers with their own training program, which do not state it
  outerloop status /ip4/198.51.100.7/tcp/4242/p2p/12D3Koo... --run-dir runs/mine
                       a run with exchange.allow, on the machine of the peer at that address

A peer reports its status every 5 to 20 s, so the table lags a little; "updated" is the age of a row. A peer that died
without leaving stays in the table for a minute. Each row is what the peer claims about itself, signed with its key.
Nothing else proves the claim. Names are chosen by the peers and need not be unique: compare the ends of the peer ids.

All peers count the contributions in the same way. The second table shows the counts of the peer at this address, and
how many of up to 16 other peers state the same. Runs with exchange=swarm_gossip do not count contributions."""


def parser() -> Parser:
    """Return the option parser."""
    out = Parser("status", example="outerloop status ADDR", description=DESCRIPTION, epilog=EXAMPLES)
    out.add_argument("address", metavar="ADDR", help="address of any running peer of the swarm")
    out.add_argument("--run", metavar="NAME", help="exchange.run of this peer (default: the peer is asked)")
    out.add_argument("--run-dir", type=Path, metavar="DIR", help="run_dir of this peer, if the run has exchange.allow")
    out.add_argument("--once", action="store_true", help="print one table; implied if the output is not a terminal")
    return out


def main(arguments: Sequence[str]) -> int:
    """Run the command. Return exit code 0, even if Ctrl-C ends the live table.

    Raises UserError if an option is invalid, or if the run cannot be observed.
    """
    options = parser().parse_args(arguments)
    check_addresses("status", [options.address], must_name="p2p")
    signal.signal(signal.SIGTERM, raise_terminated)
    terminal = sys.stdout.isatty()
    console = Console() if terminal else Console(width=PIPE_WIDTH)
    with observe_run(options.address, run=options.run, run_dir=options.run_dir) as observation:
        if terminal and not options.once:
            watch(observation, console, asked=peer_of(options.address))
        else:
            console.print(
                page(
                    observation.run,
                    require_peers(observation.seen(), observation.run),
                    observation.expelled(wait_s=2 * HISTORY_S),
                    observation.contributions(wait_s=2 * HISTORY_S),
                    asked=peer_of(options.address),
                )
            )
    return 0


def watch(observation: RunObservation, console: Console, *, asked: str) -> None:
    """Show the live table until Ctrl-C. `asked`: id of the observed peer. Raises Terminated on SIGTERM."""

    def current_page() -> Group:
        return page(
            observation.run, observation.seen(), observation.expelled(), observation.contributions(), asked=asked
        )

    try:
        with Live(current_page(), console=console, auto_refresh=False) as live:
            while True:
                time.sleep(WATCH_S)
                live.update(current_page(), refresh=True)
    except Terminated:
        raise
    except KeyboardInterrupt:
        pass


def require_peers(seen: SeenPeers, run: str) -> SeenPeers:
    """Return `seen` unchanged. Raises UserError if it is empty."""
    if not seen:
        raise UserError(f"no peer of run {run!r} found: pass --run with the exchange.run of the swarm")
    return seen


def page(
    run: str,
    seen: SeenPeers,
    expelled: Sequence[Evidence] | None = (),
    contributions: ContributorTable | None = None,
    *,
    asked: str = "",
) -> Group:
    """Return a headline, the table of all peers, the table of all contributors, and one line for each expelled peer.

    `expelled`, `contributions`: None if they are not known. `asked`: id of the peer that was asked for them.
    """
    lines = [Text(f"expelled: {short_name(evidence.peer)} {evidence.why}") for evidence in expelled or ()]
    if expelled is None:
        lines.append(Text(f"expelled: not known, because {why_unknown(asked, seen)}"))
    counted = contributors_part(contributions, {record.peer_id for record, _ in seen}) if contributions else []
    return Group(Text(headline(run, seen)), table(seen), *counted, *lines)


def why_unknown(asked: str, seen: SeenPeers) -> str:
    """Return why the peer `asked` (id) does not state which peers are expelled: relays do not know it."""
    if seen and asked not in {record.peer_id for record, _ in seen}:
        return "the peer at this address does not take part in the run, like a relay: use the address of one that does"
    return "the peer at this address has not answered"


def contributors_part(contributions: ContributorTable, present: Collection[str]) -> list[Text | Table]:
    """Return the table of all peers that have contributed to the run, including those that have left.

    `present`: ids of the peers that are present.
    """
    rows = contributions.rows
    total = total_of(rows)
    title = f"contributors to rounds 1 to {contributions.round}"
    if contributions.asked:
        title += f"; {contributions.equal} of {contributions.asked} other peers state the same counts"
    cells = [[*contributor_cells(row, total), "yes" if row.peer in present else "no"] for row in rows]
    return [Text(title), make_table(COLUMNS[:2], [*COLUMNS[2:], "present"], cells)]


def headline(run: str, seen: SeenPeers) -> str:
    """Return the headline: the number of peers in the run, and how many of them took part in the newest round.

    The newest round is the one that half of the peers with a round have reached. The second number is the upper median
    of what peers report for their own last round. A single peer could claim any number.
    """
    known = [status for record, _ in seen if (status := record.status) and status.round]
    newest = sorted((status.round for status in known), reverse=True)[(len(known) - 1) // 2] if known else 0
    took_part = median_high([status.peers for status in known if status.peers] or [0])
    last = f"{took_part} took part in round {newest}" if newest else "no round yet"
    return f"run {run}: {len(seen)} peer{'s' * (len(seen) != 1)}, {last}"


def table(seen: SeenPeers) -> Table:
    """Return a table with one row per peer.

    Records come from untrusted peers. Each text in them has already been limited to one line of bounded length.
    """
    return make_table(
        ["peer", "name", "address"],
        ["round", "took part", "loss", "tokens/s", "sent", "received", "commit", "updated"],
        [
            [
                short_name(record.name),
                record.title,
                peer_address(record),
                *status_cells(record.status or Status()),
                f"{age_s:.0f} s ago",
            ]
            for record, age_s in seen
        ],
    )


def short_name(name: str) -> str:
    """Shorten a peer name to its worker index and the end of its peer id. All peer ids begin with the same letters."""
    return f"{name[:3]}-…{name[-8:]}"


def peer_address(record: Record) -> str:
    """Return the most widely reachable address of a record (its first), without the peer id, or "" if it has none."""
    return record.addresses[0].partition("/p2p/")[0] if record.addresses else ""


def status_cells(status: Status) -> list[str]:
    """Return the cells that show a peer's status.

    A cell is empty if the peer has not reported its value yet, except that byte counts are 0 until then.
    """
    landed = f"{status.peers} peers" if status.counted else f"{status.peers} peers, not counted"
    took_part = (landed if status.peers else "no") if status.round else ""
    return [
        str(status.round or ""),
        took_part if status.loading is None else f"loads the state: {100 * status.loading:.0f} %",
        "" if status.loss is None else f"{status.loss:.4g}",
        "" if status.tokens_per_s is None else f"{status.tokens_per_s:,.0f}",
        format_bytes(status.bytes_sent),
        format_bytes(status.bytes_received),
        status.commit[:8],
    ]
