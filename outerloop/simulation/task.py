"""Describe the task of a simulation: the user's functions for the model, each worker's batches and the loss."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.parameter import Parameter
from torch.optim import Optimizer

from outerloop.replica.island import trainable_parameters
from outerloop.state.part_states import on_device
from outerloop.types import UserError

MakeOptimizer = Callable[[list[Parameter]], Optimizer]


@dataclass(frozen=True)
class Task:
    """The arguments of `simulate` that define what is trained."""

    make_model: Callable[[], Module]
    batches: Callable[[int], Iterable[Any]]
    loss: Callable[[Module, Any], Tensor]
    validation: list[Any] | None
    optimizer: MakeOptimizer | None

    def create_model(self) -> Module:
        """Return a new model. Raises UserError if the user's function returns another object."""
        model = self.make_model()
        if not isinstance(model, Module):
            raise UserError(
                f"make_model returned an object of type {type(model).__name__}, not a torch.nn.Module: return the model"
                " that the function creates"
            )
        return model

    def mean_loss(self, model: Module, batch: Any) -> Tensor:
        """Return the mean loss over a batch. Raises UserError if the user's function returns no scalar tensor."""
        loss = self.loss(model, batch)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            kind = f"of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"of type {type(loss).__name__}"
            raise UserError(
                f"loss returned a value {kind}, but must return a scalar tensor: return the mean over the batch,"
                " without .item()"
            )
        return loss

    def names(self) -> dict[str, str]:
        """Return the dotted path of each function. Reports compare these paths to find runs of the same task."""
        functions: dict[str, Callable[..., Any]] = {
            "model": self.make_model,
            "batches": self.batches,
            "loss": self.loss,
        }
        return {key: dotted_path(function) for key, function in functions.items()}


def dotted_path(function: Callable[..., Any]) -> str:
    """Return the dotted path (module.name) of a function, or of the class of any other callable."""
    named: Any = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"


def refuse_shared(model: Module, others: Iterable[Module]) -> None:
    """Raise UserError if a model shares a trainable parameter with the model of another worker."""
    taken = {p.data_ptr() for other in others for p in trainable_parameters(other).values()}
    for name, p in trainable_parameters(model).items():
        if p.numel() and p.data_ptr() in taken:
            raise UserError(
                f"make_model returned a model that shares {name} with another worker: create a new model in each call"
            )


class Batches:
    """An endless iterator over one worker's batches, moved to the model's device. Restarts after the last batch.

    `held_out`: number of batches that each restart skips: 1 after `hold_out`, otherwise 0.

    Args:
        batches: batches of this worker.
        worker: index of this worker, for error messages.
        device: device of the model.
    """

    def __init__(self, batches: Iterable[Any], *, worker: int, device: torch.device) -> None:
        self.batches, self.worker, self.device = batches, worker, device
        self.remaining: Iterator[Any] = iter(batches)
        self.held_out = 0

    def hold_out(self) -> Any:
        """Return the first batch, which `next` then never returns. Call this before `next`.

        A loader that shuffles begins each iteration with another batch, so its held-out samples do return.
        """
        batch = self.next()
        self.held_out = 1
        return batch

    def next(self) -> Any:
        """Return the next batch. Raises UserError if all batches are used up and they cannot be iterated again."""
        try:
            batch = next(self.remaining)
        except StopIteration:
            self.remaining = islice(self.batches, self.held_out, None)
            batch = next(self.remaining, None)
        if batch is None:
            raise UserError(
                f"batches({self.worker}) has no more batches: return a list or a DataLoader, which can be iterated"
                " again, or a generator that does not end; without validation=, return at least two batches, because"
                " the first one is held out"
            )
        return self.to_device(batch)

    def to_device(self, batch: Any) -> Any:
        """Return the batch with its tensors moved to the device of the model."""
        return on_device(batch, self.device)


def count_samples(batch: Any) -> int:
    """Return the length of the first tensor in a batch. Raises UserError if there is no such tensor, or if it is empty.

    A scalar has no length.
    """
    first = next(tensors_in(batch), None)
    if first is None or first.dim() == 0:
        raise UserError(
            f"a batch of type {type(batch).__name__} has no tensor whose first dimension counts samples: return a"
            " tensor, or a tuple, list or dictionary of tensors"
        )
    if len(first) == 0:
        raise UserError(f"a batch of type {type(batch).__name__} has 0 samples: leave out empty batches")
    return len(first)


def tensors_in(batch: Any) -> Iterator[Tensor]:
    """Yield the tensors of a batch, in order."""
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, dict | list | tuple):
        members = batch.values() if isinstance(batch, dict) else batch
        yield from chain.from_iterable(map(tensors_in, members))
