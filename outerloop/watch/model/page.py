"""Define the state of the page, which is also the content of /status.json (docs/reference/watch.md).

The schema in static/status.schema.json states the same for other programs. Change VERSION if a field is removed or its
meaning changes; a new field keeps the version. Seconds end in `_s`. A value that no record states is None.
"""

from __future__ import annotations

from typing import Literal, TypedDict

VERSION = 1

Number = float | int | Literal["nan", "inf", "-inf"] | None
"""A number. Those that JSON lacks are texts, so that the page of a diverged run shows them."""
RunPhase = Literal["starting", "running", "silent", "finished", "stopped", "died"]
PeerPhase = Literal[
    "starting", "training", "waiting", "catching up", "failed", "silent", "finished", "left", "died", "expelled"
]
EventKind = Literal[
    "joined",
    "left",
    "killed",
    "diverged",
    "refused",
    "accused",
    "audited",
    "caught up",
    "failed",
    "waiting",
    "saved",
    "finished",
    "note",
]
Cell = float | Literal["failed", "absent"] | None
"""Lateness in seconds of one peer in one round, "failed", "absent" (others decided without it), or None: not known."""


class Link(TypedDict):
    """A result of the run on its own machine. `path` is relative to the run directory."""

    name: str
    path: str


class Header(TypedDict):
    """The run as a whole. `updated_s`: time of the newest record, in seconds since 1970."""

    name: str
    state: RunPhase
    reason: str
    cure: str
    recipe: str
    model: str
    params: int | None
    peers: int | None
    alive: int | None
    round: int
    rounds: int | None
    step: int
    steps: int | None
    tokens: int | None
    tokens_total: int | None
    tokens_per_s: Number
    elapsed_s: Number
    eta_s: Number
    loss: Number
    val_loss: Number
    bits_per_param_per_round: Number
    bits_per_param_per_step: Number
    bytes_sent: int
    utilization: Number
    updated_s: Number
    links: list[Link]


class Stage(TypedDict):
    """One stage of a round. `seconds`: its duration in the last landed round."""

    name: str
    seconds: Number
    active: bool


class Strip(TypedDict):
    """The round at hand: its stages in order, and in words what is happening or missing."""

    round: int
    stages: list[Stage]
    text: str


class Peer(TypedDict):
    """One peer, as described by its own records. `public_name`: the name that it chose, which others may have too."""

    name: str
    id: str
    public_name: str
    state: PeerPhase
    reason: str
    cure: str
    round: int
    step: int | None
    loss: Number
    tokens_per_s: Number
    samples: int | None
    bytes_sent: int | None
    bytes_received: int | None
    address: str
    relayed: bool | None
    round_trip_s: Number
    refused: int | None
    late_s: Number
    age_s: Number


class TimelineTable(TypedDict):
    """The lateness of each peer in the last rounds. `cells` has one list per peer, with one entry per round."""

    rounds: list[int]
    peers: list[str]
    cells: list[list[Cell]]


class CurveTable(TypedDict):
    """One curve. Its columns have equal lengths; a column that no record fills contains only None."""

    chart: str
    name: str
    round: list[Number]
    step: list[Number]
    tokens: list[Number]
    bytes: list[Number]
    time_s: list[Number]
    y: list[Number]


class LogEntry(TypedDict):
    """One event. `time_s`: seconds since the run or the observation began."""

    number: int
    time_s: Number
    kind: EventKind
    peer: str
    text: str


class Contributor(TypedDict):
    """The contribution of one peer.

    `peer`: peer id; "" for all peers that are counted together. `name`: the public name that it chose. `rounds`: rounds
    that counted it, from `first_round` to `last_round`, counted from 1. `online`: whether it takes part now.
    """

    peer: str
    name: str
    samples: int
    rounds: int | None
    first_round: int | None
    last_round: int | None
    online: bool | None


class Counted(TypedDict):
    """The extent of the list of contributors.

    `text`: in words. `round`: last counted round; null if the samples are what each worker of this machine states about
    itself. `peers`, `samples`: of all contributors, listed or not. `complete`: whether all peers of the run count,
    or only workers of this machine. `asked`, `equal`: other peers of a swarm that stated their counts as of this round,
    and how many of them are equal.
    """

    text: str
    round: int | None
    peers: int
    samples: int
    complete: bool
    asked: int
    equal: int


class TableText(TypedDict):
    """A table of texts. The first `words` columns are words, the others numbers."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    words: int


class ParetoPoint(TypedDict):
    """The mean final loss of one group of runs, and the bytes that a worker sent for it."""

    label: str
    bytes: Number
    loss: Number
    runs: int
    front: bool


class Sweep(TypedDict):
    """The comparison of `outerloop report`."""

    tables: list[TableText]
    pareto: list[ParetoPoint]
    notes: list[str]


class Page(TypedDict):
    """The whole page. A sweep has empty parts for the run, a run has sweep=None."""

    version: int
    kind: Literal["run", "swarm", "sweep"]
    run: Header
    phase: Strip | None
    peers: list[Peer]
    timeline: TimelineTable
    curves: list[CurveTable]
    events: list[LogEntry]
    contributors: list[Contributor]
    counted: Counted | None
    sweep: Sweep | None
