"""The protocol of an aggregate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor


class Aggregate(Protocol):
    """AXIS aggregate: combines the decoded contributions of all peers into one tensor.

    Optional attributes: `weighs_samples`, True if peers are weighted by their numbers of samples; `combines_values`,
    True if payloads of coefficients (`Transforming`) must be transformed back before they are combined.
    """

    needs_norms: bool
    """True if the aggregate needs `norms`. To compute them, every payload is decoded once more."""
    linear: bool
    """True if the result is the plain mean: each of P peers has the weight 1/P in every value.

    If so, one peer's contribution can be replaced after aggregation. If peers contribute weights instead of
    differences, the result is the mean of these weights.
    """

    def __call__(self, sent: Sequence[Tensor], samples: Sequence[int], norms: Sequence[float]) -> Tensor:
        """Combine P tensors of one shape, in peer-name order, into one new tensor.

        `samples`: each peer's training samples. `norms`: the L2 norm of each peer's whole fragment, if `needs_norms`.
        """
        ...
