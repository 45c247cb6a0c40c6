"""The state that all replicas of a run share, serialized for a replica that joins late or was absent for too long.

    slow weights φ, the outer method's state, the tensors agreed on for the next round, the schedule's state,
    averaged buffers, norms of the last rounds, contributions of all peers, hash of the frozen parameters
    -> bytes (canonical.py)
    -> the receiver replaces its own state;  θ ← φ_new + (θ − φ_old)

So the receiver's pseudo-gradient Δ = φ − θ does not change, up to rounding. It is zero for a new peer. For a peer that
was absent, it is the progress since its last round, which its next message contains. The residual is private to each
peer and does not change.

A peer that was killed and restarts from an older checkpoint has the fast weights and the residual of that checkpoint.
If it sent part of these values between the checkpoint and its end, it sends that part again, and that part counts
twice.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from outerloop.aggregate.norm_screen import NormScreen
from outerloop.core.codec import UpdateCodec, announcing
from outerloop.core.ledger import MAX_BYTES as MAX_LEDGER_BYTES
from outerloop.core.ledger import ContributionLedger
from outerloop.core.verify import VerifiedRound
from outerloop.methods.state_check import MOST_ROUNDS, check_method
from outerloop.protocols import AdaptiveSchedule, OuterMethod
from outerloop.replica.buffers import Buffers
from outerloop.replica.weights import Replica
from outerloop.state import canonical
from outerloop.state.part_states import on_device
from outerloop.types import Round, Tensors, UserError

STATES = 4
"""Maximum size of a state, as a multiple of the size of slow weights and averaged buffers together.

With outer AdamW, the actual size is about 3 times that size.
"""
OVERHEAD_BYTES = 1 << 20
"""Maximum size, in bytes, of everything in a state except its tensors."""
SCREEN, CONTRIBUTIONS, FROZEN = "screen", "contributions", "frozen"
LATER_PARTS = {SCREEN, CONTRIBUTIONS, FROZEN}
"""Keys of the parts that may be missing from a state: older runs do not have them, or no parameter is frozen."""
PARTS = {"slow", "method", "agreed", "schedule", "buffers", *LATER_PARTS}


class SharedState:
    """The state that one replica shares with all others: slow weights, method and codec state, averaged buffers, norms.

    schedule: the schedule if it adapts, else None.
    ledger: counts the contributions of all peers; None with gossip, where no two peers land the same rounds.

    The attribute `max_bytes` is the maximum size of a serialized state of this run.
    """

    def __init__(
        self,
        replica: Replica,
        buffers: Buffers,
        *,
        method: OuterMethod,
        codec: UpdateCodec,
        schedule: AdaptiveSchedule | None,
        screen: NormScreen,
        ledger: ContributionLedger | None,
    ) -> None:
        self.replica, self.buffers, self.method, self.codec = replica, buffers, method, codec
        self.schedule, self.screen, self.ledger = schedule, screen, ledger
        held = [*replica.slow.values(), *buffers.mean.values()]
        self.max_bytes = OVERHEAD_BYTES + MAX_LEDGER_BYTES + STATES * sum(x.numel() * x.itemsize for x in held)

    def observe(self, round: Round, verified: VerifiedRound, update: Tensors) -> str:
        """Let the adaptive parts observe a landed round and count its contributions, with the same effect everywhere.

        Returns the schedule's note on what changed, or "". `update`: tensors with the round's names and shapes.
        """
        note = self.schedule.observe(round, verified.agreement) if self.schedule else ""
        self.codec.landed(verified.aggregated.messages, update)
        self.screen.observe(verified.measured)
        if self.ledger:
            headers = [message.header for message in verified.aggregated.messages]
            self.ledger.add(round, {header.peer: header.samples for header in headers})
        return note

    def serialize(self) -> bytes:
        """Return the shared state as bytes, which are equal on all replicas that landed the same rounds."""
        return canonical.pack(
            {
                "slow": self.replica.slow,
                "method": self.method.state_dict(),
                "agreed": self.codec.state_dict(),
                "schedule": self.schedule.state_dict() if self.schedule else {},
                "buffers": self.buffers.mean,
                SCREEN: self.screen.state_dict(),
                CONTRIBUTIONS: self.ledger.state_dict() if self.ledger else {},
                **({FROZEN: frozen} if (frozen := self.replica.island.frozen_hash) else {}),
            }
        )

    @torch.no_grad()
    def restore(self, content: bytes) -> None:
        """Load a shared state that another peer serialized, keeping the pseudo-gradient Δ = φ − θ (slow minus fast).

        Raises UserError, and changes nothing, if that state does not match this run.
        """
        try:
            state = on_device(canonical.unpack(content), self.replica.device)
            self.check(state)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise UserError(
                f"the state received from the other peers does not match this configuration: {error}; start with the "
                "settings of their run"
            ) from error
        slow, island = self.replica.slow, self.replica.island
        delta = {name: slow[name] - x for name, x in island.read(list(slow), "weights").items()}
        self.replica.load_slow(state["slow"])
        self.method.load_state_dict(state["method"])
        self.codec.load_state_dict(state["agreed"])
        self.screen.load_state_dict(state.get(SCREEN, {}))
        if self.ledger:
            self.ledger.load_state_dict(state.get(CONTRIBUTIONS, {}))
        if self.schedule:
            self.schedule.load_state_dict(state["schedule"])
        self.buffers.land(state["buffers"], included=True)
        island.write({name: slow[name] - x for name, x in delta.items()}, merge_local=0.0)

    def check(self, state: Any) -> None:
        """Check that a received state can be loaded.

        Raises ValueError, KeyError, TypeError, AttributeError or OverflowError if it cannot. If a part
        checks its state only while loading it, a copy of this part loads the state.
        """
        if not isinstance(state, dict) or state.keys() | LATER_PARTS != PARTS:
            raise ValueError(f"a state must be a map with the keys {', '.join(sorted(PARTS))}")
        frozen = self.replica.island.frozen_hash
        if frozen and state.get(FROZEN, frozen) != frozen:
            raise ValueError(
                "the frozen weights differ from those of the other peers (load the same base model, in the same dtype)"
            )
        check(state["slow"], self.replica.slow)
        check(state["buffers"], self.buffers.mean)
        check_method(self.method, state["method"], self.replica.slow)
        check_agreed(self.codec, state["agreed"], self.replica.slow)
        copy.copy(self.screen).load_state_dict(state.get(SCREEN, {}))
        if self.ledger:
            copy.copy(self.ledger).load_state_dict(state.get(CONTRIBUTIONS, {}))
        if self.schedule:
            copy.copy(self.schedule).load_state_dict(state["schedule"])
        elif state["schedule"]:
            raise ValueError("the received state contains the state of a schedule, but this peer's schedule has none")


def check(received: Any, own: Tensors) -> None:
    """Check that `received` has the names, shapes and dtypes of `own`, and is finite. Raises ValueError if not."""
    if received.keys() != own.keys():
        raise ValueError(
            f"the received and the local state differ: only one has {', '.join(sorted(received.keys() ^ own.keys()))}"
        )
    for name, x in own.items():
        theirs, kind = received[name], f"{x.dtype} {tuple(x.shape)}"
        if not isinstance(theirs, Tensor):
            raise ValueError(f"{name} is not a tensor, expected {kind}")
        if (theirs.shape, theirs.dtype) != (x.shape, x.dtype):
            raise ValueError(f"{name} is {theirs.dtype} {tuple(theirs.shape)}, expected {kind}")
        if not theirs.isfinite().all():
            raise ValueError(f"{name} is not finite")


def check_agreed(update_codec: UpdateCodec, received: Any, slow: Tensors) -> None:
    """Check that the compressor can use the received agreed tensors. Raises ValueError or TypeError if it cannot."""
    if received.keys() != {"agreed"}:
        raise ValueError("the agreed tensors must be a map with the single key 'agreed'")
    for name, word in received["agreed"].items():
        codec = announcing(update_codec.compress, slow[name].shape) if name in slow else None
        if codec is None:
            raise ValueError(f"it contains an agreed tensor for {name}, but this peer's compressor uses none")
        number, positions = word
        if type(number) is not int or not 0 <= number <= MOST_ROUNDS or not isinstance(positions, Tensor):
            raise ValueError(f"the agreed value for {name} must be a round number and a tensor of positions")
        try:
            codec.check_agreed(positions, slow[name].shape)
        except ValueError as error:
            raise ValueError(f"agreed tensor for {name}: {error}") from error
