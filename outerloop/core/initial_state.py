"""Start a run with equal slow weights on all peers that share them, even if their CPUs differ.

    all peers compare: rounds in flight, next round, inner step, hash of the slow weights, layouts, hash of the frozen
                       parameters if there are any, hardware if it affects rounding
    unequal positions: if more than half of the compared peers are at the same position (rounds, layouts, frozen
                       parameters and hardware), every peer at a different position is left out; without such a majority
                       no peer starts
    unequal steps:     peers that hold the same slow weights after different inner steps are at the same position: their
                       rounds may take different numbers of inner steps. If replicas are not shared, or if one of the
                       peers is at inner step 0, unequal steps count as unequal positions
    unequal weights:   at inner step 0, all peers load the most common weights; ties go to the weights of the peer that
                       comes first by name. At a later step, unequal weights come from different runs and count as
                       unequal positions

Weights drawn from a seed depend on the CPU (torch draws normal values differently with AVX2 than without), so equal
seeds do not give equal weights. If no two peers hold the same weights, all start with the weights of a single peer,
which no other peer confirms. Slow weights and averaged buffers are transferred in the same way as to a late joiner
(shared_state.py). The receiver's fast weights θ become equal to the slow weights φ bit for bit, because φ − θ is 0
before the first inner step. Frozen parameters, and buffers that are not averaged, are not transferred. If the exchange
waits for all peers, no peer is left out: if one is at a different position, no peer starts. With gossip
(`exchange.info.agrees` is False: NoLoCo), no weights are transferred, because replicas differ by design.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from outerloop import wire
from outerloop.core.outer_loop import OuterLoop
from outerloop.exchange_protocols import decided, hand_over
from outerloop.kernels import arithmetic_platform as hardware
from outerloop.types import Contribution, StateHandoff, StateTransferRequired, UserError, printable

MOST_BYTES = 1 << 16
"""Maximum size, in bytes, of a peer's message about its position in the run."""


@dataclass(frozen=True)
class StartPosition:
    """One peer's position in the run, which peers compare before they start.

    rounds: numbers of the rounds in flight, then of the next round.
    step: the inner step.
    slow: hash of the slow weights.
    layouts: hash of the shapes and memory layouts of the parameters.
    frozen: hash of the frozen parameters; "" if the model has none. Compared only if both peers report a hash.
    hardware: description of the machine, or "" if the outer method is bit-identical on every machine.
    """

    rounds: list[int]
    step: int
    slow: str
    layouts: str
    frozen: str
    hardware: str

    @classmethod
    def of(cls, outer: OuterLoop) -> Self:
        """Return this peer's position in the run."""
        return cls(
            rounds=[round.number for round in (*sorted(outer.in_flight), outer.next_round)],
            step=outer.inner_step,
            slow=f"{outer.slow_hash:016x}",
            layouts=f"{wire.name_hash(str(outer.island.layouts())):016x}",
            frozen=outer.island.frozen_hash,
            hardware="" if outer.method.portable else hardware.described(),
        )

    @classmethod
    def from_map(cls, value: Mapping[str, Any]) -> Self:
        """Parse a position that `to_map` returned, from a peer's message already decoded from JSON.

        Raises ValueError, KeyError, TypeError or ArithmeticError if it is malformed.
        """
        given = {"frozen": "", **value}
        texts = {name: printable(str(given[name])[:200]) for name in ("slow", "layouts", "frozen", "hardware")}
        return cls(rounds=[int(number) for number in value["rounds"]], step=int(value["step"]), **texts)

    def to_map(self) -> dict[str, Any]:
        """Return the position as a JSON-serializable dict, which is sent to other peers."""
        return {name: value for name, value in asdict(self).items() if name != "frozen" or value}


def join_late(outer: OuterLoop) -> None:
    """Load the other peers' state if this peer joins late and can no longer land the rounds that it missed.

    Call this before the first inner step.
    """
    outer.all_gather.count = 2  # the other peers already took part in two all-gathers when they started
    try:
        decided(outer.exchange, outer.next_round)
    except StateTransferRequired as transfer:
        outer.loop.take_over(*transfer.state(outer.shared_state.max_bytes))


def exchange_positions(outer: OuterLoop) -> dict[str, StartPosition | None]:
    """Exchange positions in the run with all peers. Return peer -> position, or None if its message is malformed.

    Raises RoundFailed if the all-gather fails.
    """
    met = outer.all_gather(json.dumps(StartPosition.of(outer).to_map()).encode())
    return {one.peer: position_or_none(one) for one in met}


def position_or_none(one: Contribution) -> StartPosition | None:
    """Parse the position in a peer's message. Return None if the message is malformed."""
    try:
        return position_in(one)
    except UserError:
        return None


def position_in(one: Contribution) -> StartPosition:
    """Parse the position in a peer's message. Raises UserError if the message is malformed."""
    try:
        return StartPosition.from_map(json.loads(bytes(one.blob[:MOST_BYTES])))
    except (ValueError, KeyError, TypeError, ArithmeticError, RecursionError) as error:
        raise UserError(f"{one.peer} sent no valid position in the run: start the same program everywhere") from error


def start_from_same_weights(
    outer: OuterLoop, positions: Mapping[str, StartPosition | None], on_status: Callable[[str], None]
) -> bool:
    """Check that most peers start at the same position, and send the most common weights to peers that hold others.

    Returns whether this peer replaced its weights. All ranks of all peers must call this after `exchange_positions`.
    `on_status` is called with each status line.

    Raises UserError if at least half of the peers start at a different position than this peer (or if any peer does and
    the exchange waits for all peers), or if the received weights do not match the announced hash.
    """
    own = positions[outer.exchange.peer]
    assert own is not None
    alike = outer.exchange.info.agrees and (own.step == 0 or outer.shared)
    reasons = {peer: difference(own, one, peer, slow=alike) for peer, one in positions.items()}
    report_left_out(outer, reasons, on_status)
    number = outer.all_gather.next_number()
    there = {peer: one for peer, one in positions.items() if one is not None and not reasons[peer]}
    wanted, holders = most_held({peer: one.slow for peer, one in there.items()})
    others = sorted(there.keys() - holders) if alike else []
    if others:
        on_status(
            f"{len(others)} of {len(there)} peers begin with other weights than {holders[0]}: all use its weights"
        )
    givers, state = sorted(there.keys() - others), outer.shared_state
    way = StateHandoff(number, givers, others, state.max_bytes, outer.timeout_s)
    content = hand_over(outer.exchange, way, state.serialize)
    if content:
        outer.island.compute(outer.shared_state.restore, content)
    if alike and f"{outer.slow_hash:016x}" != wanted:
        raise UserError(f"the received weights do not match the hash that {holders[0]} announced: restart all peers")
    return bool(content)


def report_left_out(outer: OuterLoop, reasons: Mapping[str, str], on_status: Callable[[str], None]) -> None:
    """Report the peers that are left out because they differ from this peer.

    reasons: peer -> how it differs from this peer, or "" if it does not differ.

    Raises UserError for the first peer that differs, if at least half of the peers differ or if the exchange waits for
    all peers.
    """
    why = {peer: reason for peer, reason in reasons.items() if reason}
    if why and (outer.exchange.info.waits_for_all or 2 * len(why) >= len(reasons)):
        raise UserError(why[min(why)])
    for reason in why.values():
        on_status(f"left out, {reason}")


def difference(own: StartPosition, theirs: StartPosition | None, peer: str, *, slow: bool) -> str:
    """Return why a peer cannot start together with this peer, and what to do about it. Return "" if it can.

    slow: whether slow weights must be equal.
    """
    if theirs is None:
        return f"{peer} sent no valid position in the run: start the same program everywhere"
    same_weights = slow and own.step and theirs.step and own.slow == theirs.slow
    if own.rounds != theirs.rounds or (own.step != theirs.step and not same_weights):
        shown, here = ([number + 1 for number in position.rounds] for position in (theirs, own))
        return (
            f"{peer} resumes at rounds {str(shown)[:50]}, but this peer at {here}: their checkpoints are"
            f" from inner steps {theirs.step} and {own.step}. Load checkpoints of the same step on all machines, or"
            " remove the later ones"
        )
    if own.layouts != theirs.layouts:
        return (
            f"{peer} stores its weights in another memory layout ({theirs.layouts}, here {own.layouts}), so it would"
            " round differently: build the same model on all machines, with contiguous parameters"
        )
    if own.frozen and theirs.frozen and own.frozen != theirs.frozen:
        return (
            f"the frozen weights differ from those at {peer} (hash {theirs.frozen}, here {own.frozen}): load the same"
            " base model, in the same dtype, on all machines"
        )
    if own.hardware != theirs.hardware:
        return (
            f"the rounding of this outer optimizer depends on the machine, and the machines differ: {theirs.hardware}"
            f" on {peer}, {own.hardware} here; use identical machines with the same threads=, or set"
            " method.optimizer._target_=torch.optim.SGD"
        )
    if slow and own.step and own.slow != theirs.slow:
        return (
            f"{peer} resumes with different slow weights (hash {theirs.slow}, here {own.slow}) at inner step"
            f" {own.step}: load checkpoints of the same run and step on all machines, or start all of them in new run"
            " directories"
        )
    return ""


def most_held(slow: Mapping[str, str]) -> tuple[str, list[str]]:
    """Return the most common hash, and the peers that hold it, sorted by name.

    slow: peer -> hash of its slow weights. Ties go to the hash held by the peer that comes first by name.
    """
    counts = Counter(slow.values())
    wanted = slow[min(slow, key=lambda peer: (-counts[slow[peer]], peer))]
    return wanted, sorted(peer for peer, held in slow.items() if held == wanted)
