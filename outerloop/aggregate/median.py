"""Take the coordinate-wise median (Yin et al., arXiv 1803.01498), which a minority of peers cannot move far.

    ḡ_i = median_p Δ̂_p,i          for an even number of peers: the mean of the two middle values

As long as fewer than half of the peers send wrong values, each ḡ_i stays between the smallest and the largest value of
the others. This has a cost: if the distribution of a coordinate's values over the peers is skewed, the median is not
near the mean, and large values that only a minority of peers have are lost. So use it against peers that send wrong
values, not by default.

Not suitable for compressors such as top-k, where each peer sends different coordinates: most values are then zero, and
so is the median.

Δ̂_p,i is coordinate i of the decoded payload of peer p, P the number of peers, and ḡ the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from outerloop.types import Requirement

PIECE = 1 << 20
"""Number of coordinates sorted at a time, which limits temporaries to 20 MiB per peer, whatever the tensor's size."""


def needs_aligned(reason: str) -> tuple[Requirement]:
    """Return the requirement that all peers send the same coordinates.

    reason: end of the error message: why this is required, and what to set instead.
    """
    why = f"with this compressor each peer sends different coordinates, {reason}"
    return (Requirement("compress", "aligned", True, why),)


class Median:
    """The coordinate-wise median over the peers, with the same weight for all peers."""

    needs_norms = False
    linear = False
    combines_values = True
    requires = needs_aligned("and the median of mostly zeros is 0: set aggregate=senders, or compress=int8 or rotated")

    def __call__(self, sent: Sequence[Tensor], samples: Sequence[int], norms: Sequence[float]) -> Tensor:
        """Return the coordinate-wise median of P tensors of the same shape."""
        return combine_sorted(sent, middle)


def combine_sorted(sent: Sequence[Tensor], rule: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply `rule` to the sorted values of each coordinate. Return the results in the shape of the tensors.

    `rule` maps the values of N coordinates on P peers, (P, N), ascending in each column, to (N,). Adding 0 turns -0
    into 0, because the order of -0 and 0 after sorting would depend on the machine.
    """
    pieces_P = zip(*(x.reshape(-1).split(PIECE) for x in sent), strict=True)
    combined = [rule((torch.stack(piece_P) + 0.0).sort(dim=0).values) for piece_P in pieces_P]
    return torch.cat(combined).view(sent[0].shape)


def middle(sorted_PN: Tensor) -> Tensor:
    """Return the median of each column, whose values ascend."""
    high = len(sorted_PN) // 2
    if len(sorted_PN) % 2:
        return sorted_PN[high]
    return sorted_PN[high - 1] * 0.5 + sorted_PN[high] * 0.5  # their sum could overflow
