"""The protocols of the axes. An implementation imports nothing to fit one: having the methods is enough."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

from torch import Size, Tensor

from outerloop.types import (
    CodecContext,
    Contribution,
    DueRounds,
    ExecutorHandoff,
    Parts,
    Refusals,
    Round,
    RoundCost,
    Tensors,
)


class Compressor(Protocol):
    """AXIS compress: what one tensor becomes on the wire."""

    linear: bool
    """True when decode(a) + decode(b) may be formed by adding the parts of a and b, "next" apart (see CodecContext)."""

    def encode(self, x: Tensor, moment: CodecContext) -> Parts:
        """x (any shape, float32), left untouched -> parts. Equal x and moment give equal parts."""
        ...

    def decode(self, parts: Parts, shape: Size, moment: CodecContext) -> Tensor:
        """Parts -> float32 tensor of `shape`. Raises ValueError when the parts cannot belong to shape and moment."""
        ...


@runtime_checkable
class Transforming(Protocol):
    """A compressor whose parts are coefficients of an orthonormal transform: peers are aggregated as coefficients.

    decode(parts, shape, moment) = inverse(coefficients(parts, shape, moment))
    """

    def coefficients(self, parts: Parts, shape: Size, moment: CodecContext) -> Tensor:
        """Return the coefficients, float32 of `shape`, 0 where none was sent. Raises ValueError as `decode` does."""
        ...

    def inverse(self, coefficients: Tensor) -> Tensor:
        """Transform finite coefficients back to values of the same shape, float32."""
        ...


@runtime_checkable
class CostAware(Protocol):
    """A compressor that goes by what rounds cost this peer alone; its parts tell the others how to read them."""

    def learn(self, cost: RoundCost) -> str:
        """Choose for the next round; in one line what has changed and why, empty where nothing has."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Feedback(Protocol):
    """AXIS feedback: what is remembered of what was not sent."""

    remembers: bool
    """False when what is not sent is forgotten."""

    def add(self, name: str, delta: Tensor) -> Tensor:
        """Pseudo-gradient (any shape) -> what is offered to the compressor. Changes no state."""
        ...

    def keep(self, name: str, x: Tensor, sent: Tensor) -> None:
        """Remember x - sent. Called at landing only, and only when this peer's payload counted."""
        ...

    def begin(self, name: str, slow: Tensor) -> Tensor:
        """Slow weights (any shape) that just moved -> what the next inner steps begin from: a new tensor, or slow."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class OuterMethod(Protocol):
    """AXIS method: what the mean of the contributions does to the slow weights."""

    shared: bool
    """True when equal contributions keep the slow weights of all peers equal, bit for bit."""
    portable: bool
    """True when `update` gives the same bits on every machine; else replicas stay equal on equal hardware alone."""
    momentum: float
    """Share of the last outer step that is taken again, 0 without."""
    reads: Literal["weights", "gradients"]
    """What `outgoing` wants from the model: the fast weights, or (H = 1) the accumulated gradients."""

    @property
    def sends(self) -> Literal["differences", "weights", "some weights"]:
        """What `outgoing` is made of.

        differences: pseudo-gradients or gradients, which may be sent sparse and with feedback.
        weights: all of them, neither sparse nor with feedback.
        some weights: a part may be left out, the same at all peers; no feedback.
        """
        ...

    def init(self, slow: Tensors) -> None:
        """Allocate state for these slow weights; they are updated in place from now on."""
        ...

    def outgoing(self, slow: Tensors, read: Tensors) -> Tensors:
        """(slow, what was read) -> what this peer offers, before feedback and compression."""
        ...

    def update(self, slow: Tensors, mean: Tensors, own: Tensors) -> None:
        """Apply the aggregated contributions to `slow`, in place.

        `own` is what this peer's payload decodes to, empty when it did not count. Both have the names of one fragment
        and the shapes of `outgoing`.
        """
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Aggregate(Protocol):
    """AXIS aggregate: how the decoded contributions of all peers become one tensor."""

    needs_norms: bool
    """True when `norms` shall be computed (one more decoding of every payload)."""
    linear: bool
    """True when the result is the plain mean of what was sent: each of P peers counts 1/P in every value, so that one
    peer's part can be replaced afterwards, and a mean of weights is one."""

    def __call__(self, sent: Sequence[Tensor], samples: Sequence[int], norms: Sequence[float]) -> Tensor:
        """P tensors of one shape in peer-name order -> one new tensor.

        `samples`: each peer's training samples. `norms`: the L2 norm of each peer's whole fragment, if `needs_norms`.
        """
        ...


class Schedule(Protocol):
    """AXIS schedule: which fragment leaves and lands after which inner step. Pure between two landings."""

    fragments: int
    """How many parts of the model travel on their own."""
    sync_every: int
    """H: inner steps between two rounds of one fragment."""
    delay: int
    """Inner steps between launch and landing."""
    early: bool
    """Whether a round may land before that, each peer for itself, once all that it needs is here."""
    step_s: float
    """Seconds of wall clock that count as one inner step; 0 where inner steps count themselves."""

    def due(self, inner_step: int) -> DueRounds:
        """What to launch and land after `inner_step` (counted from 1)."""
        ...

    def fragment(self, index: int, names: Sequence[str]) -> list[str]:
        """The parameter names of one fragment, in model order."""
        ...

    def inner_steps(self, rounds: int) -> int:
        """How many inner steps a run of this many rounds takes, the last landing included."""
        ...


@runtime_checkable
class AdaptiveSchedule(Protocol):
    """A schedule whose H goes by what all peers land alike."""

    def learn(self, round: Round, agreement: float | None) -> str:
        """A round has landed whose payloads agree by so much, -1 .. 1 (None: nothing to compare).

        In one line what has changed and why, empty where nothing has.
        """
        ...

    def state_dict(self) -> dict[str, Any]:
        """Equal on all peers that have landed the same rounds."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Pending(Protocol):
    """One exchange under way."""

    def wait(self, timeout_s: float) -> list[Contribution]:
        """Every contribution that counts; the own one may be left out. Raises RoundFailed, QuorumLost,
        StateTransferRequired.
        """
        ...

    def arrived(self) -> bool:
        """Whether `wait` would return at once, or fail at once."""
        ...


class Reading(Protocol):
    """What the messages of a round mean."""

    @property
    def refused(self) -> Refusals:
        """Those that do not count."""
        ...


Read = TypeVar("Read", bound=Reading)


class Exchange(Protocol):
    """AXIS exchange: whose bytes come back."""

    peer: str
    """This peer's name, unique in the run."""
    rank: int
    """This peer's place among the run's peers, valid after `join`."""
    size: int
    """How many peers the run has, valid after `join`."""
    agrees: bool
    """True when every peer of a round gets the same contributions, so slow weights stay equal."""
    waits_for_all: bool
    """True when what a peer launched always counts; False when the others may go on without it."""
    came_late: bool
    """Whether the run was under way when this peer joined, valid after `join`."""
    lockstep: bool
    """True when all peers are in the same round at the same time, so that they can meet in the middle of a run."""
    tells_moving: bool
    """Whether `moving_s` leaves out waiting for who is late."""
    concurrent: bool
    """Whether `start` may come from another thread than all else, while inner steps are taken."""
    recovery: Callable[[int], tuple[Round, bytes]] | None
    """What `StateTransferRequired.state` is, for a replica that finds itself in the minority; None where that cannot
    be.
    """

    @property
    def alive(self) -> int:
        """How many peers the next round counts on, valid after `join`."""
        ...

    @property
    def bytes_sent(self) -> int:
        """Payload bytes that left this peer, every copy counted."""
        ...

    @property
    def bytes_received(self) -> int:
        """Payload bytes that reached this peer."""
        ...

    @property
    def moving_s(self) -> float:
        """Seconds so far in which a payload was on its way to or from this peer, several at once counted once."""
        ...

    def join(self, first: Round = ...) -> None:
        """Wait until the run's peers are there. Raises UserError when they do not come.

        `first`: the round that this peer launches next, later than 0 after a restart.
        """
        ...

    def decided(self, round: Round) -> bool:
        """Whether the others have settled a round already, without waiting for what this peer would launch.

        Raises StateTransferRequired.
        """
        ...

    def landed(self, round: Round, state: Callable[[], bytes]) -> None:
        """The replica has landed a round; `state` packs what all replicas hold alike, if others want it as of this."""
        ...

    def refused(self, round: Round, refusals: Refusals) -> None:
        """The replica has landed a round without these peers, whose messages nobody can use."""
        ...

    def start(self, blob: bytes, round: Round) -> Pending:
        """Offer one wire message; returns at once. A round that is decided takes nothing in, but is handed out."""
        ...

    def once(self, round: Round, read: Callable[[Refusals], Read]) -> Read:
        """What `read` makes of the messages of a round, without those that are refused elsewhere in this peer.

        Read by one of the peers that share this process and get the same contributions: all of them get the same
        object, so nobody may change it. Raises what `read` raises.
        """
        ...

    def meet(self, blob: bytes, number: int, timeout_s: float) -> list[Contribution]:
        """The bytes of one meeting, own included, in peer-name order: everybody's who is alive. Raises RoundFailed.

        All peers must call it, each with the same rising numbers.
        """
        ...

    def hand_over(self, way: ExecutorHandoff, state: Callable[[], bytes]) -> bytes:
        """Return the givers' state at a peer that takes it, and nothing at a giver or where nobody takes.

        All peers must call it alike, after a meeting. `state` packs this peer's state, if that is needed. Raises
        RoundFailed or QuorumLost when the state does not come.
        """
        ...

    def counters(self) -> dict[str, float]:
        """What else it has counted since it began; names carry their units."""
        ...

    def close(self) -> None:
        """Finish what others still need from this peer, then leave. Idempotent."""
        ...

    def abort(self) -> None:
        """Leave at once, whatever others still need. Idempotent."""
        ...
