"""Encode values as three levels (arXiv 1605.04711), and pack five values into a byte (arXiv 1802.07389).

    x̂ = a · t,   t = sign(x) where |x| > 0.7 mean |x|, else 0,   a = mean |x| over the values with t ≠ 0

A tensor takes 1.6 bits per value plus one float32. About half of the norm is lost, so use this compressor with error
feedback. Shapes: N values, B = ceil(N / 5) bytes.
"""

import torch
from torch import Size, Tensor

from outerloop.types import CodecContext, Parts

POWERS = 3 ** torch.arange(5)  # weight of each of the five values in a byte; 3^5 = 243 of 256 codes are used


class Ternary:
    """Compressor with three levels per value.

    Args:
        threshold: values up to this multiple of the mean magnitude become 0.
    """

    linear = False  # messages cannot be summed in the network: peers must decode each one

    def __init__(self, *, threshold: float = 0.7) -> None:
        self.threshold = threshold

    def encode(self, x: Tensor, context: CodecContext) -> Parts:
        """Encode x (N values, any shape) to "code" (B,) uint8 and "scale" (1,) float32."""
        x_N = x.detach().flatten().float()
        kept_N = x_N.abs() > self.threshold * x_N.abs().mean()
        scale = x_N[kept_N].abs().mean().nan_to_num(0.0)  # 0 if nothing is kept
        trits = torch.where(kept_N, x_N.sign(), 0.0).long() + 1
        padded = torch.nn.functional.pad(trits, (0, -len(trits) % 5)).view(-1, 5)
        return {"code": (padded * POWERS.to(x.device)).sum(1).to(torch.uint8), "scale": scale.view(1)}

    def decode(self, parts: Parts, shape: Size, context: CodecContext) -> Tensor:
        """Decode to a float32 tensor of `shape`. Raises ValueError for invalid parts, which any peer may send."""
        if parts.keys() != {"code", "scale"}:
            raise ValueError(f"the parts are {list(parts)}, expected code and scale")
        code_B, scale, count = parts["code"], parts["scale"], shape.numel()
        if code_B.dtype != torch.uint8 or code_B.shape != (-(-count // 5),) or (code_B > 242).any():
            raise ValueError(f"expected {-(-count // 5)} bytes below 243, got {tuple(code_B.shape)} of {code_B.dtype}")
        if scale.dtype != torch.float32 or scale.shape != (1,) or not scale.isfinite().all():
            raise ValueError("expected one finite scale")
        trits = code_B.long().unsqueeze(1) // POWERS.to(code_B.device) % 3
        return ((trits.flatten()[:count] - 1) * scale).view(shape)
