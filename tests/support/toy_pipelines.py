"""A toy model trained through the fused or the plain route of a round."""

import copy

import torch

from outerloop.aggregate.mean import Mean
from outerloop.aggregate.median_clip import MedianClip
from outerloop.aggregate.senders import Senders
from outerloop.compress.by_size import BySize
from outerloop.compress.cast import Cast
from outerloop.compress.index.rice import Rice
from outerloop.compress.rotated import Rotated
from outerloop.compress.topk import TopK
from outerloop.compress.two_bit import TwoBit
from outerloop.feedback.ef import ErrorFeedback
from outerloop.feedback.local_error import LocalError
from outerloop.feedback.none import NoFeedback
from outerloop.methods.outer_optimizer import OuterOptimizer
from outerloop.schedule.every_h import EveryH
from tests.support import toy

SGD = torch.optim.SGD
FUSED = {
    "sparseloco": (lambda p: SGD(p, lr=1.0), ErrorFeedback(beta=0.95), Senders()),
    "clipped": (lambda p: SGD(p, lr=1.0), ErrorFeedback(beta=0.95), MedianClip(of=Senders())),
    "clipped mean": (lambda p: SGD(p, lr=1.0), ErrorFeedback(beta=0.95), MedianClip(of=Mean())),
    "mean": (lambda p: SGD(p, lr=1.0), ErrorFeedback(beta=0.95), Mean()),
    "forgetful": (lambda p: SGD(p, lr=1.0), NoFeedback(), Senders()),
    "local": (lambda p: SGD(p, lr=1.0), LocalError(beta=0.85), Senders()),
    "eight_bit": (lambda p: SGD(p, lr=1.0), ErrorFeedback(beta=0.95, bits=8), Senders()),
    "momentum": (lambda p: SGD(p, lr=0.7, momentum=0.9), ErrorFeedback(beta=0.5), Mean()),
    "nesterov": (lambda p: SGD(p, lr=0.7, momentum=0.9, nesterov=True), ErrorFeedback(beta=0.5), Mean()),
    "rotated": (lambda p: SGD(p, lr=1.0), LocalError(beta=0.7), Senders()),
    "rotated, clipped, nesterov": (
        lambda p: SGD(p, lr=0.7, momentum=0.9, nesterov=True),
        ErrorFeedback(beta=0.5),
        MedianClip(of=Mean()),
    ),
}


def topk(recipe):
    """The chunks of an 8-bit residual do not cut its blocks."""
    chunk = 256 if recipe == "eight_bit" else 16
    codec = TopK(chunk=chunk, k=chunk * 3 // 16, values=TwoBit(chunk=None), index=Rice())
    return Rotated(chunk=chunk, of=codec) if recipe.startswith("rotated") else codec


def trained(recipe, dtype, *, fused, delay=0, merge_local=0.0):
    """All tensors that evolve, of one of two workers after four rounds."""
    make, feedback, aggregate = FUSED[recipe]

    def work(exchange):
        net, own = toy.model(width=20).to(dtype), copy.deepcopy(feedback)
        compress = BySize(below=10, small=Cast(dtype="bfloat16"), large=topk(recipe))
        parts = {"feedback": own, "aggregate": aggregate, "compress": compress}
        parts |= {"schedule": EveryH(sync_every=3, delay=delay), "merge_local": merge_local}
        loop = toy.outer(net, exchange, method=OuterOptimizer(optimizer=make), **parts)
        assert loop.pipeline.fused.fits
        loop.pipeline.fused.fits = fused
        assert bool(loop.pipeline.split(loop.slow)[0]) == fused
        draw = torch.Generator().manual_seed(exchange.rank)
        for _ in range(12 + delay):
            for p in net.parameters():
                p.data += 0.1 * torch.randn(p.shape, generator=draw).to(dtype)
            assert not any(report.failed for report in loop.after_inner_step(1))
        state = {f"slow.{name}": x for name, x in loop.slow.items()}
        state |= {f"fast.{name}": p.detach() for name, p in net.named_parameters()}
        for name, held in own.state_dict().get("residual", {}).items():
            tensors = held if isinstance(held, list) else [held]
            state |= {f"residual.{name}.{i}": x for i, x in enumerate(tensors) if isinstance(x, torch.Tensor)}
        return state

    return toy.run_workers(2, work)[0]
