"""The codes of kept positions: there and back, one byte string for one set of positions, and nothing else accepted."""

import math
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outerloop.compress.identity import Identity
from outerloop.compress.index.elias_fano import EliasFano
from outerloop.compress.index.fixed import Fixed
from outerloop.compress.index.rice import Rice
from outerloop.compress.topk import TopK
from outerloop.kernels import elias_fano, positions, rice, threads
from outerloop.kernels.select import Rows
from outerloop.types import CodecContext

CODES = [Rice(), EliasFano(), Fixed()]
OPS = [rice.rice_encode, rice.rice_decode, elias_fano.elias_fano_encode, elias_fano.elias_fano_decode]
COUNTS = [0, 1, 2, 7, 97, 4095, 4096, 4097, 12289]
CHUNKS = [2, 3, 8, 64, 97, 1000, 4096, 65536]
each_code = pytest.mark.parametrize("code", CODES, ids=lambda code: type(code).__name__)


def drawn(rows, seed, place="anywhere"):
    """Valid positions: spread at random, or at the left or right end of each chunk."""
    draw = torch.Generator().manual_seed(seed)
    whole = [(rows.chunk, rows.k)] * rows.whole
    kept = [torch.zeros(0, dtype=torch.int64)]
    for length, k in [*whole, (rows.rest, rows.kept_of_rest)]:
        spread = torch.randperm(length, generator=draw)[:k].sort().values
        kept.append({"anywhere": spread, "left": torch.arange(k), "right": torch.arange(length - k, length)}[place])
    return torch.cat(kept).int()


@st.composite
def some_rows(draw):
    """Any geometry that TopK allows, more often at its ends."""
    chunk = draw(st.sampled_from(CHUNKS))
    k = draw(st.one_of(st.sampled_from([1, 2, max(1, chunk // 64), chunk - 1, chunk]), st.integers(1, chunk)))
    return Rows(draw(st.sampled_from(COUNTS)), chunk, k)


places = st.sampled_from(["anywhere", "left", "right"])
seeds = st.integers(0, 2**31)


def in_torch(op, *arguments):
    """What the definition says, without the loops of the CPU."""
    return op.definition(*arguments)


@pytest.mark.long
@each_code
@settings(max_examples=100, deadline=None)
@given(some_rows(), places, seeds)
def test_positions_come_back(code, rows, place, seed):
    position = drawn(rows, seed, place)
    byte = code.encode(position, rows)
    back = code.decode([byte], rows)[0]
    assert byte.dtype == torch.uint8 and byte.dim() == 1 and back.dtype == torch.int32
    assert torch.equal(back, position) and torch.equal(code.encode(back, rows), byte)


@pytest.mark.long
@settings(max_examples=100, deadline=None)
@given(some_rows(), places, seeds)
def test_loops_equal_the_definition_byte_for_byte(rows, place, seed):
    position, shape = drawn(rows, seed, place), (rows.count, rows.chunk, rows.k)
    for encode, decode in (OPS[:2], OPS[2:]):
        byte = encode(position, *shape)
        assert torch.equal(byte, in_torch(encode, position, *shape))
        back, good = in_torch(decode, [byte], *shape)
        assert good and torch.equal(back[0], position)


def broken(byte, kind, seed):
    """A flipped bit, a byte more in the middle, a cut, more bytes, or nothing but noise."""
    draw = torch.Generator().manual_seed(seed)
    noise = torch.randint(256, (len(byte) + 1,), dtype=torch.uint8, generator=draw)
    at = int(torch.randint(len(byte) + 1, (1,), generator=draw))
    byte = torch.cat([byte, noise[:1]])
    return {
        "bit": torch.cat([byte[:at], byte[at : at + 1] ^ 2 ** (noise[-1:] % 8), byte[at + 1 : -1]]),
        "moved": torch.cat([byte[:at], noise[:1], byte[at:-2]]),
        "cut": byte[:at],
        "more": byte,
        "noise": noise[:-1],
    }[kind]


@pytest.mark.long
@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from(CODES),
    some_rows(),
    places,
    st.sampled_from(["bit", "moved", "cut", "more", "noise"]),
    seeds,
)
def test_broken_bytes_are_refused_or_are_a_code(code, rows, place, kind, seed):
    """What is accepted is valid positions, and nothing else has these bytes; the definition agrees on all."""
    byte = broken(code.encode(drawn(rows, seed, place), rows), kind, seed)
    try:
        back = code.decode([byte], rows)[0]
    except ValueError:
        back = None
    else:
        assert positions.are_valid(back, rows) and torch.equal(code.encode(back, rows), byte)
    if not isinstance(code, Fixed):
        decode = OPS[1] if isinstance(code, Rice) else OPS[3]
        good = in_torch(decode, [byte], rows.count, rows.chunk, rows.k)[1]
        assert bool(good) == (back is not None)


@each_code
@pytest.mark.parametrize("rows", [Rows(20000, 512, 8), Rows(4097, 4096, 4096), Rows(9000, 1000, 333)], ids=str)
def test_every_flipped_bit_shows_or_gives_other_positions(code, rows):
    byte, position = code.encode(drawn(rows, 1), rows), drawn(rows, 1)
    for at in torch.randint(8 * len(byte), (200,)).tolist():
        other = byte.clone()
        other[at // 8] ^= 1 << at % 8
        try:
            back = code.decode([other], rows)[0]
        except ValueError:
            continue
        assert not torch.equal(back, position) and torch.equal(code.encode(back, rows), other)


@each_code
def test_as_many_byte_strings_are_accepted_as_there_are_sets_of_positions(code):
    """Chunk 4, k 2: every byte, alone or after the size of a Rice lane."""
    rows, accepted = Rows(4, 4, 2), 0
    for front in ([], [1, 0]):
        for value in range(256):
            byte = torch.tensor([*front, value], dtype=torch.uint8)
            try:
                accepted += torch.equal(code.encode(code.decode([byte], rows)[0], rows), byte)
            except ValueError:
                continue
    assert accepted == math.comb(4, 2)


def test_streams_by_hand():
    """Chunk 8, k 2, 11 values: 1 and 6 of the first chunk, 2 of the ragged one, which keeps one.

    Rice: r = 6/9 is above .618, its square not, so b = 1. Gaps 1, 4, 2 are 1|1, 001|0, 01|0: 11001001 0, and 2 bytes.
    Elias-Fano: l = 2. Low bits 10 and 01, then 1 and 01: 1001101. Ragged: low bits 01, then 1: 011.
    Fixed: 100 011 010.
    """
    position, rows = torch.tensor([1, 6, 2], dtype=torch.int32), Rows(11, 8, 2)
    assert Rice().encode(position, rows).tolist() == [2, 0, 0b10010011, 0]
    assert EliasFano().encode(position, rows).tolist() == [0b1011001, 0b110]
    assert Fixed().encode(position, rows).tolist() == [0b10110001, 0]


@pytest.mark.parametrize("k", [4, 8, 16, 32, 45, 64, 91, 128, 181, 256, 512, 1024, 2048])
def test_rice_is_within_3_percent_of_the_bound(k):
    """Everything included, on random positions; the bound is log2 C(4096, k) / k: 7.36 at k 64, 6.38 at k 128."""
    rows = Rows(4096 * max(256, 16384 // k), 4096, k)
    bits = 8 * len(Rice().encode(torch.rand(rows.chunks, 4096).topk(k).indices.sort().values.int().view(-1), rows))
    bound = (math.lgamma(4097) - math.lgamma(k + 1) - math.lgamma(4097 - k)) / math.log(2)
    assert bits / rows.kept <= 1.03 * bound / k


def test_sizes_of_the_others():
    """64 of 4096: Elias-Fano 8 bits, fixed 12."""
    rows = Rows(40960, 4096, 64)
    assert len(EliasFano().encode(drawn(rows, 0), rows)) == rows.kept
    assert len(Fixed().encode(drawn(rows, 0), rows)) == 1.5 * rows.kept


@pytest.mark.parametrize("chunk", [2, 64, 1000, 4096, 65536])
def test_the_worst_lane_has_a_size(chunk):
    """No lane outgrows its u16, and no positions the most bytes that are ever looked at."""
    for k in {1, 2, 3, *range(1, chunk + 1, max(1, chunk // 300)), chunk}:
        lane = Rows(chunk * rice.lane_rows(Rows(0, chunk, k)), chunk, k)
        assert rice.rice_max_bytes(lane) - 2 < 2**16
    rows = Rows(3 * chunk + 1, chunk, max(1, chunk // 7))
    assert all(len(Rice().encode(drawn(rows, 0, p), rows)) <= rice.rice_max_bytes(rows) for p in ("left", "right"))


@pytest.mark.parametrize("rows", [Rows(300000, 512, 8), Rows(99991, 64, 64), Rows(12289, 4096, 1)], ids=str)
def test_threads_change_nothing(rows, monkeypatch):
    monkeypatch.setattr(threads, "GRAIN", 1)
    position = drawn(rows, 3)
    for code in CODES:
        byte = [code.encode(position, rows) for n in (1, 2, 3) if torch.set_num_threads(n) is None]
        assert torch.equal(byte[0], byte[1]) and torch.equal(byte[0], byte[2])
        assert torch.equal(code.decode([byte[0]], rows)[0], position)
        for at in (0, len(byte[0]) // 2, -1):
            byte[0][at] ^= 255
        with pytest.raises(ValueError, match="not a valid code"):
            code.decode([byte[0]], rows)[0]


@each_code
@pytest.mark.parametrize("bad", [[5, 5, 0], [7, 3, 0], [1, 8, 0], [-1, 3, 0], [1, 2, 3], [-(2**31), 2**31 - 1, 0]])
def test_positions_that_no_selection_gives_are_refused(code, bad):
    """Chunk 8, k 2, 11 values, so the last one is of a row of 3."""
    position, rows = torch.tensor(bad, dtype=torch.int32), Rows(11, 8, 2)
    with pytest.raises(ValueError, match="ascend"):
        code.encode(position, rows)
    for encode in (OPS[0], OPS[2]):
        with pytest.raises(ValueError, match="ascend"):
            in_torch(encode, position, rows.count, rows.chunk, rows.k)


@each_code
def test_other_dtypes_and_shapes_are_refused(code):
    rows = Rows(640, 64, 4)
    byte = code.encode(drawn(rows, 0), rows)
    for other in (byte.float(), byte.int(), byte.view(1, -1), byte[0]):
        with pytest.raises(ValueError, match="expected uint8"):
            code.decode([other], rows)[0]


@pytest.mark.parametrize("rows", [Rows(0, 8, 2), Rows(11, 8, 2), Rows(5000, 512, 8)], ids=str)
def test_ops_are_declared_as_torch_wants_them(rows):
    shape = rows.count, rows.chunk, rows.k
    for encode, decode in (OPS[:2], OPS[2:]):
        torch.library.opcheck(encode.overload, (drawn(rows, 0), *shape))
        torch.library.opcheck(decode.overload, ([encode(drawn(rows, seed), *shape) for seed in (0, 1)], *shape))


@each_code
def test_topk_with_any_code_keeps_the_same(code):
    x, now = torch.randn(3, 1411), CodecContext(round=0, seed=0)
    codec = TopK(chunk=512, k=16, values=Identity(), index=code)
    plain = TopK(chunk=512, k=16, values=Identity(), index=Fixed())
    assert torch.equal(
        codec.decode(codec.encode(x, now), x.shape, now), plain.decode(plain.encode(x, now), x.shape, now)
    )


WITHOUT = """
import sys
sys.modules["numba"] = None
import torch
from outerloop.compress.index.rice import Rice
from outerloop.kernels.select import Rows
byte = Rice().encode(torch.tensor([1, 6, 2], dtype=torch.int32), Rows(11, 8, 2))
print(byte.tolist(), Rice().decode([byte], Rows(11, 8, 2))[0].tolist())
"""


@pytest.mark.long
def test_without_numba_it_is_the_same_and_said():
    run = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[2, 0, 147, 0] [1, 6, 2]" and "plain torch" in run.stderr
