"""Begin a run with equal slow weights on all peers that share them, whatever their CPUs.

    all meet:          rounds under way, inner step, hash of the slow weights, layouts, hardware where it decides bits
    unequal weights:   at inner step 0 all take over those of the first peer in the order of names;
                       at a later one they come from different runs, and are refused

Weights drawn from a seed depend on the CPU (torch draws normal values differently with AVX2 than without), so equal
seeds do not give equal weights. The first peer's state is transferred as to a peer that joins late (inheritance.py):
slow weights and averaged buffers. The fast weights θ become φ bit for bit, since φ − θ is 0 before the first inner
step. Frozen parameters and buffers that are not averaged are not transferred. Gossip (`exchange.agrees` is False:
NoLoCo) skips all this: its replicas differ by design.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from outerloop import hardware, wire
from outerloop.loop import OuterLoop
from outerloop.types import Contribution, Handing, UserError

MOST_BYTES = 1 << 16
"""Limit of one peer's message about its position."""


@dataclass(frozen=True)
class Standing:
    """The position of one peer in the run, as peers compare it when they meet.

    `rounds`: numbers of the rounds under way. `slow`: hash of its slow weights. `layouts`: hash of the shapes and
    memory layouts of its parameters. `hardware`: of the machine, empty where the outer method gives every machine equal
    bits.
    """

    rounds: list[int]
    step: int
    slow: str
    layouts: str
    hardware: str

    @classmethod
    def of(cls, outer: OuterLoop) -> Self:
        """Return the position of this peer."""
        return cls(
            rounds=outer.under_way,
            step=outer.inner_step,
            slow=f"{outer.slow_hash:016x}",
            layouts=f"{wire.name_hash(str(outer.island.layouts())):016x}",
            hardware="" if outer.method.portable else hardware.described(),
        )

    @classmethod
    def told(cls, value: Mapping[str, Any]) -> Self:
        """Return the position in a peer's message. Raises ValueError, KeyError or TypeError for malformed ones."""
        texts = {name: str(value[name])[:200] for name in ("slow", "layouts", "hardware")}
        return cls(rounds=[int(number) for number in value["rounds"]], step=int(value["step"]), **texts)

    def to_map(self) -> dict[str, Any]:
        """Return the map that is sent to other peers."""
        return asdict(self)


def meet(outer: OuterLoop) -> dict[str, Standing]:
    """Return the position of each peer by name. Raises UserError for a malformed message, RoundFailed."""
    met = outer.meet(json.dumps(Standing.of(outer).to_map()).encode())
    return {one.peer: standing_in(one) for one in met}


def standing_in(one: Contribution) -> Standing:
    """Return the position that a message contains. Raises UserError for a malformed one."""
    try:
        return Standing.told(json.loads(bytes(one.blob[:MOST_BYTES])))
    except (ValueError, KeyError, TypeError, ArithmeticError, RecursionError) as error:
        raise UserError(f"{one.peer} does not tell where it stands; start the same program everywhere") from error


def begin_alike(outer: OuterLoop, standings: Mapping[str, Standing], tell: Callable[[str], None]) -> bool:
    """Check that hardware is equal where it must be, and hand the first peer's weights to those that hold others.

    Return whether this peer replaced its weights. All peers call this after `meet`, all lanes of an island included.
    `tell` receives a status line.

    Raises UserError when hardware differs that must not, when weights differ after inner step 0, or when the weights
    that arrive do not have the announced hash.
    """
    refuse_other_hardware(standings)
    outer.meetings += 1
    first = min(standings)
    wanted = standings[first].slow
    at_start = not any(one.step for one in standings.values())
    alike = outer.exchange.agrees and (at_start or outer.shared)
    others = {peer for peer, one in standings.items() if alike and one.slow != wanted}
    if others:
        refuse_later(standings)
        tell(f"{len(others)} of {len(standings)} peers begin with other weights than {first}: all begin with its")
    givers, state = sorted(standings.keys() - others), outer.inheritance
    content = outer.exchange.hand_over(Handing(outer.meetings, givers, sorted(others), state.most_bytes), state.pack)
    if content:
        outer.island.compute(outer.inheritance.take, content)
    if alike and f"{outer.slow_hash:016x}" != wanted:
        raise UserError(f"the weights that came are not those that {first} told of: start all again")
    return bool(content)


def refuse_later(standings: Mapping[str, Standing]) -> None:
    """Raises UserError unless all peers are before their first inner step."""
    if any(one.step for one in standings.values()):
        at = {peer: f"{one.slow} at inner step {one.step}" for peer, one in standings.items()}
        raise UserError(
            f"the peers go on with different weights, {at}: load the checkpoint of one run and one step everywhere, or"
            " start all in new run directories"
        )


def refuse_other_hardware(standings: Mapping[str, Standing]) -> None:
    """Raises UserError naming two peers whose machines may round otherwise, where the outer method depends on it."""
    first = min(standings)
    for peer, one in standings.items():
        if one.hardware != standings[first].hardware:
            raise UserError(
                f"this outer optimizer rounds as the machine does, and the machines differ: {one.hardware} at {peer},"
                f" {standings[first].hardware} at {first}; start on equal machines with equal threads=, or type"
                " method.optimizer._target_=torch.optim.SGD"
            )
