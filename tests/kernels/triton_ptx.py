"""What the Triton kernels compile to for an H100 or H200, without one; `test_triton` runs this file on its own.

The interpreter knows neither types nor rounding of a GPU: here everything has to pass the compiler, and no product may
be fused with a sum, no quotient approximated.
"""

import pytest
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from outerloop.kernels.eight_bit import to_eight_bit
from outerloop.kernels.land import Landing
from outerloop.kernels.select import Selection
from outerloop.kernels.triton.land import land_triton
from outerloop.kernels.triton.select import select_triton
from outerloop.kernels.triton.two_bit import two_bit_decode_triton, two_bit_encode_triton


class Absent:
    """As much of a GPU as the compiler asks for."""

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0


driver.set_active(Absent())


@pytest.fixture
def compiled(monkeypatch):
    """Every kernel that is launched, compiled; nothing runs."""
    made = []

    def compile_only(kernel, grid):
        return lambda *args, **options: made.append(kernel.run(*args, grid=grid, warmup=True, **options))

    monkeypatch.setattr(JITFunction, "__getitem__", compile_only)
    return made


def check(compiled) -> None:
    """Nothing fused, here or by the assembler; nothing approximated; no denormal flushed."""
    assert compiled
    for kernel in compiled:
        assert not kernel.metadata.enable_fp_fusion
        assert not [word for word in ("fma.", "div.full", "div.approx", ".ftz") if word in kernel.asm["ptx"]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("count", [3 * 4096, 4097])
def test_select(compiled, count, dtype):
    x = torch.zeros(count)
    select_triton(x, x.to(dtype), x, None, None, Selection(0.9, 4096, 64))
    select_triton(x, x.to(dtype), *to_eight_bit(x), None, Selection(0.9, 4096, 64))
    select_triton(x, None, None, None, None, Selection(0.9, 4096, 1))
    check(compiled)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("peers", [1, 3])
def test_land(compiled, peers, dtype):
    x = torch.zeros(4097)
    sent = torch.zeros(peers, 65, dtype=torch.int32), torch.zeros(peers, 65)
    plain, none, eight_bit = (x, None), (None, None), to_eight_bit(x)
    for held, momentum, by_senders in ((plain, x, True), (plain, None, False), (none, x, False), (eight_bit, x, True)):
        how = Landing(0, 0.9, 4096, 64, by_senders, lr=0.7, mu=0.9, nesterov=True)
        land_triton(x, x.to(dtype), *held, momentum, *sent, None, None, None, how)
    check(compiled)
    assert all("bar.sync" in kernel.asm["ptx"] for kernel in compiled)


@pytest.mark.parametrize("group", [1, 64, 5000])
def test_two_bit(compiled, group):
    coded = two_bit_encode_triton(torch.zeros(6000), group)
    two_bit_decode_triton(*([part] for part in coded), 6000, group)
    check(compiled)
