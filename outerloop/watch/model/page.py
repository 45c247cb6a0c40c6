"""Define the state of the page, which is also the content of /status.json (docs/reference/watch.md).

Other programs can read the same definition as a JSON schema, /status.schema.json, which schema.py derives from these
types. Change VERSION if a field is removed or its meaning changes, but not if a field is added. Names of fields in
seconds end in `_s`. A value that is not known is None.
"""

from __future__ import annotations

from typing import Literal, TypedDict

VERSION = 1

Number = float | int | Literal["nan", "inf", "-inf"] | None
"""A number. NaN and the infinities, which JSON lacks, are texts, so that the page of a diverged run can show them."""
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
"""Lateness of one peer in one round, in seconds. "failed": the round failed at this peer. "absent": the other peers
decided the round without it. None: not known.
"""


class Link(TypedDict):
    """A file or folder that the run has written on its own machine. `path` is relative to the run directory."""

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
    """The current round: its stages in order. `text`: what is happening, or what is missing."""

    round: int
    stages: list[Stage]
    text: str


class Peer(TypedDict):
    """One peer, as its own records describe it. `public_name`: a name that it chose; other peers may have the same."""

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
    """The lateness of each peer in the last rounds. `cells` has one list per entry of `peers`, one entry per round."""

    rounds: list[int]
    cells: list[list[Cell]]


class CurveTable(TypedDict):
    """One curve. Its columns have equal lengths; a column without values contains only None."""

    chart: str
    name: str
    round: list[Number]
    step: list[Number]
    tokens: list[Number]
    bytes: list[Number]
    time_s: list[Number]
    y: list[Number]


class LogEntry(TypedDict):
    """One event. `time_s`: seconds since the start of the run, or of the observation if a swarm is watched."""

    number: int
    time_s: Number
    kind: EventKind
    peer: str
    text: str


class Contributor(TypedDict):
    """The contribution of one peer.

    `peer`: peer id; "" for all peers that are counted together. `name`: the public name that it chose. `rounds`: number
    of rounds that counted it. `first_round`, `last_round`: the first and the last of these rounds, counted from 1.
    `online`: whether it takes part now.
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

    `text`: the extent in words. `round`: the last counted round; null if each worker of this machine has counted its
    own samples. `peers`, `samples`: number of contributors and of their samples, including those that are not listed.
    `complete`: whether the list covers all peers of the run, or only workers of this machine. `asked`: number of other
    peers of a swarm that stated their counts as of this round. `equal`: how many of them stated the same counts.
    """

    text: str
    round: int | None
    peers: int
    samples: int
    complete: bool
    asked: int
    equal: int


class TableText(TypedDict):
    """A table whose cells are texts. The first `words` columns contain words, the others numbers."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    words: int


class ParetoPoint(TypedDict):
    """One group of runs: mean final loss, mean payload bytes sent per worker. `front`: on the Pareto front."""

    label: str
    bytes: Number
    loss: Number
    runs: int
    front: bool


class Sweep(TypedDict):
    """The runs of a sweep, compared as in `outerloop report`."""

    tables: list[TableText]
    pareto: list[ParetoPoint]
    notes: list[str]


class Page(TypedDict):
    """The whole page. A page of a sweep has empty `peers`, `curves` and so on; any other page has null as `sweep`."""

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
