"""The coordinate-wise trimmed mean (Yin et al., arXiv 1803.01498): drop the largest and smallest values, then average.

    n = ⌊trim · P⌋;    ḡ_i = mean of Δ̂_p,i without its n smallest and its n largest values

Up to n peers that send wrong values cannot move ḡ_i out of the range of the others. Honest peers lose less than with
the median, because P − 2n values of each coordinate are averaged instead of one or two. With n = 0 this is the mean.

Not suitable for compressors with which each peer sends different coordinates, such as top-k: the values that few peers
send are the largest, and are dropped. Rotated payloads (compress/rotated.py) are dense.

P peers.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outerloop.aggregate.mean import total
from outerloop.aggregate.median import PIECE
from outerloop.kernels.portable import divide
from outerloop.types import Requirement, UserError


class TrimmedMean:
    """The trimmed mean of each coordinate over the peers; all peers have the same weight.

    Args:
        trim: fraction of the peers whose values are dropped at each end, 0 .. below 0.5; rounded down to whole peers.

    Raises:
        UserError: if `trim` is out of range.
    """

    needs_norms = False
    linear = False
    requires = (
        Requirement(
            "compress",
            "aligned",
            True,
            "with this compressor each peer sends different coordinates, and a trimmed mean drops what few peers send:"
            " set aggregate=senders, or compress=rotated",
        ),
    )

    def __init__(self, *, trim: float) -> None:
        if not 0 <= trim < 0.5:
            raise UserError(f"trimmed_mean trim={trim} must be 0 .. below 0.5 (0.25 tolerates a quarter of the peers)")
        self.trim = trim

    def __call__(self, sent: Sequence[Tensor], samples: Sequence[int], norms: Sequence[float]) -> Tensor:
        """Return the trimmed mean of P tensors of the same shape."""
        drop = int(self.trim * len(sent))
        pieces_P = zip(*(x.reshape(-1).split(PIECE) for x in sent), strict=True)
        return torch.cat([inner_mean(torch.stack(piece_P), drop) for piece_P in pieces_P]).view(sent[0].shape)


def inner_mean(x_PN: Tensor, drop: int) -> Tensor:
    """Return the mean of each column without its `drop` smallest and largest values, added in ascending order.

    Adding 0 turns -0 into 0, because their order would depend on the machine.
    """
    kept = (x_PN + 0.0).sort(dim=0).values[drop : len(x_PN) - drop]
    return divide(total(list(kept)), len(kept))
