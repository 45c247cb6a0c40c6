"""Approximate a matrix by a product of two thin matrices, with one power iteration (PowerSGD, arXiv 1905.13727).

    P = orthonormal(M Q₀);  Q = Mᵀ P;  M̂ = P Qᵀ          Q₀ gaussian, drawn from the seed

M̂ projects the columns of M onto the span of P, so the norm of the error never exceeds the norm of M. Both factors are
sent in bfloat16. Q is computed with the rounded P, so rounding costs only the last bits of the projection. The paper
sums P over the workers before it computes Q, which takes two exchanges per round. Here each worker factors its own M,
so one message is enough. Needs error feedback. Not suitable for tensors with a flat spectrum.

Warm start: Q₀ is the Q of the last round, so that one iteration per round becomes a power iteration over all rounds. In
the paper, Q₀ is the mean of all workers' Q, so it is equal on all workers. Here Q₀ is the Q that this peer sent in its
last landed round. Q₀ is used only by this peer's `encode`, because M̂ is decoded from P and Q alone.

Sizes: n rows, m columns, rank r.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Size, Tensor

from outerloop.compress import check_names
from outerloop.protocols import Compressor
from outerloop.types import CodecContext, Parts, Tensors, UserError


class PowerSgd:
    """Low-rank compressor of matrices.

    A tensor with more than two dimensions is treated as a matrix (n, m): n is its first dimension, m the product of the
    others.

    Args:
        rank: r, 1 or more. The paper uses 1 .. 4.
        small: compressor of tensors that have fewer than two dimensions or would not shrink: r * (n + m) >= n * m.
        warm_start: start from the tensor's Q of its last landed round instead of a new random Q₀.

    Raises:
        UserError: if `rank` is not positive.
    """

    linear = False

    def __init__(self, *, rank: int, small: Compressor, warm_start: bool = False) -> None:
        if rank < 1:
            raise UserError(f"powersgd rank={rank} must be at least 1")
        self.rank, self.small, self.warm_start = rank, small, warm_start
        self.last: Tensors = {}

    def is_small(self, shape: Size) -> bool:
        """Return whether a tensor of this shape is encoded with `small`."""
        return len(shape) < 2 or self.rank * (shape[0] + shape[1:].numel()) >= shape.numel()

    def encode(self, x: Tensor, context: CodecContext) -> Parts:
        """Encode x as an (n, m) matrix to "p" (n, r) and "q" (m, r), both bfloat16, or encode it with `small`."""
        if self.is_small(x.shape):
            return self.small.encode(x, context)
        x_nm = x.detach().reshape(x.shape[0], -1).double()
        p_nr = torch.linalg.qr(x_nm @ self.start(x_nm.shape[1], context).to(x_nm)).Q.to(torch.bfloat16)
        q_mr = (x_nm.T @ p_nr.double()).clamp(-self.largest, self.largest)
        return {"p": p_nr.contiguous(), "q": q_mr.to(torch.bfloat16).contiguous()}

    def decode(self, parts: Parts, shape: Size, context: CodecContext) -> Tensor:
        """Decode parts to a float32 tensor of `shape`. Raises ValueError on wrong sizes or factors out of range.

        The product is summed over the rank in order, because the last bits of a matmul would depend on the processor.
        """
        if self.is_small(shape):
            return self.small.decode(parts, shape, context)
        check_names(parts, "p", "q")
        p_rn = checked(parts["p"], (shape[0], self.rank), 1.0).float().T
        q_rm = checked(parts["q"], (shape[1:].numel(), self.rank), self.largest).float().T
        x_nm = p_rn[0][:, None] * q_rm[0]
        for p_n, q_m in zip(p_rn[1:], q_rm[1:], strict=True):
            x_nm += p_n[:, None] * q_m
        return x_nm.view(shape)

    def start(self, columns: int, context: CodecContext) -> Tensor:
        """Return Q₀ (columns, rank): the last Q of this tensor if it fits and has no zero column, else a random one."""
        last_mr = self.last.get(context.name)
        if last_mr is not None and last_mr.shape == (columns, self.rank) and last_mr.any(dim=0).all():
            return last_mr
        draw = torch.Generator().manual_seed(context.seed)
        return torch.randn(columns, self.rank, generator=draw, dtype=torch.float32)

    def landed(self, own: Parts, shape: Size, context: CodecContext) -> None:
        """Store the Q that this peer sent, for the warm start of the next round."""
        if self.warm_start and not self.is_small(shape):
            self.last[context.name] = own["q"]

    def state_dict(self) -> dict[str, Any]:
        """Return a mapping from parameter name to the Q that this peer sent in the parameter's last landed round."""
        return dict(self.last)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state returned by `state_dict`."""
        self.last = dict(state)

    @property
    def largest(self) -> float:
        """Upper bound on |Q|: representable in bfloat16, and low enough to keep float32 sums over the rank finite."""
        return torch.finfo(torch.bfloat16).max / (1 << self.rank.bit_length())


def checked(factor: Tensor, shape: tuple[int, int], largest: float) -> Tensor:
    """Return `factor`. Raises ValueError unless it is bfloat16, of this shape, and within -largest .. largest."""
    if factor.shape != shape or factor.dtype != torch.bfloat16 or not (factor.abs().double() <= largest).all():
        raise ValueError(
            f"a factor of shape {tuple(factor.shape)} must be bfloat16, of shape {shape}, and within ±{largest:g}"
        )
    return factor
