"""The values that pass between the steps of a round: what a launch reads, the decoded messages, and their aggregate."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from outerloop import wire
from outerloop.core.codec import on
from outerloop.core.pipeline.fused import SparseUpdates
from outerloop.types import Parts, Tensors


@dataclass(frozen=True)
class Snapshot:
    """The input of a launch: the model's buffers, and its gradients or fast weights (in the model's own dtype)."""

    read: Tensors
    buffers: dict[str, Parts]


@dataclass(frozen=True)
class DecodedRound:
    """The decoded messages of a round.

    messages: sorted by peer name.
    kept: decoded sparse updates of the tensors that go through the fused pipeline.
    norms: L2 norm of each message; empty if norms were not measured.
    """

    messages: list[wire.Message]
    kept: dict[str, SparseUpdates]
    norms: list[float]


@dataclass(frozen=True)
class AggregatedRound:
    """The result of aggregating a round.

    messages: sorted by peer name.
    mean: the aggregate of the tensors that go through the dense pipeline.
    kept: all peers' sparse updates of the tensors that go through the fused pipeline, not aggregated yet.
    buffers: the mean of all peers' buffers.
    """

    messages: list[wire.Message]
    mean: Tensors
    kept: dict[str, SparseUpdates]
    buffers: Tensors

    def to(self, device: torch.device) -> AggregatedRound:
        """Return a copy with all tensors on this device. The messages are not moved."""
        kept = {name: k.to(device) for name, k in self.kept.items()}
        return AggregatedRound(self.messages, on(device, self.mean), kept, on(device, self.buffers))
