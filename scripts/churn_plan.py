"""Draw at random how long each process of bench_churn.py stays in the run, and how long it is away."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

ARRIVE_S = 10.0
"""Seconds between the first arrivals of two processes."""
AWAY_S = (15.0, 90.0)
"""Shortest and longest time between a departure and the return of the same process, in seconds."""


@dataclass(frozen=True)
class Stay:
    """One stay of a process."""

    away_s: float
    """Seconds from the end of the previous stay (at first: from the start of the run) to the start of this one."""
    alive_s: float
    """Seconds from the process's first counted payload to its departure; infinite: to the end of the run."""


def stays(process: int, *, alive_s: tuple[float, float], seed: int) -> Iterator[Stay]:
    """Yield an infinite sequence of stays of a process.

    Process i first arrives after i · ARRIVE_S seconds. The lengths of stays and of absences are uniformly distributed
    in the intervals `alive_s` and AWAY_S.
    """
    rng = random.Random(f"{seed}/{process}")
    away_s = process * ARRIVE_S
    while True:
        yield Stay(away_s, rng.uniform(*alive_s))
        away_s = rng.uniform(*AWAY_S)


def calm_stays(process: int) -> Iterator[Stay]:
    """Yield a single stay, which begins like the first one of `stays` but lasts to the end of the run."""
    yield Stay(process * ARRIVE_S, math.inf)


def is_killed(departure: int, *, kill_every: int) -> bool:
    """Return whether a departure is a kill: every `kill_every`-th one is, or none if `kill_every` is 0.

    `departure`: number of the departure, counted from 1.
    """
    return kill_every > 0 and departure % kill_every == 0
