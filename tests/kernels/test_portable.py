"""Arithmetic that is defined to the last bit: against numpy, which rounds every operation, and torch to rounding."""

import io
import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch

from outerloop.compress.dct import basis, dct_rows, idct_rows
from outerloop.kernels.portable import cosine, divide, exact_sum, geometric, power, square_root
from outerloop.methods.average import Average
from outerloop.methods.noloco import NoLoCo
from outerloop.methods.outer_optimizer import OuterOptimizer, clip_factor
from outerloop.methods.sign import Sign
from tests.support import toy

F = np.float32
"""numpy rounds every operation on its scalars and arrays on its own."""
SGD = {
    "plain": {"lr": 0.7},
    "heavy ball": {"lr": 0.7, "momentum": 0.9},
    "nesterov": {"lr": 0.7, "momentum": 0.9, "nesterov": True},
    "dampened": {"lr": 0.7, "momentum": 0.9, "dampening": 0.3},
    "decayed": {"lr": 0.7, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
}
ADAMW = {"lr": 0.01, "betas": (0.9, 0.95), "weight_decay": 0.1}


def sgd_by_hand(x, gradients, lr, momentum=0.0, nesterov=False, dampening=0.0, weight_decay=0.0):
    b = None
    for g in gradients:
        g = g + x * F(weight_decay)
        b = g if b is None else b * F(momentum) + g * F(1 - dampening)
        step = g if not momentum else g + b * F(momentum) if nesterov else b
        x = x - step * F(lr)
    return x


def adamw_by_hand(x, gradients, lr, betas, weight_decay, eps=1e-8):
    m, v = np.zeros_like(x), np.zeros_like(x)
    for t, g in enumerate(gradients, start=1):
        x = x * F(1 - lr * weight_decay)
        m = m + (g - m) * F(1 - betas[0])
        v = v * F(betas[1]) + g * g * F(1 - betas[1])
        bias1, bias2 = (1 - power(beta, t) for beta in betas)
        x = x - m * F(lr / bias1) / (np.sqrt(v) / F(math.sqrt(bias2)) + F(eps))
    return x


def updated(make, x, gradients):
    """Slow weights after these updates by OuterOptimizer."""
    method, slow = OuterOptimizer(optimizer=make), {"w": x.clone()}
    method.init(slow)
    for g in gradients:
        method.update(slow, {"w": g}, {})
    return slow["w"]


def stepped(make, x, gradients):
    """The same by torch."""
    w = x.clone()
    optimizer = make([w])
    for g in gradients:
        w.grad = g.clone()
        optimizer.step()
    return w


CASES = {name: (torch.optim.SGD, settings, sgd_by_hand) for name, settings in SGD.items()}
CASES["adamw"] = torch.optim.AdamW, ADAMW, adamw_by_hand


@pytest.mark.parametrize("name", CASES)
def test_every_operation_of_an_outer_step_is_rounded(name):
    kind, settings, by_hand = CASES[name]
    x, gradients = torch.randn(4099), list(torch.randn(5, 4099))
    make = lambda params: kind(params, **settings)  # noqa: E731
    got = updated(make, x, gradients)
    assert np.array_equal(got.numpy(), by_hand(x.numpy(), [g.numpy() for g in gradients], **settings))
    assert torch.allclose(got, stepped(make, x, gradients), atol=2e-6, rtol=1e-6)


def test_only_what_was_sent_moves_and_its_momentum_begins_with_its_own_first_step():
    method = toy.sgd(lr=0.5, momentum=0.5)
    slow = {"a": torch.tensor([1.0]), "b": torch.tensor([1.0])}
    method.init(slow)
    for names in ("a", "ab", "b"):
        method.update(slow, {name: torch.tensor([1.0]) for name in names}, {})
    assert slow["a"].item() == slow["b"].item() == 1 - 0.5 * (1 + 1.5)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_a_checkpoint_of_torchs_own_step_goes_on(kind):
    """Its state is loaded, and the next steps are torch's to rounding."""
    settings = ADAMW if kind is torch.optim.AdamW else SGD["nesterov"]
    make = lambda params: kind(params, **settings)  # noqa: E731
    x, gradients = torch.randn(50), list(torch.randn(6, 50))
    w = x.clone()
    optimizer = make([w])
    for g in gradients[:3]:
        w.grad = g
        optimizer.step()
    torch.save({"optimizer": optimizer.state_dict(), "rounds": {"w": 3}}, file := io.BytesIO())
    method, slow = OuterOptimizer(optimizer=make), {"w": w.clone()}
    method.init(slow)
    method.load_state_dict(torch.load(io.BytesIO(file.getvalue())))
    for g in gradients[3:]:
        method.update(slow, {"w": g}, {})
    assert torch.allclose(slow["w"], stepped(make, x, gradients), atol=2e-6, rtol=0)
    method.optimizer.step()  # and torch can go on from the state that is left


@pytest.mark.parametrize(
    ("make", "portable"),
    [
        (lambda p: torch.optim.SGD(p, lr=1.0, momentum=0.9, weight_decay=0.1), True),
        (lambda p: torch.optim.AdamW(p, fused=True), True),
        (lambda p: torch.optim.SGD(p, lr=1.0, maximize=True), False),
        (lambda p: torch.optim.AdamW(p, amsgrad=True), False),
        (lambda p: torch.optim.Adagrad(p), False),
    ],
)
def test_which_outer_optimizers_are_portable(make, portable):
    assert OuterOptimizer(optimizer=make).portable is portable
    x, gradients = torch.randn(20), list(torch.randn(3, 20))
    assert torch.allclose(updated(make, x, gradients), stepped(make, x, gradients), atol=1e-6)


def test_methods_of_one_rounding_an_operation_say_so():
    noloco = NoLoCo(alpha=0.5, beta=0.7, gamma=None, consensus="inside")
    assert all(method.portable for method in (Sign(lr=0.1), Average(), noloco))


def test_sign_in_float64_keeps_its_learning_rate():
    method, slow = Sign(lr=0.1), {"w": torch.zeros(1, dtype=torch.float64)}
    method.init(slow)
    method.update(slow, {"w": torch.tensor([3.0])}, {})
    assert slow["w"].item() == -0.1


def test_a_clip_factor_does_not_depend_on_the_order():
    tensors = {str(i): torch.randn(1000) * 10**i for i in range(4)}
    shuffled = {name: tensors[name][torch.randperm(1000)] for name in reversed(tensors)}
    norm = math.sqrt(sum(float(x.double().square().sum()) for x in tensors.values()))
    assert clip_factor(tensors, 1.0) == clip_factor(shuffled, 1.0) == pytest.approx(1 / norm)
    assert clip_factor(tensors, 1e9) == 1.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_square_root_is_the_nearest(dtype):
    """(r − ulp/2)² < x < (r + ulp/2)², in fractions."""
    x = torch.rand(300, dtype=dtype) + 1e-3
    for value, root in zip(x.tolist(), square_root(x).numpy(), strict=True):
        half = Fraction(float(np.spacing(root))) / 2
        assert (Fraction(float(root)) - half) ** 2 < Fraction(value) < (Fraction(float(root)) + half) ** 2
    assert square_root(torch.zeros(2, 0)).shape == (2, 0) and square_root(torch.tensor(4.0)).item() == 2.0


def test_numbers():
    assert exact_sum([1e16, 1.0, -1e16]) == 1.0 and exact_sum([1e308, 1e308]) == math.inf
    assert torch.equal(divide(torch.tensor([1.0, 5.0]), 3), torch.tensor([F(1) / F(3), F(5) / F(3)]))
    for base in (0.9, 0.95, 0.999):
        assert power(base, 0) == 1.0 and power(base, 1) == base
        assert all(abs(power(base, t) - base**t) < 1e-14 for t in range(0, 20000, 77))


def test_a_cosine_is_off_by_less_than_1e_15():
    """Against the C library, and at one third against 30 digits of the series."""
    assert (cosine(0.0), cosine(1.0)) == (1.0, -1.0) and abs(cosine(0.5)) < 1e-15
    assert all(abs(cosine(i / 4999) - math.cos(math.pi * i / 4999)) < 1.5e-15 for i in range(5000))
    angle = Decimal("1.04719755119659774615421446109")
    third = sum((-1) ** n * angle ** (2 * n) / math.factorial(2 * n) for n in range(20))  # to Decimal's 28 digits
    assert abs(Decimal(cosine(1 / 3)) - third) < Decimal("1e-15")


def test_a_share_that_falls_geometrically():
    assert [geometric(4096, 1, step, 12) for step in range(13)] == [2**n for n in range(12, -1, -1)]
    for k in (3, 64, 72, 128):
        for step in range(10):
            m = geometric(4096, k, step, 10)  # nearest to the tenth root of 4096^(10 - step) k^step
            assert (2 * m - 1) ** 10 < 2**10 * 4096 ** (10 - step) * k**step < (2 * m + 1) ** 10


@pytest.mark.parametrize("length", [1, 2, 3, 7, 64, 100])
def test_the_cosine_transform_is_orthonormal_and_its_own_order(length):
    """Its sums are those of a loop over the terms, one product and one sum at a time."""
    assert torch.allclose(basis(length) @ basis(length).T, torch.eye(length, dtype=torch.float64), atol=1e-14)
    x = torch.randn(5, length, dtype=torch.float64)
    assert torch.allclose(idct_rows(dct_rows(x)), x, atol=1e-13)
