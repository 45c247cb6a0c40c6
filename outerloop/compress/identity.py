"""No compression: send the tensor in its own precision."""

from __future__ import annotations

from torch import Size, Tensor

from outerloop.kernels.finite import all_finite
from outerloop.types import CodecContext, Parts


class Identity:
    """Compressor that sends every value unchanged. Use it as a baseline, not on slow links."""

    linear = True

    def encode(self, x: Tensor, context: CodecContext) -> Parts:
        """Encode x (N values, any shape) to "value" (N,), in the dtype of x."""
        return {"value": x.detach().reshape(-1).clone()}

    def decode(self, parts: Parts, shape: Size, context: CodecContext) -> Tensor:
        """Decode "value" to a tensor of `shape`. Raises ValueError on a wrong count or a non-finite value."""
        return checked_dense(parts, shape)


def checked_dense(parts: Parts, shape: Size) -> Tensor:
    """Return the part "value" as a tensor of `shape`.

    Raises ValueError unless it is the only part, a vector of the right number of floats, and all of them are finite.
    """
    value = parts.get("value")
    if value is None or len(parts) != 1 or value.shape != (shape.numel(),) or not value.is_floating_point():
        raise ValueError(f"the only part must be 'value', {shape.numel()} floats in one dimension; not {list(parts)}")
    if not all_finite(value.float()):
        raise ValueError("a value is not finite")
    return value.view(shape)
