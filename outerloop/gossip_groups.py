"""The workers of a round dealt into random groups: the same deal for all who know the seed, so nobody has to ask."""

from __future__ import annotations

import random

from outerloop.types import Round, UserError


def group_of(rank: int, *, size: int, group: int, seed: int, round: Round) -> list[int]:
    """The ranks, ascending and the own one included, that meet in a round. What does not fill a group stays smaller."""
    ranks = list(range(size))
    random.Random(f"{seed} {round.number} {round.fragment}").shuffle(ranks)
    first = ranks.index(rank) // group * group
    return sorted(ranks[first : first + group])


def checked_group(setting: str, group: int) -> int:
    """How many meet, as a setting says. Raises UserError if that is below 2."""
    if group < 2:
        raise UserError(f"{setting}={group} must be at least 2: type {setting}=2")
    return group
