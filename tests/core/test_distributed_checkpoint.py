"""torch.distributed.checkpoint with the outer loop as one of the things saved: all that evolves comes back."""

import copy

import pytest
import torch
from torch.distributed import checkpoint as dcp

from outerloop.compress.bandwidth_topk import AdjustableTopK, BandwidthTopK
from outerloop.compress.identity import Identity
from outerloop.compress.index.rice import Rice
from outerloop.compress.scalecom import ScaleCom
from outerloop.compress.topk import TopK
from outerloop.compress.two_bit import TwoBit
from outerloop.compress.uniform import Uniform
from outerloop.feedback.ef import ErrorFeedback
from outerloop.feedback.loco import LoCo
from outerloop.methods.outer_optimizer import OuterOptimizer
from outerloop.schedule.adaptive import Adaptive
from outerloop.schedule.every_h import EveryH
from outerloop.schedule.streaming import Streaming
from tests.support import toy


def sparse():
    return TopK(chunk=16, k=4, values=TwoBit(chunk=None), index=Rice())


def adam(params):
    return torch.optim.AdamW(params, lr=0.1)


CASES = {
    "sparseloco": lambda: {"compress": sparse(), "feedback": ErrorFeedback(beta=0.95)},
    "sparseloco, 8 bits": lambda: {"compress": sparse(), "feedback": ErrorFeedback(beta=0.95, bits=8)},
    "loco": lambda: {
        "compress": Uniform(bits=4, chunk=None),
        "feedback": LoCo(beta=0.8, reset_every=3),
        "method": toy.sgd(0.7, 0.9, True),
    },
    "localsgd": dict,
    "momentum": lambda: {"method": toy.sgd(0.7, 0.9, True)},
    "outer Adam": lambda: {"method": OuterOptimizer(optimizer=adam, lr_factor=lambda round: 1 / (1 + round))},
    "agreed words": lambda: {
        "compress": ScaleCom(chunk=16, k=4, values=Identity()),
        "feedback": ErrorFeedback(beta=1.0),
    },
    "chosen k": lambda: {
        "compress": BandwidthTopK(
            utilization=0.9,
            below=8,
            small=Identity(),
            large=AdjustableTopK(chunk=16, k_min=2, k_max=8, values=Identity(), index=Rice()),
        ),
        "feedback": ErrorFeedback(beta=1.0),
    },
    "adaptive": lambda: {"schedule": Adaptive(sync_every=3, sync_min=1, sync_max=9, low=0.2, high=0.3)},
    "in flight": lambda: {"schedule": EveryH(sync_every=3, delay=2), "merge_local": "carry"},
    "streaming": lambda: {
        "schedule": Streaming(sync_every=4, fragments=2, delay=1),
        "compress": sparse(),
        "feedback": ErrorFeedback(beta=0.95),
    },
}


def save_dcp(loop, folder):
    dcp.save({"outer": loop}, checkpoint_id=folder, no_dist=True)


def load_dcp(loop, folder):
    dcp.load({"outer": loop}, checkpoint_id=folder, no_dist=True)


def save_file(loop, folder):
    torch.save(loop.state_dict(), folder)


def save_as_it_was(loop, folder):
    """Before parts were tuples of one."""
    torch.save(loop.evolved(), folder)


def load_file(loop, folder):
    loop.load_state_dict(torch.load(folder, weights_only=True))


WAYS = {"dcp": (save_dcp, load_dcp), "file": (save_file, load_file), "older file": (save_as_it_was, load_file)}


def trained(parts, steps, *, begin=None, end=None):
    """Two workers in these inner steps: the states of each one's model and loop.

    `begin`, `end`: what is done with loop and rank before and after; what `begin` returns are the model's weights.
    """

    def work(exchange):
        net = toy.model()
        loop = toy.outer(net, exchange, **{"h": 3} | parts())
        if begin:
            net.load_state_dict(begin(loop, exchange.rank))
        inner = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in steps:
            toy.inner_step(net, inner, exchange.rank, step)
            loop.after_inner_step(1)
        if end:
            end(loop, exchange.rank)
        return copy.deepcopy([net.state_dict(), loop.evolved()])

    return toy.run_workers(2, work)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("way", WAYS)
def test_a_new_outer_loop_goes_on_bit_for_bit(case, way, tmp_path):
    """Seven steps, saved, loaded into a new outer loop; then seven more, as if nothing had been in between."""
    parts, (save, load) = CASES[case], WAYS[way]
    whole = trained(parts, range(14))
    half = trained(parts, range(7), end=lambda loop, rank: save(loop, tmp_path / str(rank)))

    def begin(loop, rank):
        load(loop, tmp_path / str(rank))
        assert_same(loop.evolved(), half[rank][1])
        return half[rank][0]

    for one, other in zip(whole, trained(parts, range(7, 14), begin=begin), strict=True):
        assert_same(one, other)


def assert_same(a, b):
    """Equal trees of tensors and plain values."""
    if isinstance(a, torch.Tensor):
        assert torch.equal(a, b)
    elif isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_same(a[key], b[key])
    elif isinstance(a, list | tuple):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_same(x, y)
    else:
        assert a == b


def test_there_is_something_to_lose():
    """What each case is about is there after seven steps."""
    held = {case: trained(parts, range(7))[0][1] for case, parts in CASES.items()}
    assert held["sparseloco"]["feedback"]["residual"] and held["sparseloco, 8 bits"]["feedback"]["residual"]
    assert held["loco"]["feedback"]["error"] and held["loco"]["feedback"]["landed"]
    assert held["momentum"]["method"]["optimizer"]["state"] and held["outer Adam"]["method"]["optimizer"]["state"]
    assert held["agreed words"]["payload"]["agreed"] and held["chosen k"]["choosing"]["seconds_per_k"] is not None
    assert held["adaptive"]["schedule"]["sync_every"] != 3 and held["in flight"]["in_flight"]
