"""Find a centre of the contributions by iteration, starting from their coordinate-wise median.

    v ← median_p Δ̂_p (coordinate-wise);    repeat L times:  v ← step(v, Δ̂, ‖Δ̂_1 − v‖, …, ‖Δ̂_P − v‖);    ḡ = v

v and the distances are computed per tensor, not for the whole fragment: an aggregate receives the norms of whole
fragments, but not their distances from v. Distances are computed by exact_norms.py. A subclass computes factors,
products and sums in float64, in the order of peer names, and rounds v to the dtype of the values after each iteration.
So all machines get the same bits.

Nothing is stored between rounds. An aggregate is called per tensor, without the tensor's name, and also for rounds that
are not applied afterwards, so a centre kept from the last round could differ between replicas.

Δ̂_p is the decoded payload of peer p, P the number of peers, L the number of iterations, and ḡ the result.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import Tensor

from outerloop.aggregate.exact_norms import distance
from outerloop.aggregate.median import combine_sorted, middle
from outerloop.types import UserError


class IterativeCentre(ABC):
    """An aggregate that refines the coordinate-wise median by iteration. Sample counts have no effect.

    Args:
        iterations: number of iterations L, at least 1.

    Raises:
        UserError: if `iterations` is not positive.
    """

    needs_norms = False
    linear = False
    combines_values = True

    def __init__(self, *, iterations: int) -> None:
        if iterations < 1:
            raise UserError(f"aggregate.iterations={iterations} must be at least 1: set aggregate.iterations=3")
        self.iterations = iterations

    def __call__(self, sent: Sequence[Tensor], samples: Sequence[int], norms: Sequence[float]) -> Tensor:
        """Return the centre of P tensors of the same shape."""
        centre = combine_sorted(sent, middle)
        for _ in range(self.iterations):
            centre = self.step(centre, sent, [distance(x, centre) for x in sent])
        return centre

    @abstractmethod
    def step(self, centre: Tensor, sent: Sequence[Tensor], distances: Sequence[float]) -> Tensor:
        """Return the next centre. `distances`: distance of each tensor in `sent` from `centre`."""
