"""The random rotation: by hand, by its definition, bit for bit, and the same from the compiled loops."""

import numpy as np
import pytest
import torch

from outerloop.kernels.rotation import blocks, hadamard_rows, random_signs, rotate, signs_of

LARGEST = torch.finfo(torch.float32).max


def seeded(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def signs(count, seed):
    return signs_of(random_signs(count, seed), count)


def test_four_values_by_hand():
    """Rows of the matrix: ++++, +-+-, ++--, +--+, divided by √4."""
    x = torch.tensor([[3.0, 1.0, 0.0, 2.0]])
    assert hadamard_rows(x).tolist() == [[3.0, 0.0, 1.0, 2.0]]
    assert hadamard_rows(hadamard_rows(x)).tolist() == x.tolist()


@pytest.mark.parametrize("length", [1, 4, 16, 64, 256])
def test_it_is_its_definition_and_its_own_inverse(length):
    h = torch.tensor([[(-1.0) ** (i & j).bit_count() for j in range(length)] for i in range(length)]).double()
    x = seeded(5, length)
    assert torch.allclose(hadamard_rows(x).double(), x.double() @ h / length**0.5, atol=1e-6)
    assert torch.allclose(hadamard_rows(hadamard_rows(x)), x, atol=1e-6)


def by_hand(row):
    """One row in numpy's float32, one addition at a time, the lowest bit first."""
    y, half = [np.float32(v) / np.float32(len(row)) for v in row], 1
    while half < len(row):
        for i in range(len(row)):
            if not i & half:
                y[i], y[i | half] = y[i] + y[i | half], y[i] - y[i | half]
        half *= 2
    return [v * np.float32(len(row) ** 0.5) for v in y]


@pytest.mark.parametrize(("rows", "length"), [(1, 4), (3, 64), (70, 16)])
def test_the_bits_are_those_of_single_additions_in_order(rows, length):
    x = seeded(rows, length) * 10 ** (5 * seeded(rows, length, seed=1))
    assert torch.equal(hadamard_rows(x), torch.tensor(np.array([by_hand(row) for row in x.tolist()])))


def test_signs_are_the_bits_of_philox_and_differ_between_seeds():
    """The first words of Philox4x64-10 for the key 5, from numpy's documented generator."""
    words = np.random.Philox(key=5).random_raw(2)
    bits = [int(words[i // 64]) >> i % 64 & 1 for i in range(100)]
    assert signs(100, 5).tolist() == [1.0 - 2.0 * bit for bit in bits]
    assert abs(float(signs(10_000, 6).mean())) < 0.05 and not torch.equal(signs(100, 5), signs(100, 6))
    assert signs(0, 5).shape == (0,)


@pytest.mark.parametrize(
    ("count", "lengths"), [(0, []), (3, [1, 1, 1]), (4096, [64] * 64), (215, [64] * 3 + [16, 4, 1, 1, 1])]
)
def test_a_shorter_last_chunk_is_cut_into_powers_of_four(count, lengths):
    x = torch.arange(float(count))
    pieces = [row for block in blocks(x, 64) for row in block]
    assert [len(row) for row in pieces] == lengths
    assert torch.equal(torch.cat([x[:0], *pieces]), x)


@pytest.mark.parametrize("value", [LARGEST, -LARGEST, 1e-44])
@pytest.mark.parametrize("back", [False, True])
def test_the_ends_of_the_range_stay_finite(value, back):
    assert rotate(torch.full((64,), value), random_signs(64, 3), 64, back).isfinite().all()


@pytest.mark.parametrize("chunk", [4, 64, 4096])
@pytest.mark.parametrize("count", [0, 1, 3, 215, 4096, 70_001])
def test_the_compiled_loops_are_the_definition_bit_for_bit(count, chunk):
    """Gaussian values, values of many magnitudes with subnormal ones, and zeros of both signs."""
    wide = (seeded(count) * 10 ** (12 * seeded(count, seed=1))).clamp(-LARGEST, LARGEST)
    for x in (seeded(count), wide, wide * 1e-38, torch.zeros(count), -torch.zeros(count)):
        for back in (False, True):
            arguments = (x, random_signs(count, 2**64 - 1), chunk, back)
            assert torch.equal(rotate(*arguments).view(torch.int32), rotate.definition(*arguments).view(torch.int32))


def test_back_is_the_inverse_and_the_number_of_threads_changes_nothing():
    x, negative = seeded(300_000), random_signs(300_000, 5)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    there = rotate(x, negative, 4096, False)
    torch.set_num_threads(1)
    assert torch.equal(there, rotate(x, negative, 4096, False))
    torch.set_num_threads(before)
    assert torch.allclose(rotate(there, negative, 4096, True), x, atol=1e-5)
