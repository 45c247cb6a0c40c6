"""The inner trainer: accumulation, clipping, the learning rate by step, what the last step of a run leaves."""

import threading

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from outerloop.config import build, instantiate, load
from outerloop.inner.data.tokenization import byte_tokenizer
from outerloop.inner.models import next_token_loss
from outerloop.inner.text_sampler import TextSampler
from outerloop.inner.trainer import pick_precision
from outerloop.launcher import thread_pool
from outerloop.launcher.run_worker import export_model
from outerloop.launcher.thread_pool import ComputeThread
from outerloop.launcher.train import train
from outerloop.types import UserError
from tests.support.small_trainer import SMALL, trainer_of


def weights_after(trainer, steps):
    reports = [trainer.step() for _ in range(steps)]
    return {name: p.detach().clone() for name, p in trainer.model.named_parameters()}, reports


def test_accumulated_micro_batches_equal_one_batch():
    whole, a = weights_after(trainer_of("inner.batch=4"), 3)
    pieces, b = weights_after(trainer_of("inner.batch=2", "inner.accumulate=2"), 3)
    assert [r.tokens for r in a] == [r.tokens for r in b] == [64, 64, 64]
    assert [r.loss for r in a] == pytest.approx([r.loss for r in b], rel=1e-5)
    assert all(torch.allclose(whole[name], pieces[name], atol=1e-5) for name in whole)


def gradient_of(*overrides, dtype=torch.float32):
    """Loss and flat gradient of one step's batches, before the update."""
    trainer = trainer_of("recipe=demo", *overrides)  # its gradients stay, because the method reads them
    trainer.model.to(dtype)
    loss, _, _ = trainer.train_on([trainer.stream.next() for _ in range(trainer.accumulate)])
    return loss, torch.cat([p.grad.flatten() for p in trainer.params])


@pytest.mark.parametrize("micro_batch", [1, 2, 3])
def test_micro_batches_give_the_gradient_of_the_whole_batch(micro_batch):
    """Five sequences as 2 + 2 + 1: the last part counts half as much. Only the logits are rounded to float32."""
    work = ["inner.batch=5", "inner.accumulate=2"]
    loss, whole = gradient_of(*work, dtype=torch.float64)
    in_parts, parts = gradient_of(*work, f"inner.micro_batch={micro_batch}", dtype=torch.float64)
    assert in_parts == pytest.approx(loss, rel=1e-6)
    assert float((parts - whole).norm() / whole.norm()) < 1e-6


@pytest.mark.parametrize("options", [[], ["inner.micro_batch=3"], ["inner.micro_batch=100"]], ids=str)
def test_a_batch_in_one_pass_has_the_bits_of_its_mean_loss(options):
    trainer = trainer_of("inner.batch=3", "inner.accumulate=3")
    windows = [trainer.stream.next() for _ in range(3)]
    expected = 0.0
    for window in windows:
        loss = next_token_loss(trainer.model, window) / 3
        loss.backward()
        expected += float(loss.detach())
    gradient = torch.cat([p.grad.flatten() for p in trainer.params])
    loss, found = gradient_of("inner.batch=3", "inner.accumulate=3", *options)
    assert loss == expected and torch.equal(found, gradient)


def test_a_step_in_micro_batches_trains_as_one_pass_does():
    whole, a = weights_after(trainer_of("inner.batch=4"), 3)
    parts, b = weights_after(trainer_of("inner.batch=4", "inner.micro_batch=3"), 3)
    assert [r.tokens for r in a] == [r.tokens for r in b]
    assert [r.loss for r in a] == pytest.approx([r.loss for r in b], rel=1e-5)
    assert all(torch.allclose(whole[name], parts[name], atol=1e-5) for name in whole)


@pytest.mark.parametrize(
    ("name", "device", "native", "picked"),
    [
        ("auto", "cpu", True, "float32"),
        ("auto", "cuda", True, "bfloat16"),
        ("auto", "cuda", False, "float32"),
        ("bfloat16", "cpu", False, "bfloat16"),
        ("float32", "cuda", True, "float32"),
    ],
)
def test_auto_is_bfloat16_on_a_gpu_that_computes_in_it(name, device, native, picked, monkeypatch):
    """A GPU that emulates it supports it only with `including_emulation`, which is torch's default."""

    def is_supported(including_emulation=True):
        return native or including_emulation

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", is_supported)
    assert pick_precision(name, torch.device(device)) == picked


def test_learning_rate_warms_up_and_decays_by_inner_step():
    """Warm-up 2, six steps in all: peak times 1/2, 1, then half a cosine towards the floor."""
    options = ["inner.warmup_steps=2", "inner.lr=1.0e-3", "rounds=3", "schedule.sync_every=2", "inner.lr_floor=0.1"]
    _, reports = weights_after(trainer_of("inner.batch=1", *options), 6)
    expected = [0.5, 1.0, 1.0, 0.868198, 0.55, 0.231802]
    assert [r.lr / 1e-3 for r in reports] == pytest.approx(expected, abs=1e-5)


def test_the_gradient_is_clipped_before_the_step():
    """Inner SGD of lr 1 moves the weights by the clipped gradient's norm, no further."""
    sgd = ["inner.optimizer._target_=torch.optim.SGD", "~inner.optimizer.betas", "inner.optimizer.weight_decay=0"]
    trainer = trainer_of("inner.batch=2", "inner.lr=1.0", "inner.warmup_steps=1", "inner.clip_norm=0.01", *sgd)
    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    after, _ = weights_after(trainer, 1)
    moved = sum(float((after[name] - x).norm() ** 2) for name, x in before.items()) ** 0.5
    assert moved == pytest.approx(0.01, rel=1e-3)


def test_a_model_in_evaluation_mode_is_trained_in_training_mode(monkeypatch):
    """`from_pretrained` returns such a model, and a worker that resumes or joins late does not evaluate first."""
    made = build.make_model
    monkeypatch.setattr(build, "make_model", lambda *args: made(*args).eval())
    assert trainer_of().model.training


class Normed(torch.nn.Module):
    """Batch statistics between an embedding and the logits."""

    def __init__(self, vocab):
        super().__init__()
        self.layer, self.norm = torch.nn.Embedding(vocab, vocab), torch.nn.BatchNorm1d(vocab)

    def forward(self, tokens):
        return self.norm(self.layer(tokens).mT).mT


def test_slow_weights_are_evaluated_sampled_and_exported_with_the_shared_means(tmp_path):
    """A peer that the last round did not include keeps its own buffers."""
    options = ["model=module", f"model._target_={__name__}.Normed", "+model.vocab=256", "buffers=averaged"]
    trainer, windows = trainer_of(*options), torch.randint(0, 256, (2, 17))
    outer, own = trainer.outer, trainer.model.norm.running_mean
    sampler = TextSampler(every=1, prompt="The", tokens=8, window=8, tokenizer=byte_tokenizer())

    def results():
        return trainer.evaluate(windows, outer.slow, batch=2), sampler.sample(trainer, outer.slow, seed=0)

    shared = results()
    own.copy_(torch.linspace(-9, 9, 256))
    assert results() == shared and float(own[-1]) == 9.0
    settings = load.load([*SMALL, *options])
    export_model(settings, instantiate.make(settings.data), outer, tmp_path)
    exported = load_file(tmp_path / "hf" / "model.safetensors")
    assert torch.equal(exported["norm.running_mean"], torch.zeros(256)) and float(own[-1]) == 9.0


def test_evaluation_leaves_no_trace():
    trainer = trainer_of("inner.batch=2")
    before, _ = weights_after(trainer, 1)
    windows = torch.randint(0, 256, (5, 17))
    first = trainer.evaluate(windows, trainer.outer.slow, batch=2)
    assert first == pytest.approx(trainer.evaluate(windows, trainer.outer.slow, batch=5), rel=1e-5)
    assert trainer.model.training
    assert all(torch.equal(p, before[name]) for name, p in trainer.model.named_parameters())


@pytest.mark.slow
def test_torch_compile_and_bfloat16_train(tmp_path):
    """About a minute: the compiler is C++."""
    options = ["inner.compile=true", "inner.precision=bfloat16", "rounds=2", "schedule.sync_every=2"]
    summary = train(load.load([*SMALL, *options, "eval.sequences=4", f"run_dir={tmp_path}/run"]))
    assert summary["val_loss"] < summary["val_loss_initial"]


def test_a_compiled_model_is_what_the_forward_pass_calls():
    """Compiling itself waits for the first step."""
    trainer = trainer_of("inner.compile=true")
    assert trainer.forward is not trainer.model
    assert trainer.forward._orig_mod is trainer.model  # noqa: SLF001


SEEN = []


class Telling(torch.nn.Module):
    """One layer that notes which thread calls it, and with how many cores."""

    def __init__(self, vocab):
        super().__init__()
        self.layer = torch.nn.Embedding(vocab, vocab)

    def forward(self, tokens):
        SEEN.append((threading.get_ident(), torch.get_num_threads()))
        return self.layer(tokens)


def test_one_thread_computes_for_all_workers_of_a_process(tmp_path, monkeypatch):
    """Steps, evaluations and rounds; with as many cores as `threads` says, while the workers' own threads have one."""
    SEEN.clear()
    asked = []

    class Told(ComputeThread):
        def __call__(self, work, *args):
            asked.append((work.__name__, threading.get_ident(), torch.get_num_threads()))
            return super().__call__(work, *args)

    monkeypatch.setattr(thread_pool, "ComputeThread", Told)
    model = ["model=module", f"model._target_={__name__}.Telling", "+model.vocab=256"]
    options = [*SMALL, *model, "workers=3", "threads=2", "rounds=2", "schedule.sync_every=2", "eval.sequences=6"]
    train(load.load([*options, f"run_dir={tmp_path}/run"]))
    assert len(SEEN) >= 3 * 2 * 2 + 3
    assert {cores for _, cores in SEEN} == {2} and len({thread for thread, _ in SEEN}) == 1
    by_workers = [ask for ask in asked if ask[1] != threading.get_ident()]
    assert {name for name, _, _ in by_workers} == {"train_on", "nats", "launch_blocking", "verify", "apply"}
    assert {cores for _, _, cores in by_workers} == {1} and len({thread for _, thread, _ in by_workers}) == 3
    assert not {thread for _, thread, _ in asked} & dict(SEEN).keys()


def test_an_error_in_the_computing_thread_is_raised_at_its_caller():
    compute = ComputeThread(1)
    with pytest.raises(ZeroDivisionError):
        compute(divmod, 1, 0)
    assert compute(divmod, 7, 2) == (3, 1)
    compute.close()


def test_gradients_do_not_outlive_their_step():
    """Workers of one device take turns: one model's gradients are enough for all."""
    trainer = trainer_of("inner.batch=2")
    trainer.step()
    assert all(p.grad is None for p in trainer.params)


def test_a_prompt_without_tokens_is_refused():
    core = Tokenizer(models.BPE(vocab={"a": 0}, merges=[]))  # has no token for other letters
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core)
    with pytest.raises(UserError, match=r"samples.prompt is empty or contains no token of data.tokenizer"):
        TextSampler(every=1, prompt="b", tokens=8, window=8, tokenizer=tokenizer)
