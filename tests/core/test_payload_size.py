"""What a round of a real model weighs, everything included."""

import pytest
import torch

from outerloop import wire
from outerloop.config import instantiate, load
from outerloop.core.codec import UpdateCodec

TWO_BITS = ["compress.large.k=64", "compress.large.values._target_=outerloop.compress.two_bit.TwoBit"]
LLAMA = [f"model.{name}={size}" for name, size in
         {"hidden_size": 384, "intermediate_size": 1024, "layers": 6, "heads": 6, "kv_heads": 6}.items()]  # fmt: skip


@pytest.mark.parametrize("values", [[], TWO_BITS], ids=["72 signs", "64 in 2 bits"])
def test_a_lean_payload_of_ten_million_parameters_is_a_two_hundredth_of_float32(values):
    settings = load.load(["compress=topk_lean", *values, *LLAMA])
    settings.model.vocab_size = 256
    draw = torch.Generator().manual_seed(0)
    tensors = {
        name: torch.randn(p.shape, generator=draw) for name, p in instantiate.make(settings.model).named_parameters()
    }
    payload = UpdateCodec(instantiate.make(settings.compress), seed=0)
    header = wire.Header(round=100, fragment=0, samples=1000, schema=1, slow=2, peer="Qm" + "a" * 44)
    blob = wire.pack(header, {name: payload.encode(100, name, x, leads=False) for name, x in tensors.items()})
    params = sum(x.numel() for x in tensors.values())
    assert params >= 10_000_000 and 8 * len(blob) / params <= 0.160
