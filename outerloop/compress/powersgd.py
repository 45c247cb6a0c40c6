"""Low rank (PowerSGD, arXiv 1905.13727): a matrix as the product of two thin ones, by one power iteration.

    P = orthonormal(M Q₀);  Q = Mᵀ P;  M̂ = P Qᵀ          Q₀ gaussian, drawn from the seed: no state

M̂ projects M's columns on the span of P, so the error is never longer than M. Both factors travel in bfloat16, and Q is
computed against the rounded P: all that the rounding costs is the last bits of the projection. The paper sums P over
the workers before Q is computed, two exchanges a round, and starts from the last round's Q; here each worker factors
its own M and one message is enough. Needs error feedback. Not for tensors whose information is spread evenly.

n rows, m columns, r rank.
"""

from __future__ import annotations

import torch
from torch import Size, Tensor

from outerloop.protocols import Compressor
from outerloop.types import CodecContext, Parts, UserError


class PowerSgd:
    """Rank `rank` for matrices, `small` for what has fewer than two dimensions or would not shrink.

    A tensor of more dimensions is a matrix of its first one by all others.

    Args:
        rank: 1 or more. The paper: 1 .. 4.
        small: compressor where rank * (n + m) >= n * m.

    Raises:
        UserError: if `rank` is not positive.
    """

    linear = False

    def __init__(self, *, rank: int, small: Compressor) -> None:
        if rank < 1:
            raise UserError(f"powersgd rank={rank} must be at least 1")
        self.rank, self.small = rank, small

    def is_small(self, shape: Size) -> bool:
        """Whether two factors would not be smaller than the tensor."""
        return len(shape) < 2 or self.rank * (shape[0] + shape[1:].numel()) >= shape.numel()

    def encode(self, x: Tensor, moment: CodecContext) -> Parts:
        """(n, ...) -> "p" (n, r) and "q" (m, r) bfloat16, or the parts of `small`."""
        if self.is_small(x.shape):
            return self.small.encode(x, moment)
        x_nm = x.detach().reshape(x.shape[0], -1).double()
        start_mr = torch.randn(x_nm.shape[1], self.rank, generator=torch.Generator().manual_seed(moment.seed))
        p_nr = torch.linalg.qr(x_nm @ start_mr.to(x_nm)).Q.to(torch.bfloat16)
        q_mr = (x_nm.T @ p_nr.double()).clamp(-self.largest, self.largest)
        return {"p": p_nr.contiguous(), "q": q_mr.to(torch.bfloat16).contiguous()}

    def decode(self, parts: Parts, shape: Size, moment: CodecContext) -> Tensor:
        """Parts -> float32 of `shape`. Raises ValueError on wrong sizes or factors out of range.

        Column by column and not as a matmul, which would give other last bits on another processor.
        """
        if self.is_small(shape):
            return self.small.decode(parts, shape, moment)
        p_rn = checked(parts["p"], (shape[0], self.rank), 1.0).float().T
        q_rm = checked(parts["q"], (shape[1:].numel(), self.rank), self.largest).float().T
        x_nm = p_rn[0][:, None] * q_rm[0]
        for p_n, q_m in zip(p_rn[1:], q_rm[1:], strict=True):
            x_nm += p_n[:, None] * q_m
        return x_nm.view(shape)

    @property
    def largest(self) -> float:
        """Bound of |Q|, a bfloat16 number: with it, sums over the rank stay finite in float32."""
        return torch.finfo(torch.bfloat16).max / (1 << self.rank.bit_length())


def checked(factor: Tensor, shape: tuple[int, int], largest: float) -> Tensor:
    """The factor, or ValueError unless it is bfloat16 of this shape and -largest .. largest."""
    if factor.shape != shape or factor.dtype != torch.bfloat16 or not (factor.abs().double() <= largest).all():
        raise ValueError(f"expected a bfloat16 factor {shape} within ±{largest:g}, got {tuple(factor.shape)}")
    return factor
