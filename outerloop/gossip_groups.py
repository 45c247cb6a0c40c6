"""Divide the workers of a round into random groups. Workers with the same seed compute the same groups."""

from __future__ import annotations

import random

from outerloop.types import Round, UserError


def group_of(rank: int, *, size: int, group: int, seed: int, round_id: Round) -> list[int]:
    """Return the sorted ranks of the group that contains `rank` in this round. The last group may be smaller."""
    ranks = list(range(size))
    random.Random(f"{seed} {round_id.number} {round_id.fragment}").shuffle(ranks)
    first = ranks.index(rank) // group * group
    return sorted(ranks[first : first + group])


def checked_group(setting: str, group: int) -> int:
    """Return the group size unchanged. Raises UserError, which names the setting, if it is less than 2."""
    if group < 2:
        raise UserError(f"{setting}={group} must be at least 2: set {setting}=2")
    return group
