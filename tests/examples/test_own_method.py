"""The parts of examples/own_method are parts like any other: found by name from outside, exact, and they train."""

import json
import math
import re
import shlex
import sys
from pathlib import Path

import pytest
import torch

from outerloop.commands import main
from outerloop.types import CodecContext
from tests.support import toy

FOLDER = Path(__file__).parents[2] / "examples/own_method"
NOW = CodecContext(round=0, seed=0)


@pytest.fixture
def parts(monkeypatch):
    """The package of the example, and the folder that its README names."""
    monkeypatch.chdir(FOLDER)
    monkeypatch.syspath_prepend(str(FOLDER))
    from ternary_adagrad.adagrad import Adagrad
    from ternary_adagrad.ternary import Ternary

    return Ternary, Adagrad


@pytest.mark.parametrize(("title", "cls"), [("mine", "Half"), ("sparse", "TopQuarter")])
def test_the_compressors_of_the_tutorial_send_and_accept_finite_values_only(title, cls):
    """Values beyond the range of float16 are sent as its largest."""
    text = (FOLDER.parents[1] / "docs/tutorials/own-method.md").read_text()
    scope = {}
    exec(re.search(rf'```python title="{title}\.py"\n(.*?)```', text, re.DOTALL)[1], scope)
    codec, x = scope[cls](), torch.tensor([1e6, 1.0, -1e6, 2.0])
    sent = codec.encode(x, NOW)
    assert codec.decode(sent, x.shape, NOW).isfinite().all()
    for name, part in sent.items():
        if part.is_floating_point():
            with pytest.raises(ValueError, match="expected finite values"):
                codec.decode(sent | {name: part * math.inf}, x.shape, NOW)


def test_the_command_of_the_readme_trains(parts, tmp_path, monkeypatch):
    [line] = [line for line in (FOLDER / "README.md").read_text().splitlines() if line.startswith("outerloop train")]
    small = [
        "rounds=2",
        "workers=2",
        "eval.sequences=8",
        "inner.batch=2",
        "schedule.sync_every=3",
        f"run_dir={tmp_path}",
    ]
    kept = [word for word in shlex.split(line) if not word.startswith("rounds=")]
    monkeypatch.setattr(sys, "argv", [*kept, *small])
    assert main.main() == 0
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert 1.6 < summary["bits_per_param_per_round"] < 1.9
    assert summary["val_loss"] < summary["val_loss_initial"]


@pytest.mark.parametrize("shape", [(0,), (1,), (5,), (7, 11)], ids=str)
def test_ternary_sends_three_levels_and_five_values_per_byte(parts, shape):
    codec, x = parts[0](), torch.randn(shape)
    sent = codec.encode(x, NOW)
    decoded = codec.decode(sent, x.shape, NOW)
    assert sent["code"].numel() == -(-x.numel() // 5)
    kept = x.abs() > 0.7 * x.abs().mean()
    assert torch.equal(decoded, torch.where(kept, x.sign() * x[kept].abs().mean(), 0.0))


@pytest.mark.parametrize(
    "change", [{"code": torch.full((2,), 243, dtype=torch.uint8)}, {"scale": torch.tensor([torch.inf])}]
)
def test_ternary_refuses_parts_that_it_does_not_send(parts, change):
    codec, x = parts[0](), torch.randn(9)
    with pytest.raises(ValueError):
        codec.decode(codec.encode(x, NOW) | change, x.shape, NOW)


def test_adagrad_takes_the_steps_of_torch_and_continues_from_its_state(parts):
    make = lambda: parts[1](lr=0.1, eps=1e-10)  # noqa: E731
    slow, theirs = {"w": torch.ones(5)}, torch.nn.Parameter(torch.ones(5))
    torch_adagrad, method = torch.optim.Adagrad([theirs], lr=0.1), make()
    method.init(slow)
    for step in range(4):
        mean = {"w": torch.randn(5)}
        if step == 2:
            saved, method = method.state_dict(), make()
            method.init(slow)
            method.load_state_dict(saved)
        method.update(slow, mean, {})
        theirs.grad = mean["w"].clone()
        torch_adagrad.step()
    assert torch.allclose(slow["w"], theirs.detach(), atol=1e-6)


def test_replicas_stay_equal(parts):
    def work(exchange):
        net = toy.model()
        loop = toy.outer(net, exchange, method=parts[1](lr=0.02, eps=1e-3), compress=parts[0]())
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(6):
            toy.inner_step(net, optimizer, exchange.rank, step)
            loop.after_inner_step(1)
        return loop.slow_hash

    assert len(set(toy.run_workers(3, work))) == 1
