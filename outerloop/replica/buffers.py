"""Handle a model's float buffers, mainly BatchNorm statistics: keep them local, or average them over all peers.

    averaged:   b ← (1/P) Σ_p b_p        b_p: buffer of peer p at launch; P: number of peers

Buffers are sent as float32. The sum is computed in float64, in peer-name order.

Buffers are averaged when a round lands. They are sent uncompressed with fragment 0, and no method, feedback or
aggregate is applied to them, because an outer step that overshoots could make a running variance negative. A peer whose
message was not included keeps its own buffers, which match its own weights. Integer buffers, and buffers that are
missing from the model's state_dict, are constants or counters and stay local.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from outerloop import wire
from outerloop.aggregate.mean import total
from outerloop.kernels.portable import divide
from outerloop.replica.sharding import plain_name
from outerloop.types import Parts, Tensors, UserError

KINDS = ("local", "averaged")
BUFFER_FRAGMENT = 0
"""The fragment whose messages contain the buffers."""


class Buffers:
    """The float buffers of one model.

    Args:
        model: the model; its buffers are read at launch, and written in place at landing.
        kind: "local" or "averaged"; the same on all peers.

    Attributes:
        mean: buffer name -> its mean over all peers at the last landing; empty if buffers stay local.
        paths: buffer name without wrappers -> its name in the model.

    Raises:
        UserError: if `kind` is neither "local" nor "averaged".
    """

    def __init__(self, model: Module, *, kind: str) -> None:
        if kind not in KINDS:
            raise UserError(f"buffers={kind} is not one of {', '.join(KINDS)}: set buffers=local")
        self.model = model
        saved = {plain_name(name) for name in model.state_dict()} if kind == "averaged" else set()
        floats = {name: b for name, b in model.named_buffers() if plain_name(name) in saved and b.is_floating_point()}
        self.paths = {plain_name(name): name for name in floats}
        self.mean = {plain_name(name): as_float32(b) for name, b in floats.items()}

    def schema(self, fragment: int) -> wire.Schema:
        """Return the names and shapes of the buffers that are sent with a fragment."""
        return {name: b.shape for name, b in self.mean.items() if fragment == BUFFER_FRAGMENT}

    def parts(self, fragment: int) -> dict[str, Parts]:
        """Return copies of the current buffers that are sent with a fragment."""
        return {name: {"value": as_float32(self.buffer(name))} for name in self.schema(fragment)}

    def buffer(self, name: str) -> Tensor:
        """Return the model's buffer with this name. The name excludes the components that wrappers add."""
        return self.model.get_buffer(self.paths[name])

    def combine(self, messages: Sequence[wire.Message]) -> Tensors:
        """Return the mean of all peers' buffers, summed in peer-name order, without changing any state.

        Raises InvalidMessage if a buffer has the wrong shape or dtype or is not finite.
        """
        names = self.schema(messages[0].header.fragment)
        return {name: mean_buffer([checked_buffer(m, name, self.mean[name]) for m in messages]) for name in names}

    @torch.no_grad()
    def land(self, mean: Tensors, *, included: bool) -> None:
        """Store the mean, and write it to the model if this peer's message was `included`."""
        for name, b in mean.items():
            self.mean[name].copy_(b)
        if included:
            self.write(mean)

    @contextmanager
    def temporary_means(self) -> Iterator[None]:
        """Replace the model's buffers by their last means inside the block; local buffers keep their values."""
        own = {name: self.buffer(name).detach().clone() for name in self.mean}
        self.write(self.mean)
        try:
            yield
        finally:
            self.write(own)

    @torch.no_grad()
    def write(self, values: Tensors) -> None:
        """Write values to the model's buffers."""
        for name, b in values.items():
            self.buffer(name).copy_(b)

    def state_dict(self) -> dict[str, Any]:
        """Return the last mean. The current buffers are saved with the model."""
        return dict(self.mean)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the mean that `state_dict` returned."""
        self.land(state, included=False)


def as_float32(buffer: Tensor) -> Tensor:
    """Return a float32 copy of a buffer, so that peers whose models have other dtypes can read it."""
    return buffer.detach().to(torch.float32, copy=True)


def checked_buffer(message: wire.Message, name: str, like: Tensor) -> Tensor:
    """Return one peer's buffer. Raises InvalidMessage unless it has the shape and dtype of `like` and is finite."""
    x = message.parts[name].get("value")
    if (
        x is None
        or len(message.parts[name]) > 1
        or (x.shape, x.dtype) != (like.shape, like.dtype)
        or not bool(x.isfinite().all())
    ):
        kind = f"{like.dtype} {tuple(like.shape)}"
        raise wire.InvalidMessage(f"payload of {message.header.peer}, buffer {name}: not a finite {kind}")
    return x


def mean_buffer(sent: list[Tensor]) -> Tensor:
    """Return the mean of several tensors. If all are equal, the mean is bitwise equal to them."""
    return divide(total([x.double() for x in sent]), len(sent)).to(sent[0].dtype)
