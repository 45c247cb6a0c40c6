"""A toy model trained through the fused or the plain route of a round."""

import torch
import toy

from outerloop.aggregate.mean import Mean
from outerloop.aggregate.median_clip import MedianClip
from outerloop.aggregate.senders import Senders
from outerloop.compress.by_size import BySize
from outerloop.compress.cast import Cast
from outerloop.compress.index.rice import Rice
from outerloop.compress.topk import TopK
from outerloop.compress.two_bit import TwoBit
from outerloop.feedback.ef import ErrorFeedback
from outerloop.feedback.none import NoFeedback
from outerloop.methods.outer_optimizer import OuterOptimizer

SGD = torch.optim.SGD
FUSED = {
    "sparseloco": (lambda p: SGD(p, lr=1.0), ErrorFeedback(beta=0.95), Senders()),
    "clipped": (lambda p: SGD(p, lr=1.0), ErrorFeedback(beta=0.95), MedianClip(of=Senders())),
    "clipped mean": (lambda p: SGD(p, lr=1.0), ErrorFeedback(beta=0.95), MedianClip(of=Mean())),
    "mean": (lambda p: SGD(p, lr=1.0), ErrorFeedback(beta=0.95), Mean()),
    "forgetful": (lambda p: SGD(p, lr=1.0), NoFeedback(), Senders()),
    "momentum": (lambda p: SGD(p, lr=0.7, momentum=0.9), ErrorFeedback(beta=0.5), Mean()),
    "nesterov": (lambda p: SGD(p, lr=0.7, momentum=0.9, nesterov=True), ErrorFeedback(beta=0.5), Mean()),
}
EXACT = ("sparseloco", "mean", "forgetful", "clipped", "clipped mean")
"""Those whose plain route rounds like the kernel; torch's own SGD fuses its products and sums."""


def trained(recipe, dtype, *, fused):
    """All tensors that evolve, of one of two workers after four rounds."""
    make, feedback, aggregate = FUSED[recipe]

    def work(exchange):
        net = toy.model().to(dtype)
        own = type(feedback)(beta=feedback.beta) if isinstance(feedback, ErrorFeedback) else NoFeedback()
        compress = BySize(
            below=10, small=Cast(dtype="bfloat16"), large=TopK(chunk=16, k=3, values=TwoBit(chunk=None), index=Rice())
        )
        parts = {"feedback": own, "aggregate": aggregate, "compress": compress}
        loop = toy.outer(net, exchange, h=2, method=OuterOptimizer(optimizer=make), **parts)
        assert loop.routes.fused.fits
        loop.routes.fused.fits = fused
        assert bool(loop.routes.split(loop.slow)[0]) == fused
        draw = torch.Generator().manual_seed(exchange.rank)
        for _ in range(8):
            for p in net.parameters():
                p.data += 0.1 * torch.randn(p.shape, generator=draw).to(dtype)
            assert not any(report.failed for report in loop.after_inner_step(1))
        state = {f"slow.{name}": x for name, x in loop.slow.items()}
        state |= {f"fast.{name}": p.detach() for name, p in net.named_parameters()}
        state |= {f"residual.{name}": x for name, x in own.state_dict().get("residual", {}).items()}
        return state

    return toy.run_workers(2, work)[0]
