"""The checkpoint from which the peers of a resumed run go on: the newest that all of them hold.

    held     inner step -> hash of the slow weights, of each generation that a peer can go on from
    common   newest step that is in every peer's, with one hash

Peers that were killed at different moments hold different newest generations; each keeps the last two or more, and all
go back to one that they share. What peers tell while the swarm forms (membership.py) is all that this is made of, so
that all come to the same. ANY is told by who goes on from what it was given, and can go back to nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from outerloop.types import UserError

Held = Mapping[int, str]
ANY = "any"
MOST_HELD = 8
MAX_STEP = 1 << 40
HASH_LETTERS = 16


def told(held: Held | str | None) -> Any:
    """What is told of it; nothing while it is not known yet."""
    return [[step, shown] for step, shown in sorted(held.items())] if isinstance(held, Mapping) else held


def parsed(value: Any) -> Held | str | None:
    """Return what another peer told; None when it does not know yet, or tells nonsense: it is asked again."""
    if value == ANY:
        return ANY
    if not isinstance(value, list) or len(value) > MOST_HELD:
        return None
    entries: list[Any] = [one for one in value if isinstance(one, list) and list(map(type, one)) == [int, str]]
    fit = [0 <= step <= MAX_STEP and len(shown) <= HASH_LETTERS and shown.isprintable() for step, shown in entries]
    return {step: shown for step, shown in entries} if len(entries) == len(value) and all(fit) else None


def common(held: Mapping[str, Held | str]) -> int | None:
    """Return the newest step that all these peers hold alike; None where nobody has any. By name; ANY is left out.

    Raises UserError, saying who holds what, when some do and there is none in common.
    """
    maps = {peer: one for peer, one in held.items() if isinstance(one, Mapping)}
    if not any(maps.values()):
        return None
    shared = set.intersection(*(set(one.items()) for one in maps.values()))
    if shared:
        return max(shared)[0]
    counts = Counter(entry for one in maps.values() for entry in one.items())
    step, _ = best = max(counts, key=lambda entry: (counts[entry], entry))
    who = sorted(peer for peer, one in maps.items() if best in one.items())
    each = "; ".join(f"{peer} holds {shown(one)}" for peer, one in sorted(maps.items()))
    raise UserError(
        f"no checkpoint is held by all: {each}. Step {step} is held by {', '.join(who)}: there type"
        f" exchange.reform=true exchange.peers={len(who)}, and start the others once these train, or type another"
        " run_dir= everywhere to begin anew"
    )


def shown(held: Held) -> str:
    """The steps of it, for people."""
    return f"step {', '.join(map(str, sorted(held)))}" if held else "none"
