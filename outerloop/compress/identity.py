"""No compression: the tensor itself, in its own precision."""

from __future__ import annotations

from torch import Size, Tensor

from outerloop.kernels.finite import all_finite
from outerloop.types import CodecContext, Parts


class Identity:
    """Sends every value as it is (float32: 32 bits a value). The baseline of every comparison; not for slow links."""

    linear = True

    def encode(self, x: Tensor, moment: CodecContext) -> Parts:
        """(any shape) -> "value" (N,) of x's dtype."""
        return {"value": x.detach().reshape(-1).clone()}

    def decode(self, parts: Parts, shape: Size, moment: CodecContext) -> Tensor:
        """ "value" (N,) -> tensor of `shape`. Raises ValueError on a wrong count or a value that is not finite."""
        return checked_dense(parts, shape)


def checked_dense(parts: Parts, shape: Size) -> Tensor:
    """The one part "value" as a tensor of `shape`, finite in float32 whatever it is in, or ValueError."""
    value = parts.get("value")
    if value is None or len(parts) != 1 or value.numel() != shape.numel() or not value.is_floating_point():
        raise ValueError(f"expected one float part 'value' of {shape.numel()} values, got {sorted(parts)}")
    if not all_finite(value.float()):
        raise ValueError("a value is not finite")
    return value.view(shape)
