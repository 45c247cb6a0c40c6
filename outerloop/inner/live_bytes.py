"""Measure the memory of tensors that are created inside `with LiveBytes()`: the bytes that exist now, and the peak."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of tensors created in this context, from their creation until their memory is freed.

    Memory that an operation uses only while it runs is not counted.

    Attributes:
        now: bytes of the tensors that exist now.
        peak: the largest value of `now`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run one operation. A result that shares no storage with an argument is new.

        Storages are identified by their objects (_cdata), because fake tensors have no memory address.
        """
        known = {x.untyped_storage()._cdata for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
        result = func(*args, **(kwargs or {}))
        for x in tree_leaves(result):
            if isinstance(x, Tensor) and (storage := x.untyped_storage())._cdata not in known:
                known.add(storage._cdata)
                self.add(storage.nbytes())
                weakref.finalize(storage, self.add, -storage.nbytes())
        return result

    def add(self, size: int) -> None:
        """Count `size` more bytes; fewer if it is negative."""
        self.now += size
        self.peak = max(self.peak, self.now)
