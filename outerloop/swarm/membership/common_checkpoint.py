"""Choose the checkpoint from which a resumed run continues: the one that the largest number of members holds.

    held      inner step -> hash of the slow weights, for each checkpoint generation that a peer can resume from
    common    the hash that the largest number of members holds, if more than half do; the newest on a tie

Equal weights are one generation, even if peers hold them after different inner steps: with aggregate=weighted, their
rounds may take different numbers of inner steps. A peer that holds the common hash after several steps resumes from the
step that the largest number of members holds, if it holds that one, else from its newest one. Generations without a
hash are compared by step.

Peers that were killed at different times hold different newest generations. By default, each peer keeps its last two
generations, and the peers resume from one that most of them share. A member that does not hold the common generation is
left out, and a message names it. A dishonest member can hide its own generations or invent others, but it has only one
vote. So it can decide between two generations only if the numbers of honest members that hold them differ by at most
one.

Generations of step 0 do not count, because only peers that loaded their initial weights from others save one. A peer
that holds no other generation can start from scratch, and the peers agree on the initial weights again.

The peers choose based on their opening statements (opening_statements.py). All peers count the same statements, so they
choose the same generation. A peer states ANY if it starts from a state that the caller gave it and cannot go back to
another one. ANY counts as holding every generation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgpack

from outerloop.types import UserError

Held = Mapping[int, str]
Generation = tuple[int, str]
"""(inner step, hash of the slow weights) of a checkpoint."""
Identity = str | int
"""Hash of the slow weights of a checkpoint, or its inner step if the peer has stored no hash.

Two peers hold the same generation if these values are equal.
"""
ANY = "any"
MAX_HELD = 8
MAX_STEP = 1 << 40
HASH_LETTERS = 16


def pack_held(held: Held | str) -> bytes:
    """Pack `held`, the generations that this peer holds or ANY, as this peer's statement to the others."""
    return msgpack.packb([[step, shown] for step, shown in sorted(held.items())] if isinstance(held, Mapping) else held)


def unpack_held(content: bytes) -> Held | str | None:
    """Unpack a peer's statement. Return the generations that it lists, or ANY, or None if it is malformed."""
    try:
        value = msgpack.unpackb(content)
    except ValueError:  # base class of all errors that unpackb raises for malformed bytes
        return None
    if value == ANY:
        return ANY
    if not isinstance(value, list) or len(value) > MAX_HELD:
        return None
    entries: list[Any] = [entry for entry in value if isinstance(entry, list) and list(map(type, entry)) == [int, str]]
    fit = [0 <= step <= MAX_STEP and len(shown) <= HASH_LETTERS and shown.isprintable() for step, shown in entries]
    return {step: shown for step, shown in entries} if len(entries) == len(value) and all(fit) else None


def common(held: Mapping[str, Held | str], *, members: int) -> Generation | None:
    """Return the generation from which more than half of the members can resume, or None to start from scratch.

    Its step is the one that the largest number of members holds; `own_step` returns the step of each member.

    `held`: member name -> its statement, for each member that has sent one. `members`: number of members. Raises
    UserError, whose message lists the generations that each peer holds, if there is a majority neither for one
    generation nor for a start from scratch.
    """
    maps = {peer: _trained(generations) for peer, generations in held.items() if isinstance(generations, Mapping)}
    anything = len(held) - len(maps)
    entries = Counter(entry for generations in maps.values() for entry in generations.items())
    counts = Counter(one for generations in maps.values() for one in set(map(_identity, generations.items())))
    newest: dict[Identity, Generation] = {_identity(entry): entry for entry in sorted(entries)}
    most = max(counts, key=lambda one: (counts[one], newest[one]), default=None)
    same = [entry for entry in entries if _identity(entry) == most]
    best = max(same, key=lambda entry: (entries[entry], entry), default=None)
    if best and most is not None and 2 * (anything + counts[most]) > members:
        return best
    if 2 * (anything + sum(not generations for generations in maps.values())) > members:
        return None
    raise UserError(_nothing_common(maps, best, len(held), members))


def own_step(own: Held | str, chosen: Generation) -> int | None:
    """Return the inner step at which a peer holds the chosen generation, or None if it does not hold it.

    If the peer can go back to no other state than its own (ANY), return the step of the chosen generation.
    """
    if not isinstance(own, Mapping) or chosen in own.items():
        return chosen[0]
    same = [entry for entry in _trained(own).items() if _identity(entry) == _identity(chosen)]
    return max(same)[0] if same else None


def objection(own: Held | str, chosen: Generation | None) -> str:
    """Return why this peer cannot continue from the chosen generation and what to do, or "" if it can."""
    if not isinstance(own, Mapping) or (own_step(own, chosen) is not None if chosen else not _trained(own)):
        return ""
    if chosen is None:
        return (
            f"most peers hold no checkpoint and start from scratch, but this machine holds {shown(own)}: set another"
            " run_dir= here, or stop the other peers and restore their checkpoints"
        )
    return (
        f"most peers resume from step {chosen[0]} with slow weights {chosen[1]}, but this machine holds {shown(own)}:"
        " restart it once they have trained for a few rounds, so that it loads their state"
    )


def without(held: Mapping[str, Held | str], chosen: Generation | None) -> list[str]:
    """Return one message for each peer in `held` that does not hold the chosen generation."""
    maps = {peer: generations for peer, generations in held.items() if isinstance(generations, Mapping)}
    begins = f"the run resumes from step {chosen[0]}" if chosen else "the run starts from scratch"
    lacking = [(peer, own) for peer, own in sorted(maps.items()) if objection(own, chosen)]
    return [f"{begins} without {peer}, which holds {shown(own)}" for peer, own in lacking]


def shown(held: Held) -> str:
    """Return the steps of the held generations as text for a message."""
    return f"step {', '.join(map(str, sorted(held)))}" if held else "no checkpoint"


def _trained(held: Held) -> Held:
    """Return the generations after step 0."""
    return {step: shown for step, shown in held.items() if step > 0}


def _identity(generation: Generation) -> Identity:
    step, shown = generation
    return shown or step


def _nothing_common(maps: Mapping[str, Held], best: Generation | None, stated: int, members: int) -> str:
    each = "; ".join(f"{peer} holds {shown(generations)}" for peer, generations in sorted(maps.items()))
    if best is None:
        return (
            f"only {stated} of {members} peers have stated which checkpoints they hold, too few to start: restart"
            " all peers"
        )
    who = sorted(peer for peer, generations in maps.items() if own_step(generations, best) is not None)
    return (
        f"no checkpoint is held by more than half of the {members} peers: {each}. Step {best[0]} is held by"
        f" {', '.join(who)}: on these peers, set exchange.reform=true exchange.peers={len(who)}, and start the others"
        " once these train; or set another run_dir= on all peers to start from scratch"
    )
