"""Tensors go through the kernels if every axis says that the kernels compute what it computes, and else do not."""

import pytest
import torch

from outerloop.aggregate.mean import Mean
from outerloop.aggregate.median_clip import MedianClip
from outerloop.aggregate.rda import RDA
from outerloop.aggregate.weighted import Weighted
from outerloop.compress.by_size import BySize
from outerloop.compress.cast import Cast
from outerloop.compress.uniform import Uniform
from outerloop.feedback.ef import ErrorFeedback
from outerloop.feedback.local_error import LocalError
from outerloop.feedback.loco import LoCo
from outerloop.feedback.none import NoFeedback
from outerloop.kernels.specs import aggregate_rule, residual_spec, sgd_spec, sparse_codec
from outerloop.methods.outer_optimizer import OuterOptimizer
from outerloop.methods.sign import Sign
from outerloop.schedule.every_h import EveryH
from tests.support import toy, toy_pipelines

LARGE, SMALL = torch.Size([20, 20]), torch.Size([9])


class Halved(ErrorFeedback):
    """Offers half of what the base class offers."""

    def add(self, name, delta):
        return super().add(name, delta) / 2


def in_two_groups(params):
    """SGD that moves all parameters but the first a tenth as far."""
    (_, first), *others = params
    groups = [{"params": [first]}, {"params": [x for _, x in others], "lr": 0.1}]
    return torch.optim.SGD(groups[: len(params)], lr=1.0)


def fused(**parts):
    """The names of the tensors that an outer loop of SparseLoCo with these other parts gives to the kernels."""
    compress = BySize(below=10, small=Cast(dtype="bfloat16"), large=toy_pipelines.topk("sparseloco"))
    chosen = {"compress": compress, "feedback": ErrorFeedback(beta=0.9), "aggregate": Mean()} | parts
    loop = toy.outer(toy.model(width=20), toy.alone(), **chosen)
    return set(loop.pipeline.split(loop.slow)[0])


def test_all_axes_are_described():
    assert fused() == {"0.weight", "0.bias", "1.weight", "1.bias", "2.weight"}, "all but one of 3 values"
    assert fused(compress=toy_pipelines.topk("sparseloco")) == fused() | {"2.bias"}


@pytest.mark.parametrize(
    "part",
    [
        {"feedback": LoCo(beta=0.8, reset_every=9)},
        {"feedback": Halved(beta=0.9)},
        {"aggregate": RDA()},
        {"aggregate": Weighted()},
        {"aggregate": MedianClip(of=RDA())},
        {"aggregate": MedianClip(of=MedianClip(of=Mean()))},
        {"compress": Uniform(bits=8, chunk=64)},
        {"method": Sign(lr=0.1)},
        {"method": toy.sgd(clip_norm=1.0)},
        {"method": OuterOptimizer(optimizer=lambda p: torch.optim.SGD(p, lr=1.0, weight_decay=0.1))},
        {"method": OuterOptimizer(optimizer=lambda p: torch.optim.SGD([{"params": p, "weight_decay": 0.1}], lr=1.0))},
        {"method": OuterOptimizer(optimizer=in_two_groups)},
        {"method": OuterOptimizer(optimizer=lambda p: torch.optim.AdamW(p, lr=0.1))},
        {"schedule": EveryH(sync_every=3, delay=3), "eager": True, "feedback": NoFeedback()},
    ],
    ids=lambda part: " ".join(type(x).__name__ for x in part.values()),
)
def test_one_that_is_not_described_is_called_itself(part):
    assert fused(**part) == set()


def test_eight_bits_need_chunks_of_whole_blocks():
    eight_bits = {"feedback": ErrorFeedback(beta=0.9, bits=8)}
    assert not fused(**eight_bits), "chunks of 16 values, blocks of 256"
    assert fused(compress=toy_pipelines.topk("eight_bit"), **eight_bits)


def test_what_the_descriptions_say():
    compress = BySize(below=10, small=Cast(dtype="bfloat16"), large=toy_pipelines.topk("sparseloco"))
    assert sparse_codec(compress, LARGE) is compress.large and sparse_codec(compress, SMALL) is None
    rule = aggregate_rule(MedianClip(of=Mean()))
    assert not rule.by_senders and rule.factors([1.0, 2.0, 4.0]) == [1.0, 1.0, 0.5]
    assert residual_spec(ErrorFeedback(beta=0.9)).at_launch("w") == (None, None, 0.9), "nothing is stored yet"
    local = residual_spec(LocalError(beta=0.9))
    assert local.at_launch("w") == local.at_landing("w", torch.ones(3)) == (None, None, 0.0), "no residual"
    assert local.unsent_share("w") == 0.9 and residual_spec(ErrorFeedback(beta=0.9)).unsent_share is None
    growing = residual_spec(LocalError(beta=0.5, growth=2.0)).unsent_share
    assert [growing(name) for name in ("w", "w", "v", "w")] == [0.5, 0.75, 0.5, pytest.approx(5 / 6)]
    method, slow = toy.sgd(0.7, 0.9, True), {"w": torch.ones(2)}
    method.init(slow)
    sgd = sgd_spec(method)
    step = sgd.step("w")
    assert (step.lr, step.momentum, step.nesterov) == (0.7, 0.9, True)
    assert sgd.momentum_of(slow["w"]).tolist() == [0, 0]
