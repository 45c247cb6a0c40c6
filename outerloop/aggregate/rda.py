"""Mean norm times normalized mean direction (RDA, Decoupled DiLoCo, arXiv 2604.21428), tensor by tensor.

    ḡ = (1/P) Σ_p ‖Δ̂_p‖ · m / ‖m‖,   m = (1/P) Σ_p Δ̂_p

Averaging shortens: the more the workers disagree, the shorter their mean. RDA keeps the direction of the mean and the
length of a single step.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outerloop.aggregate.mean import total


class RDA:
    """The mean, stretched to the mean norm; zero where the mean is zero."""

    needs_norms = False
    linear = False

    def __call__(self, sent: Sequence[Tensor], samples: Sequence[int], norms: Sequence[float]) -> Tensor:
        """P tensors of one shape -> one of the same."""
        mean = total(sent).div_(len(sent))
        length = torch.stack([x.norm() for x in sent]).mean()
        short = mean.norm()
        return mean * torch.where(short > 0, length / short, 0.0)
