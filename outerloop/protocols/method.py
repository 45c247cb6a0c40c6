"""The protocol of an outer method."""

from __future__ import annotations

from typing import Any, Literal, Protocol

from outerloop.types import Tensors


class OuterMethod(Protocol):
    """AXIS method: applies the mean of the contributions to the slow weights.

    Optional attribute: `scheduled`, True if the learning rate or momentum depends on the number of earlier updates.
    """

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
