"""The plain mean: everyone counts the same.

    ḡ = (1/P) Σ_p Δ̂_p

DiLoCo (arXiv 2311.08105); SparseLoCo as its paper writes it (arXiv 2508.15706).
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from outerloop.kernels.portable import divided


class Mean:
    """1/P of the sum."""

    needs_norms = False
    linear = True

    def __call__(self, sent: Sequence[Tensor], samples: Sequence[int], norms: Sequence[float]) -> Tensor:
        """P tensors of one shape -> their mean."""
        return divided(total(sent), len(sent))


def total(sent: Sequence[Tensor]) -> Tensor:
    """The sum in the given order, a new tensor."""
    out = sent[0].clone()
    for x in sent[1:]:
        out += x
    return out
