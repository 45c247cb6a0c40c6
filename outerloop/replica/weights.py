"""Hold one replica of a run: fast weights θ in the model, slow weights φ, and hashes that identify φ."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.nn import Module

from outerloop import wire
from outerloop.replica.island import Island, copy_to
from outerloop.replica.parameter_checks import refuse_meta
from outerloop.types import Tensors, UserError, listed_names, printable


class Replica:
    """The fast weights θ and slow weights φ of a model. φ starts as a copy of θ.

    Args:
        model: the model, updated in place; its trainable parameters are θ.
        dtype: dtype of φ; should be at least as wide as the dtype of θ.
        island: interface through which θ is read and written, or None for `Island(model)`.

    Attributes:
        warnings: one line, if a parameter is float64 and φ is not.

    Raises:
        UserError: if a trainable parameter is on the meta device.
    """

    def __init__(self, model: Module, *, dtype: torch.dtype, island: Island | None = None) -> None:
        self.island = island or Island(model)
        refuse_meta(self.island.params)
        fast = ((name, self.island.read_parameter(name)) for name in self.island.params)
        self.slow = {name: copy_to(x, device=x.device, dtype=dtype) for name, x in fast}
        self.warnings = [
            f"{name} is float64, but is rounded to float32 when a round lands: set state_dtype=float64"
            for name, p in self.island.params.items()
            if p.dtype == torch.float64 != dtype
        ][:1]
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
        """Copy `weights` to the slow weights φ and update their hashes.

        Raises UserError if `weights` are of other parameters or have other shapes.
        """
        if weights.keys() != self.slow.keys():
            there, here = (
                listed_names(sorted(map(printable, names))) or "none"
                for names in (weights.keys() - self.slow, self.slow.keys() - weights.keys())
            )
            raise UserError(
                f"the saved run trained other parameters (only saved run: {there}; only this run: {here}): freeze"
                " the same parameters as the saved run"
            )
        for name, x in self.slow.items():
            if weights[name].shape != x.shape:
                raise UserError(
                    f"the saved weights are of another model: the shape of {name} is {list(weights[name].shape)} there,"
                    f" {list(x.shape)} in this model: use the model of the run that saved them"
                )
        for name, x in self.slow.items():
            x.copy_(weights[name])
        self.update_hashes(self.slow)

    def assign(self, weights: Tensors) -> None:
        """Copy `weights` to both the slow weights φ and the fast weights θ."""
        self.load_slow(weights)
        self.island.write(self.slow, merge_local=0.0)
