"""The checkpoint from which the peers of a resumed run go on: the newest of those that most members hold.

    held      inner step -> hash of the slow weights, of each generation that a peer can go on from
    common    the step and hash that the most members hold, of several the newest; more than half have to hold it

Peers that were killed at different moments hold different newest generations; each keeps the last two or more, and all
go back to one that they share. A member that lies can hide its own generations or invent others, and neither stops the
others: a member that does not hold the common one is left out by name. What it can do is choose among the generations
that all the others hold, and make the run go back to the older one.

What counts are the statements of opening_statements.py, equal for all, so that all come to the same. ANY is told by who
goes on from what it was given, and can go back to nothing else: it counts as holding whatever the others hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgpack

from outerloop.types import UserError

Held = Mapping[int, str]
Generation = tuple[int, str]
"""Inner step and hash of the slow weights."""
ANY = "any"
MOST_HELD = 8
MAX_STEP = 1 << 40
HASH_LETTERS = 16


def told(held: Held | str) -> bytes:
    """Return what others are told of it."""
    return msgpack.packb([[step, shown] for step, shown in sorted(held.items())] if isinstance(held, Mapping) else held)


def parsed(content: bytes) -> Held | str | None:
    """Return what another peer told; None for nonsense."""
    try:
        value = msgpack.unpackb(content)
    except ValueError:  # every way in which msgpack refuses bytes is one
        return None
    if value == ANY:
        return ANY
    if not isinstance(value, list) or len(value) > MOST_HELD:
        return None
    entries: list[Any] = [one for one in value if isinstance(one, list) and list(map(type, one)) == [int, str]]
    fit = [0 <= step <= MAX_STEP and len(shown) <= HASH_LETTERS and shown.isprintable() for step, shown in entries]
    return {step: shown for step, shown in entries} if len(entries) == len(value) and all(fit) else None


def common(held: Mapping[str, Held | str], *, members: int) -> Generation | None:
    """Return the generation with which more than half of so many members go on; None: they begin anew.

    `held`: by name, of the members that have told it. Raises UserError, saying who holds what, when no more than half
    of the members hold the same.
    """
    maps = {peer: one for peer, one in held.items() if isinstance(one, Mapping)}
    anything = len(held) - len(maps)
    counts = {entry: anything + sum(entry in one.items() for one in maps.values()) for entry in _entries(maps)}
    best = max(counts, key=lambda entry: (counts[entry], entry), default=None)
    if best and 2 * counts[best] > members:
        return best
    if 2 * (anything + sum(not one for one in maps.values())) > members:
        return None
    raise UserError(_nothing_common(maps, best, len(held), members))


def objection(own: Held | str, chosen: Generation | None) -> str:
    """Return why this peer cannot go on with most of the others, and what to type; empty when it can."""
    if not isinstance(own, Mapping) or (chosen in own.items() if chosen else not own):
        return ""
    if chosen is None:
        return (
            f"most peers hold no checkpoint and begin anew, and this machine holds {shown(own)}: type another run_dir="
            " here, or end the others and bring back their checkpoints"
        )
    return (
        f"most peers go on from step {chosen[0]} with slow weights {chosen[1]}, and this machine holds {shown(own)}:"
        " start it again once they have trained for a few rounds, and it takes over their state"
    )


def without(held: Mapping[str, Held | str], chosen: Generation | None) -> list[str]:
    """Return one line for each of these peers that does not hold what most go on with."""
    lacking = [(peer, one) for peer, one in sorted(held.items()) if isinstance(one, Mapping) and objection(one, chosen)]
    begins = f"goes on from step {chosen[0]}" if chosen else "begins anew"
    return [f"{begins} without {peer}, which holds {shown(one)}" for peer, one in lacking if isinstance(one, Mapping)]


def shown(held: Held) -> str:
    """The steps of it, for people."""
    return f"step {', '.join(map(str, sorted(held)))}" if held else "none"


def _entries(maps: Mapping[str, Held]) -> set[Generation]:
    return {entry for one in maps.values() for entry in one.items()}


def _nothing_common(maps: Mapping[str, Held], best: Generation | None, told: int, members: int) -> str:
    each = "; ".join(f"{peer} holds {shown(one)}" for peer, one in sorted(maps.items()))
    if best is None:
        return f"{told} of {members} peers have told which checkpoints they hold, too few to begin: start all again"
    who = sorted(peer for peer, one in maps.items() if best in one.items())
    return (
        f"no checkpoint is held by more than half of the {members} peers: {each}. Step {best[0]} is held by"
        f" {', '.join(who)}: there type exchange.reform=true exchange.peers={len(who)}, and start the others once these"
        " train, or type another run_dir= everywhere to begin anew"
    )
