"""Define the inner optimizer that uses Muon for layer matrices and AdamW for the rest (MuLoCo, arXiv 2505.23725).

Muon orthogonalizes a matrix's momentum with Newton-Schulz iterations. Embeddings, the output matrix, norms and biases
are not maps between hidden layers, so AdamW updates them. Both optimizers come from torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.nn.parameter import Parameter
from torch.optim import Optimizer

Named = Iterable[tuple[str, Parameter]]


class MuonWithAdamW(Optimizer):
    """Combines Muon and AdamW into one optimizer, with the parameter groups of both.

    `needs_whole_matrices` is True because a rank cannot update its shard of a matrix without the other shards.

    Args:
        params: (name, parameter) pairs.
        lr: learning rate of Muon, whose updates are scaled to the RMS of AdamW's updates (`match_rms_adamw`).
        adamw_lr: learning rate of AdamW.
        momentum: momentum of Muon.
        betas: betas of AdamW.
        weight_decay: decoupled weight decay of both optimizers.
        fused: whether to use torch's fused AdamW.
    """

    needs_whole_matrices = True

    def __init__(
        self,
        params: Named,
        *,
        lr: float,
        adamw_lr: float,
        momentum: float,
        betas: tuple[float, float],
        weight_decay: float,
        fused: bool,
    ) -> None:
        params = list(params)
        matrices = [p for name, p in params if is_layer_matrix(name, p)]
        others = [p for name, p in params if not is_layer_matrix(name, p)]
        self.parts: list[Optimizer] = []
        if matrices:
            self.parts.append(
                torch.optim.Muon(
                    matrices, lr=lr, momentum=momentum, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw"
                )
            )
        if others:
            self.parts.append(
                torch.optim.AdamW(
                    others, lr=adamw_lr, betas=(betas[0], betas[1]), weight_decay=weight_decay, fused=fused
                )
            )
        super().__init__([p for _, p in params], {"lr": lr})
        self.param_groups = [group for part in self.parts for group in part.param_groups]

    def step(self, closure: Any = None) -> Any:
        """Take one step with both optimizers.

        `closure`: computes the gradients and returns the loss, as in every torch optimizer. Returns that loss, or None
        without a closure.
        """
        with torch.enable_grad():
            loss = closure() if closure is not None else None
        for part in self.parts:
            part.step()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Return the states of both optimizers."""
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the states of both optimizers."""
        for part, saved in zip(self.parts, state["parts"], strict=True):
            part.load_state_dict(saved)
        self.param_groups = [group for part in self.parts for group in part.param_groups]


def is_layer_matrix(name: str, p: Parameter) -> bool:
    """Return whether a parameter is a matrix inside a numbered layer."""
    return p.dim() == 2 and any(piece.isdigit() for piece in name.split("."))
