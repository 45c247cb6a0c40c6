"""Measure on a trial tensor how many bytes the feedback or the outer method stores per byte of slow weights."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from outerloop.protocols import Feedback, OuterMethod
from outerloop.replica.sharding import to_local

SIDE = 64
"""Number of rows and columns of the trial matrix. An 8-bit residual of this size consists of whole blocks."""


@dataclass(frozen=True)
class TrialState:
    """Measures how much state a feedback and a method will have, by a trial step that changes neither of them.

    feedback, method: unused copies, without state.
    dtype: the dtype of the slow weights.
    """

    feedback: Feedback
    method: OuterMethod
    dtype: torch.dtype

    @property
    def residual_share(self) -> float:
        """Bytes that the feedback will store per byte of slow weights."""
        return residual_share(self.feedback, self.dtype)

    @property
    def momentum_share(self) -> float:
        """Bytes that the outer method will store per byte of slow weights."""
        return momentum_share(self.method, self.dtype)


def residual_share(feedback: Feedback, dtype: torch.dtype) -> float:
    """Return the number of bytes that a feedback stores per byte of slow weights with this dtype."""
    trial, x = copy.deepcopy(feedback), torch.zeros(SIDE, SIDE, dtype=dtype)
    trial.keep("trial", x, x)
    return tree_bytes(trial.state_dict()) / x.nbytes


def momentum_share(method: OuterMethod, dtype: torch.dtype) -> float:
    """Return the number of bytes that an outer method stores per byte of slow weights with this dtype."""
    trial, x = copy.deepcopy(method), {"trial": torch.zeros(SIDE, SIDE, dtype=dtype)}
    trial.init(x)
    trial.update(x, trial.outgoing(x, {"trial": x["trial"].clone()}), {})
    return tree_bytes(trial.state_dict()) / x["trial"].nbytes


def tree_bytes(tree: Any) -> int:
    """Return the total bytes of all tensors in nested dictionaries and iterables. Only this rank's shards count."""
    if isinstance(tree, Tensor):
        return to_local(tree.detach()).nbytes
    if isinstance(tree, dict):
        return sum(map(tree_bytes, tree.values()))
    if isinstance(tree, str | bytes) or not isinstance(tree, Iterable):
        return 0
    return sum(map(tree_bytes, tree))
