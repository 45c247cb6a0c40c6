"""The Triton kernels, in a process of their own: whether they run on a GPU or are interpreted is settled at import."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from packaging.version import Version

from outerloop.kernels.land import land
from outerloop.kernels.select import select
from outerloop.kernels.two_bit import two_bit_decode, two_bit_encode

if Version(pytest.importorskip("triton").__version__) < Version("3.6"):
    pytest.skip("Triton 3.5 rounds denormal numbers to zero, so its kernels are refused", allow_module_level=True)
HERE = Path(__file__).parent


def run(*command: str | Path, interpret: bool) -> subprocess.CompletedProcess[str]:
    """A Python command with Triton's interpreter on or off."""
    settings = {"TRITON_INTERPRET": str(int(interpret))}
    return subprocess.run([sys.executable, *command], env=os.environ | settings, capture_output=True, text=True)


def passes(file: str, *, interpret: bool) -> None:
    """All tests of a file beside this one."""
    done = run("-m", "pytest", HERE / file, "-n", "0", "-q", "-p", "no:cacheprovider", interpret=interpret)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]


def test_kernels_equal_the_definitions():
    """On the GPU where there is one."""
    passes("triton_cases.py", interpret=not torch.cuda.is_available())


@pytest.mark.skipif(torch.cuda.is_available(), reason="compiled in the test above")
def test_kernels_compile_without_a_gpu():
    passes("triton_ptx.py", interpret=False)


@pytest.mark.parametrize("operator", [select, land, two_bit_encode, two_bit_decode], ids=lambda op: op.name)
def test_they_are_registered_for_cuda_tensors(operator):
    importlib.import_module(f"outerloop.kernels.triton.{operator.name.removesuffix('_encode').removesuffix('_decode')}")
    assert torch._C._dispatch_has_kernel_for_dispatch_key(f"outerloop::{operator.name}", "CUDA")  # noqa: SLF001


@pytest.mark.skipif(torch.cuda.is_available(), reason="would measure")
def test_the_benchmark_says_that_it_needs_a_gpu():
    done = run(HERE.parents[1] / "scripts" / "bench_gpu.py", interpret=False)
    assert done.returncode == 2 and done.stdout + done.stderr == "bench_gpu: needs a CUDA device\n"
