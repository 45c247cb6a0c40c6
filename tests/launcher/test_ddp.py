"""recipe=ddp with any inner optimizer is one worker that trains on the joint batch."""

from pathlib import Path

import pytest
import torch

from outerloop.config import build, instantiate, load
from outerloop.inner.lr_schedule import warmup_cosine
from outerloop.inner.models import next_token_loss
from outerloop.state import canonical
from outerloop.types import UserError
from tests.support import toy
from tests.support.tensors import same_tensors

TEXT = Path(__file__).parents[2] / "LICENSE"
STEPS, WORKERS, BATCH = 8, 4, 2
MODEL = ["model=nano", "model.hidden_size=32", "model.intermediate_size=48", "model.layers=2", "model.heads=2"]
SMALL = [*MODEL, "model.kv_heads=2", "data=text", f"data.files=[{TEXT}]", "inner.seq_len=16", "exchange=inprocess"]
STEPPED = [
    f"workers={WORKERS}",
    f"inner.batch={BATCH}",
    f"rounds={STEPS}",
    "inner.warmup_steps=4",
    "inner.clip_norm=0.5",
]
OPTIMIZERS = {
    "adamw": ["inner=adamw"],
    "muon": ["inner=muon", "inner.lr=4e-3"],
    "sgd": ["inner.optimizer._target_=torch.optim.SGD", "~inner.optimizer.betas", "+inner.optimizer.momentum=0.9"],
}


def settings_of(inner, *more):
    return load.load([*SMALL, "recipe=ddp", *STEPPED, *OPTIMIZERS[inner], *more])


def distributed(settings):
    """Slow weights of the workers after the run, and the norm of every mean gradient."""

    def work(exchange):
        trainer = build.make_trainer(settings, instantiate.make(settings.data), exchange, exchange.rank)
        assert trainer.optimizer is None
        rounds = [round for _ in range(STEPS) for round in trainer.step().rounds]
        return {name: x.clone() for name, x in trainer.outer.slow.items()}, [round.mean_norm for round in rounds]

    return toy.run_workers(WORKERS, work)


def joint(settings):
    """Plain training: the batches of all workers as one, the inner optimizer, clipping, warm-up and cosine by hand."""
    corpus = instantiate.make(settings.data)
    model = build.make_model(settings, corpus)
    where = [{"rank": rank, "size": WORKERS, "batch": BATCH, "seq_len": 16, "seed": 0} for rank in range(WORKERS)]
    streams = [corpus.stream(**one) for one in where]
    optimizer = instantiate.make(settings.inner.optimizer)(list(model.named_parameters()))
    peaks = [group["lr"] for group in optimizer.param_groups]
    for step in range(STEPS):
        optimizer.zero_grad()
        next_token_loss(model, torch.cat([stream.next() for stream in streams])).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        for group, peak in zip(optimizer.param_groups, peaks, strict=True):
            group["lr"] = peak * warmup_cosine(step, warmup_steps=4, total_steps=STEPS, floor=0.1)
        optimizer.step()
    return dict(model.named_parameters())


def orthogonal(x, coefficients, steps, eps):
    """The Newton-Schulz iteration of torch's Muon in float64: its bfloat16 turns a rounding into percents of a step."""
    a, b, c = coefficients
    y = x.double() / x.double().norm().clamp(min=eps)
    for _ in range(steps):
        gram = y @ y.T
        y = a * y + (b * gram + c * gram @ gram) @ y
    return y.float()


def norm(tensors):
    return sum(float(x.detach().double().norm()) ** 2 for x in tensors) ** 0.5


@pytest.mark.parametrize("inner", OPTIMIZERS)
def test_four_workers_are_one_worker_with_the_joint_batch(inner, monkeypatch):
    """To rounding: 1e-4 of how far the weights have moved. All workers hold the same bits.

    Measured: 1e-6. AdamW divides by the size of a gradient, so near 0 it amplifies rounding.
    """
    monkeypatch.setattr(torch.optim._muon, "_zeropower_via_newtonschulz", orthogonal)  # noqa: SLF001
    settings = settings_of(inner)
    start = dict(build.make_model(settings, instantiate.make(settings.data)).named_parameters())
    [(weights, gradients), *others], whole = distributed(settings), joint(settings)
    assert all(torch.equal(x, other[name]) for other, _ in others for name, x in weights.items())
    assert max(gradients) > 0.5, "clipping is part of what is compared"
    error = norm(x - whole[name] for name, x in weights.items())
    moved = norm(x - start[name] for name, x in weights.items())
    assert error < 1e-4 * moved and moved > 0.01


def test_muon_of_the_mean_gradient_is_muon():
    """Matrices of the layers go through Muon, everything else through AdamW, with the settings of the group inner."""
    method = instantiate.make(settings_of("muon", "inner.adamw_lr=1e-3").method)
    slow = {"layers.0.w": torch.ones(4, 4), "embed.w": torch.ones(4, 4), "layers.0.norm": torch.ones(4)}
    method.init(slow)
    muon, adamw = method.optimizer.parts
    assert [id(p) for p in muon.param_groups[0]["params"]] == [id(slow["layers.0.w"])]
    assert [id(p) for p in adamw.param_groups[0]["params"]] == [id(slow["embed.w"]), id(slow["layers.0.norm"])]
    assert (muon.param_groups[0]["lr"], adamw.param_groups[0]["lr"], method.reads) == (4e-3, 1e-3, "gradients")


def test_a_state_with_muon_is_handed_over():
    """What a newcomer takes over makes the next update that the others make."""
    settings = settings_of("muon")
    slow = {"layers.0.w": torch.randn(4, 4), "embed.w": torch.randn(4, 4)}
    gradients = [{name: torch.randn(4, 4) for name in slow} for _ in range(3)]
    there, here = (instantiate.make(settings.method) for _ in range(2))
    there.init(slow)
    for gradient in gradients[:2]:
        there.update(slow, gradient, {})
    copy = {name: x.clone() for name, x in slow.items()}
    here.init(copy)
    here.load_state_dict(canonical.unpack(canonical.pack(there.state_dict())))
    for method, weights in ((there, slow), (here, copy)):
        method.update(weights, gradients[2], {})
    assert same_tensors(slow, copy)


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["recipe=ddp", "schedule.sync_every=2"], "set schedule=every_h schedule.sync_every=1"),
        (["recipe=ddp", "inner=gradients"], "inner=gradients has none: set inner=adamw"),
        (["recipe=demo", "inner=muon"], "without an inner optimizer: set inner=gradients"),
        (["recipe=diloco", "inner=gradients"], "no pseudo-gradient: set inner=adamw"),
    ],
)
def test_the_rank_that_steps_is_checked(typed, said):
    with pytest.raises(UserError, match=said) as error:
        load.load(typed)
    assert "\n" not in str(error.value)


def test_an_outer_sgd_of_gradients_needs_no_inner_optimizer():
    typed = ["recipe=diloco", "method.reads=gradients", "inner=gradients", "schedule.sync_every=1"]
    assert load.load(typed).method.optimizer.momentum == 0.9
    with pytest.raises(UserError, match="set inner=gradients"):
        load.load([*typed, "inner=adamw"])
