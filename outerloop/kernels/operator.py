"""A torch operator with one definition and a kernel for each device that has a faster one; the dispatcher chooses.

Declared on torch.library's lower level: a call costs 6 us where `torch.library.custom_op` costs 40, and a landing makes
hundreds of calls. No gradients flow through.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

LIBRARY = torch.library.Library("outerloop", "FRAGMENT")


class Operator:
    """`outerloop::<name>`, called like its definition.

    Args:
        definition: plain torch; its annotations become the schema.
        mutates: names of the arguments that it changes in place.
    """

    def __init__(self, definition: Callable[..., Any], *, mutates: Iterable[str]) -> None:
        self.definition, self.name = definition, definition.__name__
        self.__doc__ = definition.__doc__
        LIBRARY.define(self.name + torch.library.infer_schema(definition, mutates_args=mutates))
        LIBRARY.impl(self.name, definition, "CompositeExplicitAutograd")
        self.overload = getattr(torch.ops.outerloop, self.name).default

    def __call__(self, *args: Any) -> Any:
        """What the definition, or the device's own kernel, returns."""
        return self.overload(*args)

    def kernel(self, device: str) -> Callable[[Callable], Callable]:
        """Decorates the kernel of a device type, "CPU" or "CUDA"."""

        def register(function: Callable) -> Callable:
            LIBRARY.impl(self.name, function, device)
            return function

        return register

    def fake(self, function: Callable) -> Callable:
        """Decorates the function that gives the shapes of the results, for tracing."""
        torch.library.register_fake(f"outerloop::{self.name}", function, lib=LIBRARY)
        return function


def operator(*, mutates: Iterable[str] = ()) -> Callable[[Callable], Operator]:
    """Decorates a definition: it becomes the operator of its name."""
    return lambda definition: Operator(definition, mutates=mutates)
