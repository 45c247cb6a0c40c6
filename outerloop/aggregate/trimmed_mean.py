"""Take the coordinate-wise trimmed mean (Yin et al., arXiv 1803.01498): drop the most extreme values, then average.

    n = ⌊trim · P⌋;    ḡ_i = mean of Δ̂_p,i without its n smallest and its n largest values

Up to n peers that send wrong values cannot move ḡ_i out of the range of the others. Fewer of the honest values are lost
than with the median, because P − 2n values per coordinate are averaged instead of one or two. With n = 0, this is the
mean.

Not suitable for compressors with which each peer sends different coordinates, such as top-k: values that few peers send
are the largest and are dropped. Rotated payloads (compress/rotated.py) are dense, so they work.

Δ̂_p,i is coordinate i of the decoded payload of peer p, P the number of peers, and ḡ the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from torch import Tensor

from outerloop.aggregate.mean import total
from outerloop.aggregate.median import combine_sorted, needs_aligned
from outerloop.kernels.portable import divide
from outerloop.types import UserError


class TrimmedMean:
    """The coordinate-wise trimmed mean over the peers, with the same weight for all peers.

    Args:
        trim: fraction of peers to drop at each end, at least 0 and below 0.5, rounded down to whole peers.

    Raises:
        UserError: if `trim` is out of range.
    """

    needs_norms = False
    linear = False
    combines_values = True
    requires = needs_aligned(
        "and a trimmed mean drops what few peers send: set aggregate=senders, or compress=int8 or rotated"
    )

    def __init__(self, *, trim: float) -> None:
        if not 0 <= trim < 0.5:
            raise UserError(
                f"aggregate.trim={trim} must be at least 0 and below 0.5: set aggregate.trim=0.25, which tolerates"
                " wrong values of a quarter of the peers"
            )
        self.trim = Fraction(str(trim))  # exact: 0.29 of 100 peers is 29, but the rounded product is below 29

    def __call__(self, sent: Sequence[Tensor], samples: Sequence[int], norms: Sequence[float]) -> Tensor:
        """Return the coordinate-wise trimmed mean of P tensors of the same shape."""
        drop = int(self.trim * len(sent))
        return combine_sorted(sent, lambda sorted_PN: mean_of_rows(sorted_PN[drop : len(sent) - drop]))


def mean_of_rows(x_PN: Tensor) -> Tensor:
    """Return the mean of each column, summed from the first row to the last."""
    return divide(total(list(x_PN)), len(x_PN))
