"""Define the outer loop as users see it: its parts, options and state, and the methods that a training loop calls."""

from __future__ import annotations

import copy
from typing import Any, Literal, Self

import torch
from torch.nn import Module

from outerloop.aggregate.screen import screen_of
from outerloop.core import compatibility
from outerloop.core.build_loop import build_loop
from outerloop.core.codec import UpdateCodec
from outerloop.core.round import InFlight, RoundReport
from outerloop.exchange_protocols import decided, meeting
from outerloop.protocols import (
    AdaptiveSchedule,
    Aggregate,
    Compressor,
    CostAware,
    Exchange,
    Feedback,
    OuterMethod,
    Schedule,
    Stateful,
)
from outerloop.replica.buffers import Buffers
from outerloop.replica.island import Island
from outerloop.replica.sharding import unwrap
from outerloop.replica.state_size import momentum_share, residual_share
from outerloop.replica.weights import Replica
from outerloop.state.checkpoint import on_device, unwrap_parts, wrap_parts
from outerloop.types import Contribution, Round, StateTransferRequired, UserError

STATE_DTYPES = {"float32": torch.float32, "float64": torch.float64}


class OuterLoop:
    """One combination of method x feedback x compressor x exchange x schedule, applied to a model.

    Args:
        model: the model, updated in place; its trainable parameters are the fast weights.
        method, compress, feedback, aggregate, exchange, schedule: the axes.
        merge_local: weight of the LOCAL value when a landed fragment is written back, 0 .. 1; "carry": the landed value
            plus the progress of the inner steps since the launch.
        buffers: "local", or "averaged" to replace BatchNorm statistics with their mean over peers when a round lands.
        eager: at landing, replace this peer's contribution to the round with its newest one (arXiv 2502.12996); needs a
            schedule that lands a round just after the next round of the same fragment was launched.
        clip: "median", "none" or "auto"; determines which contributions are rejected or scaled down (norm_screen.py).
        state_dtype: "float32", or "float64" for slow weights that keep every bit of φ − θ (twice the memory).
        timeout_s: the longest time that a landing waits for the messages of its round.
        seed: seed of all random choices of the compressor; equal on all peers.
        rounds: number of rounds of the run; a peer that was absent never skips past the last one. None: no limit.
        island: gives access to the model; None: `Island(model)`.

    Attributes:
        slow: the slow weights by parameter name.
        shared: whether the slow weights are equal on all peers.
        warnings: one line for each setting that is allowed but probably not intended.
        recipe: name of the recipe from which the parts were built; empty if there is none.
        inner_optimizer: dotted path of the recipe's inner optimizer; empty if there is none.

    At the end of a `with` block the peer leaves the run: with `close`, or immediately if the block raises an exception.

    Raises:
        UserError: if parts cannot work together.
    """

    recipe = inner_optimizer = ""
    closed = False

    def __init__(
        self,
        model: Module,
        *,
        method: OuterMethod,
        compress: Compressor,
        feedback: Feedback,
        aggregate: Aggregate,
        exchange: Exchange,
        schedule: Schedule,
        merge_local: float | Literal["carry"] = 0.0,
        buffers: str = "local",
        eager: bool = False,
        clip: str = "auto",
        state_dtype: str = "float32",
        timeout_s: float = 600.0,
        seed: int = 0,
        rounds: int | None = None,
        island: Island | None = None,
    ) -> None:
        compatibility.refuse(
            method=method,
            compress=compress,
            feedback=feedback,
            aggregate=aggregate,
            exchange=exchange.info,
            schedule=schedule,
            eager=eager,
            merge_local=merge_local,
        )
        self.warnings = compatibility.warnings(method=method, compress=compress, feedback=feedback, schedule=schedule)
        self.model, self.method, self.feedback = model, method, feedback
        self.exchange, self.schedule, self.timeout_s = exchange, schedule, timeout_s
        self.shared = exchange.info.agrees and method.shared and not eager
        self.screen = screen_of(clip, method=method, exchange=exchange.info, eager=eager)
        self.state_dtype = STATE_DTYPES[state_dtype]
        self.replica = Replica(model, dtype=self.state_dtype, island=island)
        self.island, self.slow = self.replica.island, self.replica.slow
        compatibility.refuse_fragments(schedule, list(self.slow))
        self.trial_feedback, self.trial_method = copy.deepcopy((feedback, method))
        method.init(self.slow)
        self.buffers = Buffers(unwrap(model), kind=buffers)
        self.codec = UpdateCodec(compress, seed=seed, beside=self.buffers.schema)
        self.loop = build_loop(
            self.replica,
            self.buffers,
            self.codec,
            self.screen,
            method=method,
            feedback=feedback,
            aggregate=aggregate,
            exchange=exchange,
            schedule=schedule,
            merge_local=merge_local,
            eager=eager,
            timeout_s=timeout_s,
            rounds=rounds,
        )
        self.launcher, self.verifier = self.loop.launcher, self.loop.lander.verifier
        self.pipeline, self.shared_state = self.launcher.pipeline, self.loop.lander.shared_state
        self.all_gathers = 0
        self.parts: dict[str, Any] = {
            "method": method,
            "feedback": feedback,
            "payload": self.codec,
            "choosing": compress if isinstance(compress, Stateful | CostAware) else None,
            "schedule": schedule if isinstance(schedule, AdaptiveSchedule) else None,
            "buffers": self.buffers,
            "screen": self.screen,
        }

    def __repr__(self) -> str:
        place = f"round={self.next_round.number}, inner_step={self.inner_step}"
        peer = f"peer={self.exchange.peer!r}, size={self.exchange.size}"
        return f"{type(self).__name__}(recipe={self.recipe!r}, {place}, {peer})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *details: object) -> None:
        if error is None:
            self.close()
        else:
            self.closed = True
            self.exchange.abort()

    def close(self) -> None:
        """Leave the run once the other peers have received what they need. No steps can be counted afterwards."""
        self.closed = True
        self.launcher.wait()
        self.exchange.close()

    @property
    def inner_step(self) -> int:
        """The position in the run: the number of inner steps that are completed or skipped."""
        return self.loop.inner_step

    @property
    def in_flight(self) -> dict[Round, InFlight]:
        """The launched rounds that have not landed."""
        return self.launcher.in_flight

    @property
    def next_round(self) -> Round:
        """The first round that launches after the current inner step."""
        return self.loop.scheduler.next_round(self.inner_step)

    @property
    def samples(self) -> int:
        """Number of training samples that no landed message includes yet: the maximum over fragments."""
        return max(self.launcher.waiting)

    @property
    def slow_hash(self) -> int:
        """64-bit hash of all slow weights."""
        return self.replica.joint_hash(self.slow)

    @property
    def spare_bytes(self) -> int:
        """Bytes that launches and landings keep from one round to the next, in addition to residual and momentum."""
        return self.pipeline.spare_bytes

    @property
    def residual_share(self) -> float:
        """Bytes that the feedback will store for each byte of slow weights, found by a trial step."""
        return residual_share(self.trial_feedback, self.state_dtype)

    @property
    def momentum_share(self) -> float:
        """Bytes that the outer method will store for each byte of slow weights, found by a trial step."""
        return momentum_share(self.trial_method, self.state_dtype)

    @property
    def notifies_updates(self) -> bool:
        """True if the caller calls `before_update` before every change to the weights. The caller may set this."""
        return self.launcher.notifies_updates

    @notifies_updates.setter
    def notifies_updates(self, notifies: bool) -> None:
        self.launcher.notifies_updates = notifies

    def before_update(self) -> float:
        """Wait until the weights of the model may change. Return the seconds that this took."""
        return self.launcher.before_update()

    def after_inner_step(self, samples: int) -> list[RoundReport]:
        """Count one inner step with this many training samples; launch and land the rounds that are due.

        If this peer was absent for too long, it takes over the state of the others. Raises ReplicasDiverged if
        replicas that must be equal differ, UserError if this peer has left the run.
        """
        if self.closed:
            raise UserError(
                "this outer loop is closed and counts no more steps: end training inside its with block, or call"
                " remove() on what attach returned"
            )
        return self.loop.after_inner_step(samples)

    def find_others(self) -> None:
        """Take over the other peers' state if this peer joins late and cannot land the rounds that it missed.

        Call this before the first inner step.
        """
        self.all_gathers = 2  # the other peers already took part in two all-gathers, when they started
        try:
            decided(self.exchange, self.next_round)
        except StateTransferRequired as transfer:
            self.loop.take_over(*transfer.state(self.shared_state.max_bytes))

    def all_gather(self, blob: bytes) -> list[Contribution]:
        """Send bytes to all peers and return the bytes of all peers, including this one.

        All peers must call this the same number of times. Raises RoundFailed if the exchange fails.
        """
        self.launcher.wait()
        self.all_gathers += 1
        return meeting(self.exchange).all_gather(blob, self.all_gathers, self.timeout_s)

    def state_dict(self) -> dict[str, Any]:
        """Return what `evolved` returns, in a form that torch.save and torch.distributed.checkpoint save completely."""
        return wrap_parts(self.evolved())

    def evolved(self) -> dict[str, Any]:
        """Return all state that evolves, including rounds in flight: the state of each part under its name."""
        self.launcher.wait()
        return {
            "slow": dict(self.slow),
            **{name: part.state_dict() if part else {} for name, part in self.parts.items()},
            "inner_step": self.inner_step,
            "samples": list(self.launcher.waiting),
            "in_flight": [flight.state_dict() for flight in self.in_flight.values()],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` or `evolved` returned, and start the exchange of rounds in flight again."""
        self.launcher.wait()
        state = on_device(unwrap_parts(state), self.replica.device)
        self.replica.load_slow(state["slow"])
        for name, part in self.parts.items():
            if part:
                part.load_state_dict(state.get(name, {}))  # checkpoints of older runs have no screen
        self.loop.inner_step = state["inner_step"]
        self.launcher.resume(state["samples"], state["in_flight"])
