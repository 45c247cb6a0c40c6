"""Hold one replica of a run: fast weights θ in the model, slow weights φ, and hashes that identify φ."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.nn import Module

from outerloop import wire
from outerloop.replica.island import Island, copy_to
from outerloop.types import Tensors


class Replica:
    """The fast weights θ and slow weights φ of a model. φ starts as a copy of θ.

    Args:
        model: the model, updated in place; its trainable parameters are θ.
        dtype: dtype of φ, at least as wide as the dtype of θ.
        island: interface through which θ is read and written, or None for `Island(model)`.
    """

    def __init__(self, model: Module, *, dtype: torch.dtype, island: Island | None = None) -> None:
        self.island = island or Island(model)
        fast = ((name, self.island.read_parameter(name)) for name in self.island.params)
        self.slow = {name: copy_to(x, device=x.device, dtype=dtype) for name, x in fast}
        self.hashes: dict[str, int] = {}
        self.update_hashes(self.slow)

    @property
    def device(self) -> torch.device:
        """The device of φ."""
        return next(iter(self.slow.values())).device

    def joint_hash(self, names: Iterable[str]) -> int:
        """Return one 64-bit hash over the slow weights with these names."""
        return wire.joint_hash(self.hashes[name] for name in names)

    def update_hashes(self, names: Iterable[str]) -> None:
        """Recompute the hashes of the slow weights with these names."""
        self.hashes |= {name: wire.tensors_hash({name: self.slow[name]}) for name in names}

    @torch.no_grad()
    def load_slow(self, weights: Tensors) -> None:
        """Copy `weights` to the slow weights φ and update their hashes."""
        for name, x in self.slow.items():
            x.copy_(weights[name])
        self.update_hashes(self.slow)

    def assign(self, weights: Tensors) -> None:
        """Copy `weights` to both the slow weights φ and the fast weights θ."""
        self.load_slow(weights)
        self.island.write(self.slow, merge_local=0.0)
