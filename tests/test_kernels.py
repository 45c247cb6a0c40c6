"""The reference arithmetic against definitions written another way."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outerloop.kernels import reference

COUNTS = [0, 1, 2, 7, 8, 9, 4095, 4096, 4097]


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("bits", [1, 2, 7, 8, 12, 16])
def test_bits_come_back(count, bits):
    value = torch.randint(0, 2**bits, (count,))
    packed = reference.pack_bits(value, bits)
    assert packed.numel() == -(-count * bits // 8)
    assert torch.equal(reference.unpack_bits(packed, bits, count).long(), value)


def test_bit_layout_is_little_endian():
    """0xABC then 0x123 in 12 bits each: BC, 3A, 12."""
    assert reference.pack_bits(torch.tensor([0xABC, 0x123]), 12).tolist() == [0xBC, 0x3A, 0x12]


def test_unpack_refuses_a_wrong_length():
    with pytest.raises(ValueError, match="cannot hold"):
        reference.unpack_bits(torch.zeros(3, dtype=torch.uint8), 12, 3)


def topk_by_sorting(row, k):
    """The k largest magnitudes, ties to the lowest position, by Python's own sort."""
    order = sorted(range(len(row)), key=lambda i: (-abs(row[i]), i))
    return sorted(order[:k])


@given(st.lists(st.sampled_from([0.0, -1.0, 1.0, 2.0, -2.0, 1e-40, 3e38]), min_size=1, max_size=40), st.data())
def test_topk_equals_sorting(row, data):
    k = data.draw(st.integers(1, len(row)))
    picked = reference.topk_rows(torch.tensor([row]), k)
    assert picked.tolist() == [topk_by_sorting(torch.tensor(row).tolist(), k)]


def test_mean_split_by_hand():
    """|x| = 1 2 3 10, mean 4: low level (1+2+3)/3 = 2, high level 10."""
    code, level = reference.mean_split(torch.tensor([[1.0, -2.0, 3.0, -10.0]]))
    assert code.tolist() == [[0, 2, 0, 3]] and level.tolist() == [[2.0, 10.0]]
    assert reference.mean_split_decode(code, level).tolist() == [[2.0, -2.0, 2.0, -10.0]]


def test_mean_split_of_equal_values_is_exact():
    code, level = reference.mean_split(torch.full((1, 5), -0.25))
    assert reference.mean_split_decode(code, level).tolist() == [[-0.25] * 5]


def test_mean_split_of_huge_values_stays_finite():
    code, level = reference.mean_split(torch.tensor([[3.4e38, -3.4e38, 3.4e38]]))
    assert reference.mean_split_decode(code, level).isfinite().all()
