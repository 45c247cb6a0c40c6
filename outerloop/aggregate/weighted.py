"""Take the mean weighted by training samples, so that a worker that did half the work has half the weight.

    ḡ = Σ_p (n_p / Σ_q n_q) Δ̂_p          n_p: samples of peer p since this fragment's last landing

Δ̂_p is the decoded payload of peer p.
The shares n_p / Σ_q n_q are computed before the multiplication, so that products stay finite for any 64-bit counts.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from outerloop.aggregate.mean import total


class Weighted:
    """The sample-weighted mean, or the plain mean if no peer has samples."""

    needs_norms = False
    linear = False
    weighs_samples = True

    def __call__(self, sent: Sequence[Tensor], samples: Sequence[int], norms: Sequence[float]) -> Tensor:
        """Return the mean of P tensors of the same shape, weighted by `samples`."""
        n_P = samples if sum(samples) else [1] * len(sent)
        return total([x * (n / sum(n_P)) for x, n in zip(sent, n_P, strict=True)])
