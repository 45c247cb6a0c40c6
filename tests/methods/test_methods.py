"""Outer methods: where averages land, what a method may read, and which settings a resumed optimizer has."""

import functools

import pytest
import torch

from outerloop.compress.identity import Identity
from outerloop.methods.average import Average
from outerloop.methods.outer_optimizer import OuterOptimizer, clip_factor
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


@pytest.mark.parametrize(("kind", "said"), [
    (torch.optim.LBFGS, "LBFGS of method.optimizer cannot take an outer step .*closure"),
    (torch.optim.SparseAdam, "SparseAdam of method.optimizer cannot take an outer step .*dense gradients"),
])  # fmt: skip
def test_an_optimizer_that_needs_more_than_dense_gradients_is_refused(kind, said):
    with pytest.raises(UserError, match=said):
        OuterOptimizer(optimizer=kind)


def test_an_optimizer_that_rejects_the_model_is_refused():
    """Muon takes matrices alone."""
    method = OuterOptimizer(optimizer=torch.optim.Muon)
    with pytest.raises(UserError, match=r"the optimizer of method\.optimizer rejects the model: Muon only supports 2D"):
        toy.outer(toy.model(), toy.alone(), method=method)


def moved_by_one(net, loop, rounds):
    """How far each round moves the slow weights if the fast weights move by 1."""
    steps = []
    for _ in range(rounds):
        before = loop.slow["weight"].clone()
        with torch.no_grad():
            net.weight.sub_(1.0)
        loop.after_inner_step(1)
        steps.append(float((before - loop.slow["weight"]).mean()))
    return steps


def resumed(net, saved, method):
    loop = toy.outer(net, toy.alone(), h=1, method=method)
    loop.load_state_dict(saved)
    return loop


def test_a_resumed_loop_has_the_settings_that_it_is_given():
    """b = 1, 1.5, 1.75, then with factor 0.25 instead of 0.5: 1.4375."""
    net = torch.nn.Linear(4, 4, bias=False)
    torch.nn.init.zeros_(net.weight)
    loop = toy.outer(net, toy.alone(), h=1, method=toy.sgd(1.0, 0.5))
    assert moved_by_one(net, loop, 3) == pytest.approx([1.0, 1.5, 1.75])
    loop = resumed(net, loop.state_dict(), toy.sgd(2.0, 0.25))
    assert moved_by_one(net, loop, 1) == pytest.approx([2 * 1.4375])


def test_factors_of_a_resumed_loop_apply_to_the_settings_that_it_is_given():
    """The factor is 2, 3, 4, .. from round 0 on."""
    net = torch.nn.Linear(4, 4, bias=False)
    torch.nn.init.zeros_(net.weight)
    loop = toy.outer(net, toy.alone(), h=1, method=toy.sgd(1.0, lr_factor=lambda round: round + 2))
    assert moved_by_one(net, loop, 2) == pytest.approx([2.0, 3.0])
    saved = loop.state_dict()
    same = resumed(net, saved, toy.sgd(1.0, lr_factor=lambda round: round + 2))
    assert same.shared_state.serialize() == loop.shared_state.serialize(), "also before its first round"
    assert moved_by_one(net, resumed(net, saved, toy.sgd(10.0, lr_factor=lambda r: r + 2)), 1) == pytest.approx([40.0])


def test_what_an_optimizer_keeps_in_its_groups_is_resumed():
    class Counting(torch.optim.SGD):
        def __init__(self, params):
            super().__init__([{"params": params, "steps": 0}], lr=1.0)

        def step(self, closure=None):
            self.param_groups[0]["steps"] += 1
            return super().step(closure)

    net = torch.nn.Linear(4, 4, bias=False)
    loop = toy.outer(net, toy.alone(), h=1, method=OuterOptimizer(optimizer=Counting))
    moved_by_one(net, loop, 3)
    other = resumed(net, loop.state_dict(), OuterOptimizer(optimizer=Counting))
    assert other.method.optimizer.param_groups[0]["steps"] == 3


@pytest.mark.parametrize("make", [lambda: Sign(lr=1.0, reads="tea"), lambda: toy.sgd(reads="tea")], ids=["sign", "sgd"])
def test_a_method_reads_weights_or_gradients(make):
    with pytest.raises(UserError, match="weights, gradients"):
        make()


def test_the_clip_factor_by_hand():
    """√(3² + 4²) = 5; a mean of zeros is not clipped."""
    assert clip_factor({"v": torch.tensor([3.0]), "w": torch.tensor([4.0])}, 1.0) == pytest.approx(0.2, rel=1e-6)
    assert clip_factor({"w": torch.zeros(3)}, 1.0) == 1.0


def test_sign_takes_a_step_of_the_scheduled_rate():
    """The factors of rounds 0 and 1 are 1 and 2: 0 - 1 - 2 = -3."""
    method, slow, mean = Sign(lr=1.0, lr_factor=lambda round: round + 1.0), {"w": torch.zeros(1)}, {"w": torch.ones(1)}
    method.init(slow)
    for _ in range(2):
        method.update(slow, mean, {})
    assert slow["w"].tolist() == [-3.0] and method.state_dict() == {"rounds": {"w": 2}}


def test_a_factor_that_is_no_function_is_refused():
    sgd = functools.partial(torch.optim.SGD, lr=1.0)
    for name, make in {
        "lr_factor": functools.partial(OuterOptimizer, optimizer=sgd),
        "momentum_factor": functools.partial(OuterOptimizer, optimizer=sgd),
    }.items():
        with pytest.raises(UserError, match=f"^method.{name}=2 must be a function of the round, or null: set"):
            make(**{name: 2})
    with pytest.raises(UserError, match=r"^method\.lr_factor=2 must be a function of the round, or null: set"):
        Sign(lr=0.1, lr_factor=2)


@pytest.mark.parametrize("lr", [-0.1, float("inf"), float("nan")])
def test_sign_refuses_a_learning_rate_out_of_range(lr):
    with pytest.raises(UserError, match=f"^method.lr={lr} must be 0 or more, and finite: set method.lr=0.001"):
        Sign(lr=lr)


def test_sign_counts_a_parameter_that_a_received_state_lacks_from_zero():
    method, slow = Sign(lr=1.0, lr_factor=lambda round: round + 1.0), {"w": torch.zeros(1), "b": torch.zeros(1)}
    method.init(slow)
    method.load_state_dict({"rounds": {"w": 4}})
    method.update(slow, {"w": torch.ones(1), "b": torch.ones(1)}, {})
    assert [x.item() for x in slow.values()] == [-5.0, -1.0] and method.state_dict() == {"rounds": {"w": 5, "b": 1}}


def test_sign_decays_weights_by_the_scheduled_rate():
    """The rate is 1/2, so a weight of 1 with a mean of 0 becomes 1 - 1/2 · 1/2."""
    method, slow = Sign(lr=1.0, weight_decay=0.5, lr_factor=lambda round: 0.5), {"w": torch.ones(1)}
    method.init(slow)
    method.update(slow, {"w": torch.zeros(1)}, {})
    assert slow["w"].tolist() == [0.75]


def test_sparta_keeps_the_weights_that_it_has_sent_while_training_goes_on():
    """Sent 1 and received a mean of 1.5: 1 + (1.5 - 1), although the fast weight has become 9 meanwhile."""
    method, slow, fast = Average(), {"w": torch.zeros(1)}, {"w": torch.ones(1)}
    sent = method.outgoing(slow, fast)
    fast["w"].fill_(9.0)
    assert sent["w"].tolist() == [1.0]
    method.update(slow, {"w": torch.tensor([1.5])}, {"w": torch.ones(1)})
    assert slow["w"].tolist() == [1.5]
