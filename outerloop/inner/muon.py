"""Define the inner optimizer that uses Muon for layer matrices and AdamW for the rest (MuLoCo, arXiv 2505.23725).

Muon orthogonalizes a matrix's momentum with Newton-Schulz iterations. Embeddings, the output matrix, norms and biases
are not maps between hidden layers, so AdamW updates them. Both optimizers come from torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.nn.parameter import Parameter
from torch.optim import Optimizer

from outerloop.types import UserError

Named = Iterable[tuple[str, Parameter]]


class MuonWithAdamW(Optimizer):
    """Combines Muon and AdamW into one optimizer, with the parameter groups of both.

    `needs_whole_matrices` is True because a rank cannot update its shard of a matrix without the other shards.

    A layer matrix is recognized by a number in its name, as in "layers.0.weight". An embedding in an nn.Sequential has
    such a name as well, and is then updated by Muon: name the modules of the model to avoid this.

    Args:
        params: (name, parameter) pairs.
        lr: learning rate of Muon, whose updates are scaled to the RMS of AdamW's updates (`match_rms_adamw`).
        adamw_lr: learning rate of AdamW.
        momentum: momentum of Muon.
        betas: betas of AdamW.
        weight_decay: decoupled weight decay of both optimizers.
        fused: whether to use torch's fused AdamW.

    Attributes:
        parts: Muon, AdamW, or both, in the order of the parameter groups; each has one group, and shares `state`.
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
        self.share_state()

    def share_state(self) -> None:
        """Make the two optimizers use the state and the parameter groups of this one."""
        for part, group in zip(self.parts, self.param_groups, strict=True):
            part.__setstate__({"state": self.state, "param_groups": [group]})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add the parameters during construction. Raises UserError afterwards."""
        if getattr(self, "param_groups", None):
            raise UserError(
                "this optimizer got another parameter group, but divides parameters between Muon and AdamW when it is"
                " created: create it with all parameters"
            )
        super().add_param_group(param_group)

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

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"parts": self.parts}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the states of both optimizers. Earlier versions saved one state for each optimizer."""
        super().load_state_dict(merged(state_dict["parts"]) if "parts" in state_dict else state_dict)
        self.share_state()


def merged(states: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the states of several optimizers as the state of one that has the parameter groups of all."""
    whole: dict[str, Any] = {"state": {}, "param_groups": []}
    first = 0
    for each in states:
        whole["state"] |= {first + index: state for index, state in each["state"].items()}
        whole["param_groups"] += [
            group | {"params": [first + index for index in group["params"]]} for group in each["param_groups"]
        ]
        first += sum(len(group["params"]) for group in each["param_groups"])
    return whole


def is_layer_matrix(name: str, p: Parameter) -> bool:
    """Return whether a parameter is a matrix inside a numbered layer."""
    return p.dim() == 2 and any(piece.isdigit() for piece in name.split("."))
