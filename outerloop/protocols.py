"""The protocols of the axes: compress, feedback, method, aggregate, schedule, exchange.

An implementation needs only the methods and attributes of its protocol. It needs no import and no base class.

Any part may also have an attribute `requires`, a sequence of `Requirement`: properties that other parts must have. They
are checked when an outer loop is constructed (core/compatibility).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol, runtime_checkable

from torch import Size, Tensor

from outerloop.types import Capabilities, CodecContext, Contribution, DueRounds, Parts, Round, RoundCost, Tensors


class Compressor(Protocol):
    """AXIS compress: encodes one tensor for the wire and decodes it again.

    Optional attribute: `keeps_k_per_chunk`, True if the settings `k` and `chunk` state how many values are sent.
    """

    linear: bool
    """True if the parts of two tensors can be added: decoding the sum gives the sum of the two decoded tensors.

    A part named "next" is not added (see CodecContext).
    """

    def encode(self, x: Tensor, context: CodecContext) -> Parts:
        """Encode x (any shape, float32) as parts. Leaves x unchanged. Equal x and equal context give equal parts.

        A compressor with state changes its state in other methods (`Stateful`, `CostAware`).
        """
        ...

    def decode(self, parts: Parts, shape: Size, context: CodecContext) -> Tensor:
        """Return the float32 tensor of `shape` that `parts` encode.

        Raises ValueError if `parts` do not fit `shape` and `context`.
        """
        ...


@runtime_checkable
class Transforming(Protocol):
    """A compressor whose parts are coefficients of an orthonormal transform, which is the same on all peers.

    Contributions are aggregated as coefficients, unless the aggregate `combines_values`.

    decode(parts, shape, context) = inverse(coefficients(parts, shape, context), context)
    """

    def coefficients(self, parts: Parts, shape: Size, context: CodecContext) -> Tensor:
        """Return the coefficients: a float32 tensor of `shape` that is 0 where no coefficient was sent.

        Raises ValueError in the same cases as `decode`.
        """
        ...

    def inverse(self, coefficients: Tensor, context: CodecContext) -> Tensor:
        """Transform finite coefficients back to values of the same shape, float32."""
        ...


@runtime_checkable
class Announcing(Protocol):
    """A compressor with which peers take turns to choose a tensor that all use in the next round (see CodecContext)."""

    def check_agreed(self, agreed: Tensor, shape: Size) -> None:
        """Check that `agreed` is valid for a tensor of this shape. Raises ValueError if it is not."""
        ...


@runtime_checkable
class Stateful(Protocol):
    """A compressor that stores information about the parts that this peer has sent, for its next `encode`.

    `decode` does not use this state. So the state may differ between peers, and a peer that joins late starts without
    it.
    """

    def landed(self, own: Parts, shape: Size, context: CodecContext) -> None:
        """Store this peer's parts of a tensor. Called when a round that includes this peer's message lands."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned; before the first landing the state is empty."""
        ...


@runtime_checkable
class CostAware(Protocol):
    """A compressor that adapts its setting to what rounds cost this peer, so peers may have different settings.

    The parts themselves contain the information that is needed to decode them.
    """

    def observe(self, cost: RoundCost) -> str:
        """Choose the setting for the next round, given the cost of the last one.

        Return a line that states the change and its reason, or "" if nothing changed.
        """
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Feedback(Protocol):
    """AXIS feedback: decides how values that were not sent are kept for later rounds."""

    remembers: bool
    """False if values that are not sent are discarded."""

    def add(self, name: str, delta: Tensor) -> Tensor:
        """Return the input of the compressor, given the pseudo-gradient (any shape). Changes no state."""
        ...

    def keep(self, name: str, x: Tensor, sent: Tensor) -> None:
        """Store x - sent. Called only when a round that includes this peer's payload lands."""
        ...

    def begin(self, name: str, slow: Tensor) -> Tensor:
        """Return the fast weights with which inner steps continue after `slow` (any shape) has been updated.

        Returns a new tensor, or `slow` itself.
        """
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class OuterMethod(Protocol):
    """AXIS method: applies the mean of the contributions to the slow weights."""

    shared: bool
    """True if equal contributions keep the slow weights of all peers equal, bit for bit."""
    portable: bool
    """True if `update` gives the same bits on every machine; otherwise replicas stay equal only on equal hardware."""
    momentum: float
    """Fraction of the last outer step that is repeated in the next outer step; 0 without momentum."""
    reads: Literal["weights", "gradients"]
    """The input of `outgoing`: the model's fast weights, or (if H = 1) its accumulated gradients."""

    @property
    def sends(self) -> Literal["differences", "weights", "some weights"]:
        """The kind of tensors that `outgoing` returns.

        differences: pseudo-gradients or gradients; compression may be sparse and may use feedback.
        weights: all weights; compression may neither be sparse nor use feedback.
        some weights: weights, possibly only a subset that is the same on all peers; compression may not use feedback.
        """
        ...

    def init(self, slow: Tensors) -> None:
        """Allocate state for these slow weights, which are updated in place from now on."""
        ...

    def outgoing(self, slow: Tensors, read: Tensors) -> Tensors:
        """Return this peer's contribution, before feedback and compression.

        `read`: the tensors read from the model (see `reads`).
        """
        ...

    def update(self, slow: Tensors, mean: Tensors, own: Tensors) -> None:
        """Apply the aggregated contributions to `slow`, in place.

        `own` is this peer's decoded payload; empty if the round does not include it. `mean` and `own` contain the
        parameters of one fragment, with the shapes that `outgoing` returned.
        """
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Aggregate(Protocol):
    """AXIS aggregate: combines the decoded contributions of all peers into one tensor.

    Optional attributes: `weighs_samples`, True if peers are weighted by their numbers of samples; `combines_values`,
    True if payloads of coefficients (`Transforming`) must be transformed back before they are combined.
    """

    needs_norms: bool
    """True if the aggregate needs `norms`. To compute them, every payload is decoded once more."""
    linear: bool
    """True if the result is the plain mean: each of P peers has the weight 1/P in every value.

    If so, one peer's contribution can be replaced after aggregation, and the aggregate of weights is their mean.
    """

    def __call__(self, sent: Sequence[Tensor], samples: Sequence[int], norms: Sequence[float]) -> Tensor:
        """Combine P tensors of one shape, in peer-name order, into one new tensor.

        `samples`: each peer's training samples. `norms`: the L2 norm of each peer's whole fragment, if `needs_norms`.
        """
        ...


class Schedule(Protocol):
    """AXIS schedule: determines which fragments launch and land after each inner step.

    Its methods have no side effects. Only a landing may change it (AdaptiveSchedule).
    """

    fragments: int
    """Number of parts of the model that are exchanged separately."""
    sync_every: int
    """H: inner steps between two rounds of one fragment."""
    delay: int
    """Inner steps between launch and landing."""
    early: bool
    """True if a peer may land a round before the delay is over, as soon as all messages of the round have arrived.

    Each peer decides this independently.
    """
    step_s: float
    """Wall-clock seconds that count as one inner step; 0 if the inner steps themselves are counted."""

    def due(self, inner_step: int) -> DueRounds:
        """Return the rounds to launch and land after `inner_step` (counted from 1)."""
        ...

    def fragment(self, index: int, names: Sequence[str]) -> list[str]:
        """Return the parameter names of one fragment, in model order."""
        ...

    def inner_steps(self, rounds: int) -> int:
        """Return the number of inner steps that a run of this many rounds takes, including the last landing."""
        ...


@runtime_checkable
class AdaptiveSchedule(Protocol):
    """A schedule that adapts H to landed rounds, whose contents are equal on all peers."""

    def observe(self, round: Round, agreement: float | None) -> str:
        """Adapt to a landed round. Return one line with the change and its reason; empty if nothing changed.

        `agreement`: how far the payloads of the round agree, -1 .. 1; None if there was nothing to compare.
        """
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the state, which is equal on all peers that have landed the same rounds."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Pending(Protocol):
    """An exchange in progress."""

    def wait(self, timeout_s: float) -> list[Contribution]:
        """Return the contributions to the round; this peer's own contribution may be missing.

        Raises RoundFailed if the round did not complete, QuorumLost if too few peers were present for too long, and
        StateTransferRequired if this replica must take over the state of the others.
        """
        ...

    def arrived(self) -> bool:
        """Return whether `wait` would return or fail immediately."""
        ...


class Exchange(Protocol):
    """AXIS exchange: sends this peer's message of a round and returns the messages of other peers.

    exchange_protocols.py defines the optional protocols.
    """

    info: Capabilities
    """Facts about the exchange. This is a class attribute, so that they are known before an exchange is constructed."""
    peer: str
    """This peer's name, unique in the run."""

    @property
    def rank(self) -> int:
        """This peer's index among the peers of the run; valid after `join`."""
        ...

    @property
    def size(self) -> int:
        """Number of peers in the run; valid after `join`."""
        ...

    def join(self, first: Round = ...) -> None:
        """Wait until the run's peers are present. Raises UserError if they do not appear.

        `first`: the round that this peer launches next. After a restart this is not round 0.
        """
        ...

    def start(self, blob: bytes, round: Round) -> Pending:
        """Start sending one wire message, and return immediately.

        If the round is already decided, the message is not included, but `Pending.wait` returns the contributions.
        """
        ...

    def close(self) -> None:
        """Complete the transfers that other peers still need from this peer, then leave. Idempotent."""
        ...

    def abort(self) -> None:
        """Leave immediately, whatever other peers still need. Idempotent."""
        ...
