"""Divide the workers of a round into random groups. All workers compute the same groups from the same seed."""

from __future__ import annotations

import random

from outerloop.types import Round, UserError


def group_of(rank: int, *, size: int, group: int, seed: int, round_id: Round) -> list[int]:
    """Return the ranks in the group of `rank` in a round, including `rank`, ascending. One group may be smaller."""
    ranks = list(range(size))
    random.Random(f"{seed} {round_id.number} {round_id.fragment}").shuffle(ranks)
    first = ranks.index(rank) // group * group
    return sorted(ranks[first : first + group])


def checked_group(setting: str, group: int) -> int:
    """Return the group size `group`. Raises UserError, naming the setting, if it is below 2."""
    if group < 2:
        raise UserError(f"{setting}={group} must be at least 2: set {setting}=2")
    return group
