"""The Triton kernels against the definitions; `test_triton` runs this file in a process of its own.

On CUDA tensors where there is a GPU, else on CPU tensors through Triton's interpreter (TRITON_INTERPRET=1). The
definitions always run on the CPU.
"""

import itertools

import pytest
import torch

from outerloop.kernels.eight_bit import to_eight_bit
from outerloop.kernels.land import Landing, land
from outerloop.kernels.select import Rows, Selection, select
from outerloop.kernels.triton.land import land_triton
from outerloop.kernels.triton.select import select_triton
from outerloop.kernels.triton.two_bit import two_bit_decode_triton, two_bit_encode_triton
from outerloop.kernels.two_bit import two_bit_decode, two_bit_encode

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
SMALL = [(0, 64, 3), (1, 64, 3), (2, 64, 3), (7, 64, 3), (251, 64, 3), (251, 64, 64), (251, 100, 7), (130, 256, 255)]
LARGE = [(4095, 4096, 64), (4096, 4096, 64), (4097, 4096, 64), (5003, 4096, 600), (4097, 2500, 2500)]
KINDS = ["random", "zero", "equal", "ties", "denormal", "huge", "infinite"]
if ON_GPU:
    LARGE.append((1_000_003, 64, 3))
BLOCKS = [(0, 256, 9), (1, 256, 9), (257, 256, 9), (700, 256, 9), (1300, 768, 50), (4097, 4096, 64), (5003, 2048, 40)]
LONG_CHUNK = 65537


def kinds_and_sizes(kinds: list[str]) -> list[tuple[str, tuple[int, int, int]]]:
    """All pairs on a GPU. The interpreter is slow: every kind with blocks and a ragged one, and every size once."""
    pairs = list(itertools.product(kinds, BLOCKS))
    return pairs if ON_GPU else [(kind, size) for kind, size in pairs if size == BLOCKS[3] or kind == "random"]


def values(kind: str, count: int) -> torch.Tensor:
    """(count,) float32."""
    x = torch.randn(count)
    return {
        "random": x,
        "zero": torch.zeros(count),
        "equal": torch.full((count,), -0.25),
        "ties": x.sign() * x.abs().mul(2).floor(),
        "denormal": x * 1e-40,
        "huge": (x * 1e38).clamp(-3e38, 3e38),
        "infinite": torch.where(x > 1.5, torch.inf, x),
    }[kind]


def same(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    """Bit for bit, signs of zeros too; any NaN equals any NaN."""
    ours = ours.cpu()
    assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
    if ours.is_floating_point():
        assert torch.equal(ours.isnan(), theirs.isnan())
        bits = {2: torch.int16, 4: torch.int32}[ours.element_size()]
        ours, theirs = (x.nan_to_num(nan=0.0, posinf=torch.inf, neginf=-torch.inf).view(bits) for x in (ours, theirs))
    assert torch.equal(ours, theirs)


def there(*tensors: torch.Tensor | None) -> list[torch.Tensor | None]:
    """Copies on the device of the kernels."""
    return [x if x is None else x.to(DEVICE, copy=True) for x in tensors]


def stored_as(residual: torch.Tensor | None, eight_bit: bool) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """A residual and its scales, if it has some."""
    return to_eight_bit(residual) if eight_bit else (residual, None)


def check_select(slow, fast, residual, chunk, k, eight_bit=False):
    """Same positions, same values; the metric to rounding."""
    held = stored_as(residual, eight_bit)
    expected = select.definition(slow, fast, *held, None, Selection(0.95, chunk, k))
    run = select if ON_GPU else select_triton
    found = run(*there(slow, fast, *held), None, Selection(0.95, chunk, k))
    same(found[0], expected[0])
    same(found[1], expected[1])
    torch.testing.assert_close(found[2].cpu(), expected[2], rtol=1e-12, atol=0, equal_nan=True)


@pytest.mark.parametrize("size", SMALL + LARGE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_select(size, dtype):
    count, chunk, k = size
    slow = torch.randn(count)
    check_select(slow, (slow + 0.1 * torch.randn(count)).to(dtype), 0.1 * torch.randn(count), chunk, k)


@pytest.mark.parametrize(("kind", "size"), kinds_and_sizes(KINDS[:-1]))
def test_select_with_a_residual_of_eight_bits(kind, size):
    check_select(torch.randn(size[0]), torch.randn(size[0]), values(kind, size[0]), *size[1:], eight_bit=True)


@pytest.mark.parametrize("size", [(7, 64, 3), (251, 64, 3), (251, 64, 40), (251, 64, 64), (4097, 4096, 64)])
@pytest.mark.parametrize("kind", KINDS)
def test_select_of(kind, size):
    check_select(values(kind, size[0]), None, None, *size[1:])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_select_without_a_residual(kind, dtype):
    check_select(torch.zeros(100), values(kind, 100).to(dtype), None, 64, 9)


def test_select_of_the_longest_chunk():
    check_select(torch.randn(65537), None, None, 65536, 1000)


def test_nan_is_kept():
    x = torch.randn(128)
    x[100] = torch.nan
    position, value, _ = select_triton(*there(x), None, None, None, None, Selection(0.0, 64, 2))
    assert 100 - 64 in position[2:].tolist() and value[2:].isnan().sum() == 1


def payloads(kind: str, rows: Rows, peers: int) -> list[torch.Tensor]:
    """Position and value (P, M); some of the values are zero."""
    dense = [torch.randn(rows.count) for _ in range(peers)]
    sent = [select.definition(x, None, None, None, None, Selection(0.0, rows.chunk, rows.k))[0] for x in dense]
    value = torch.stack([values(kind, rows.kept) for _ in sent])
    return [torch.stack(sent), value * (torch.rand(value.shape) > 0.1)]


def check_land(size, *, kind="random", dtype=torch.float32, residual=True, momentum=True, nesterov=True, peers=3, own=1,
               by_senders=False, eight_bit=False, clipped=False, share=0.0, late=False):  # fmt: skip
    """Same residual, momentum, slow, fast and current weights; the metric to rounding."""
    rows = Rows(*size)
    weights = [values(kind, rows.count) for _ in range(4)]
    held = stored_as(weights[2] if residual else None, eight_bit)
    weights = [weights[0], weights[1].to(dtype), *held, weights[3] if momentum else None]
    sent = payloads(kind, rows, peers)
    how = Landing(own, 0.95, rows.chunk, rows.k, by_senders, 0.7, 0.9 if momentum else 0.0, nesterov, share)
    current = values(kind, rows.count).to(dtype) if late else None
    ours, [theta] = there(*weights), there(current)
    run = land if ON_GPU else land_triton
    sent += [2 * sent[1][max(own, 0)] if clipped else None, None]
    found = run(*ours, *there(*sent), theta, how)
    expected = land.definition(*weights, *sent, current, how)
    for a, b in zip([*ours, theta], [*weights, current], strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            same(a, b)
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-12, atol=0, equal_nan=True)


@pytest.mark.parametrize("size", SMALL + LARGE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_land(size, dtype):
    check_land(size, dtype=dtype, by_senders=dtype == torch.bfloat16)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("by_senders", [False, True])
def test_land_of(kind, by_senders):
    check_land((130, 64, 20), kind=kind, by_senders=by_senders, dtype=torch.bfloat16)


@pytest.mark.parametrize(("kind", "size"), kinds_and_sizes(KINDS[:-2]))
def test_land_with_a_residual_of_eight_bits(kind, size):
    """Of finite values: what is not finite never gets this far."""
    for own, dtype in ((-1, torch.float32), (0, torch.bfloat16), (2, torch.float32)):
        check_land(size, kind=kind, dtype=dtype, own=own, eight_bit=True, momentum=own == 2)


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize(("momentum", "nesterov"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("by_senders", [False, True])
def test_land_with(residual, momentum, nesterov, by_senders):
    settings = {"residual": residual, "momentum": momentum, "nesterov": nesterov, "by_senders": by_senders}
    for peers, own in itertools.product((1, 3), (-1, 0, "last")):
        check_land((71, 64, 5), peers=peers, own=peers - 1 if own == "last" else own, **settings)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("share", "late"), [(0.7, False), (0.0, True), (0.7, True)])
def test_land_that_keeps_unsent_values_or_later_progress(share, late, dtype):
    check_land((71, 64, 5), residual=not share, dtype=dtype, by_senders=True, share=share, late=late)


@pytest.mark.parametrize("count", [0, 1, 2, 7, 251, 4095, 4096, 4097])
@pytest.mark.parametrize("group", [1, 3, 64, 5000])
def test_two_bit(count, group):
    check_two_bit(torch.randn(count)[: 32 * group + 1], group)


@pytest.mark.parametrize("kind", KINDS[:-1])
def test_two_bit_of(kind):
    check_two_bit(values(kind, 71), 7)


def check_two_bit(x, group):
    """Same bytes, same levels, same values back."""
    expected = two_bit_encode.definition(x, group)
    encode, decode = (two_bit_encode, two_bit_decode) if ON_GPU else (two_bit_encode_triton, two_bit_decode_triton)
    found = encode(*there(x), group)
    same(found[0], expected[0])
    same(found[1], expected[1])
    back = decode(*([part, part] for part in found), x.numel(), group)
    same(back, two_bit_decode.definition(*([part, part] for part in expected), x.numel(), group))


def test_longer_chunks_go_the_definition_s_way():
    check_select(torch.randn(5), None, None, LONG_CHUNK, 30000)
    check_land((5, LONG_CHUNK, 30000))


def test_the_row_taken_from_the_residual_may_differ_from_the_row_that_counts():
    for own in (0, 2, -1):
        check_land((71, 64, 5), own=own, clipped=True)


@pytest.mark.skipif(not ON_GPU, reason="needs 20 GB of GPU memory")
def test_more_than_two_to_the_31_values():
    """The last chunks of a tensor whose positions need 64 bits, alone and with the rest."""
    chunk, k, tail = 4096, 64, 2 * 4096 + 5
    slow = torch.randn(2**31 + tail, device=DEVICE)
    fast = torch.zeros_like(slow, dtype=torch.bfloat16)
    end, kept = slow[-tail:].cpu(), 2 * k + 1
    position, value, _ = select(slow, fast, None, None, None, Selection(0.0, chunk, k))
    expected = select.definition(end, None, None, None, None, Selection(0.0, chunk, k))
    same(position[-kept:], expected[0])
    same(value[-kept:], expected[1])
    how = Landing(-1, 0.0, chunk, k, by_senders=False, lr=0.7, mu=0.0, nesterov=False)
    land(slow, fast, None, None, None, position[None], value[None], None, None, None, how)
    land.definition(
        end, torch.zeros(tail), None, None, None, expected[0][None], expected[1][None], None, None, None, how
    )
    same(slow[-tail:], end)
