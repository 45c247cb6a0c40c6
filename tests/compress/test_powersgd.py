"""PowerSGD's warm start: state of a compressor that moves at landings alone, and that nobody needs to decode."""

import copy

import pytest
import torch

from outerloop.compress.by_size import BySize
from outerloop.compress.cast import Cast
from outerloop.compress.dct import Dct
from outerloop.compress.identity import Identity
from outerloop.compress.powersgd import PowerSgd
from outerloop.compress.rotated import Rotated
from outerloop.feedback.ef import ErrorFeedback
from outerloop.types import CodecContext, UserError
from tests.support import toy
from tests.support.late_peer import LATE, WithoutLate

SHAPE = torch.Size([40, 30])


def codec(rank=1, warm_start=True):
    return PowerSgd(rank=rank, small=Identity(), warm_start=warm_start)


def at(number, name="w"):
    return CodecContext(round=number, seed=number, name=name)


def matrix(seed=0, decay=0.8):
    """Singular values 1, decay, decay², ..."""
    draw = torch.Generator().manual_seed(seed)
    left, right = (torch.linalg.qr(torch.randn(n, 30, generator=draw)).Q for n in SHAPE)
    return left @ torch.diag(decay ** torch.arange(30)) @ right.T


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[part], b[part]) for part in a)


def round_of(compress, x, number, name="w"):
    """One round that lands: the error of what was sent, relative to the best one of this rank."""
    parts = compress.encode(x, at(number, name))
    sent = compress.decode(parts, x.shape, at(number, name))
    compress.landed(parts, x.shape, at(number, name))
    best = torch.linalg.svdvals(x)[compress.rank :].norm()
    return float((x - sent).norm() / best)


def test_encode_changes_no_state():
    warm, x = codec(), matrix()
    for number in range(3):
        first = warm.encode(x, at(number))
        assert same(first, warm.encode(x, at(number)))
        assert same(first, codec(warm_start=False).encode(x, at(number))), "nothing has landed: Q₀ is drawn"


def test_the_next_round_starts_from_the_last_factor_by_hand():
    """Rank 1: P is M q / |M q|, with the q that landed."""
    warm, x, y = codec(), matrix(0), matrix(1)
    parts = warm.encode(x, at(0))
    warm.landed(parts, x.shape, at(0))
    p = (y.double() @ parts["q"].double()).view(-1)
    expected = (p / p.norm()).bfloat16()
    sent = warm.encode(y, at(1))["p"].view(-1)
    assert torch.equal(sent.abs(), expected.abs()) and abs(int((sent.sign() * expected.sign()).sum())) == 40


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_over_rounds_it_reaches_the_best_factors_and_draws_do_not(rank):
    """Of a matrix whose singular values fall by a tenth: the error is within 1 % of the best one of this rank."""
    warm, cold, x = codec(rank), codec(rank, warm_start=False), matrix(decay=0.9)
    errors = [(round_of(warm, x, number), round_of(cold, x, number)) for number in range(40)]
    assert errors[-1][0] < 1.01 < min(error for _, error in errors)


def test_every_tensor_has_its_own_state():
    warm, x = codec(), matrix()
    round_of(warm, x, 0, "a")
    assert warm.state_dict().keys() == {"a"}
    assert same(warm.encode(x, at(1, "b")), codec(warm_start=False).encode(x, at(1, "b")))


@pytest.mark.parametrize("landed", [torch.zeros(SHAPE), torch.ones(40, 20)], ids=["zeros", "another shape"])
def test_what_is_no_start_is_not_used(landed):
    """Zeros span nothing; a shard may have another size after a restart."""
    warm, x = codec(), matrix()
    round_of(warm, landed, 0)
    assert same(warm.encode(x, at(1)), codec(warm_start=False).encode(x, at(1)))


def test_nobody_needs_the_state_to_decode():
    warm, x = codec(), matrix()
    for number in range(3):
        round_of(warm, x, number)
    parts = warm.encode(x, at(3))
    assert torch.equal(warm.decode(parts, SHAPE, at(3)), codec().decode(parts, SHAPE, at(3)))


def test_without_warm_start_there_is_no_state():
    cold = codec(warm_start=False)
    round_of(cold, matrix(), 0)
    assert cold.state_dict() == {}


def test_the_state_is_passed_on_behind_a_choice_by_size():
    chosen = BySize(below=100, small=Cast(dtype="bfloat16"), large=codec())
    for x, name in ((matrix(), "w"), (torch.ones(9), "small")):
        chosen.landed(chosen.encode(x, at(0, name)), x.shape, at(0, name))
    state = copy.deepcopy(chosen.state_dict())
    assert state.keys() == {"large"} and state["large"].keys() == {"w"}
    other = BySize(below=100, small=Cast(dtype="bfloat16"), large=codec())
    other.load_state_dict(state)
    assert same(other.encode(matrix(1), at(1)), chosen.encode(matrix(1), at(1)))
    other.load_state_dict({})


def parts():
    return {"compress": codec(), "feedback": ErrorFeedback(beta=1.0)}


def test_a_run_that_is_resumed_goes_on_from_the_saved_factors():
    whole, half, resumed = toy.restarted(parts, steps=12, stop_at=7)
    for (_, loop), (_, other) in zip(whole, resumed, strict=True):
        assert loop["choosing"].keys() == {"0.weight", "2.weight"}
        assert all(torch.equal(q, other["choosing"][name]) for name, q in loop["choosing"].items())
    assert any(not torch.equal(q, half[0][1]["choosing"][name]) for name, q in whole[0][1]["choosing"].items())


def test_a_round_without_this_peer_leaves_the_state_as_it_was():
    def work(exchange):
        net = toy.model()
        loop = toy.outer(net, WithoutLate(exchange, {1}), h=1, **parts())
        states = []
        for step in range(3):
            toy.inner_step(net, torch.optim.SGD(net.parameters(), lr=0.1), exchange.rank, step)
            loop.after_inner_step(1)
            states.append(loop.codec.compress.state_dict()["0.weight"])
        return exchange.peer, torch.equal(states[0], states[1]), torch.equal(states[1], states[2])

    for peer, kept, kept_later in toy.run_workers(2, work):
        assert kept == (peer == LATE) and not kept_later


@pytest.mark.parametrize("wrap", [lambda of: Dct(chunk=4, of=of), lambda of: Rotated(chunk=16, of=of)])
def test_a_warm_start_inside_a_transform_is_refused(wrap):
    wrap(codec(warm_start=False))
    with pytest.raises(UserError, match="warm_start=true has no effect inside"):
        wrap(BySize(below=9, small=Identity(), large=codec()))
