"""Outer methods: where averages land, and what a method may read."""

import pytest
import torch

from outerloop.compress.identity import Identity
from outerloop.methods.average import Average
from outerloop.methods.sign import Sign
from outerloop.types import UserError
from tests.support import toy


def test_sparta_ends_with_the_mean_where_it_was_sent_and_keeps_the_rest():
    class Half(Identity):
        def encode(self, x, context):
            kept = x.clone().reshape(-1)
            kept[1::2] = 0
            return {"value": kept}

    def work(exchange):
        net = toy.model(seed=exchange.rank)
        loop = toy.outer(net, exchange, h=1, method=Average(), compress=Half())
        before = {name: p.detach().clone() for name, p in net.named_parameters()}
        loop.after_inner_step(1)
        return before, {name: p.detach() for name, p in net.named_parameters()}

    (a, after_a), (b, after_b) = toy.run_workers(2, work)
    for name in a:
        mean = ((a[name] + b[name]) / 2).view(-1)
        assert torch.allclose(after_a[name].view(-1)[::2], mean[::2], atol=1e-6)
        assert torch.equal(after_a[name].view(-1)[1::2], a[name].view(-1)[1::2])
        assert torch.equal(after_b[name].view(-1)[1::2], b[name].view(-1)[1::2])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"clip_norm": -1.0}, "method.clip_norm=-1.0 must be above 0: set it to null for no limit"),
        ({"clip_norm": float("nan")}, "method.clip_norm=nan must be above 0"),
        ({"lr": float("nan")}, "method.optimizer.lr=nan must be 0 or more, and finite"),
        ({"lr": float("inf")}, "method.optimizer.lr=inf must be 0 or more, and finite"),
        ({"momentum": 2.0}, "method.optimizer.momentum=2.0 must be 0 or more, and below 1"),
    ],
)
def test_settings_of_the_outer_optimizer_out_of_range(settings, said):
    """A negative limit would reverse the step, and NaN would end in the weights."""
    with pytest.raises(UserError, match=f"^{said}"):
        toy.sgd(**settings)


@pytest.mark.parametrize("make", [lambda: Sign(lr=1.0, reads="tea"), lambda: toy.sgd(reads="tea")], ids=["sign", "sgd"])
def test_a_method_reads_weights_or_gradients(make):
    with pytest.raises(UserError, match="weights, gradients"):
        make()
