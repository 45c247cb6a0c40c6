"""Draw how long each process of bench_churn.py stays and how long it is away."""

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
    """Seconds since the start of the run or since the end of the previous stay."""
    alive_s: float
    """Seconds from the process's first counted payload to its departure; infinite: to the end of the run."""


def stays(process: int, *, alive_s: tuple[float, float], seed: int) -> Iterator[Stay]:
    """Yield the stays of a process, without end.

    Process i first arrives after i · ARRIVE_S seconds. The lengths of stays and absences are uniformly random in
    `alive_s` and AWAY_S.
    """
    rng = random.Random(f"{seed}/{process}")
    away_s = process * ARRIVE_S
    while True:
        yield Stay(away_s, rng.uniform(*alive_s))
        away_s = rng.uniform(*AWAY_S)


def calm_stays(process: int) -> Iterator[Stay]:
    """Yield a single stay, which begins like the first one of `stays` and lasts to the end."""
    yield Stay(process * ARRIVE_S, math.inf)


def is_killed(departure: int, *, kill_every: int) -> bool:
    """Return whether the departure with this number, counted from 1, is a kill: every `kill_every`-th one; 0: none."""
    return kill_every > 0 and departure % kill_every == 0
