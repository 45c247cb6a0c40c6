"""inner.micro_batch=auto: what fits beside the weights and the state, and what a failed trial says."""

import stat
from contextlib import nullcontext

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from outerloop.config import load
from outerloop.config.instantiate import make
from outerloop.inner.micro_batch import TrialPass
from outerloop.launcher import micro_batch
from outerloop.types import UserError
from tests.support.small_trainer import SMALL


@pytest.fixture(scope="module")
def config():
    return load.load([*SMALL, "inner.batch=8", "inner.micro_batch=auto"])


@pytest.mark.parametrize(
    ("workers", "room", "chosen"), [(1, 16.1, 8), (1, 15.9, 4), (1, 2.1, 1), (2, 16.1, 8), (2, 7.9, 2)]
)
def test_passes_get_half_of_what_the_state_of_all_workers_leaves(config, workers, room, chosen, monkeypatch):
    """State: 2 bytes per parameter. `room`: sequences of 1000 bytes for which each worker has memory."""
    free = []
    monkeypatch.setattr(micro_batch, "available_bytes", lambda: free[0])
    monkeypatch.setattr(micro_batch, "memory_per_param", lambda settings, peers: {"weights": 2})
    monkeypatch.setattr(TrialPass, "bytes_per_sequence", lambda self: 1000)
    params = micro_batch.num_parameters(micro_batch.make_model(config, make(config.data)))
    free.append(workers * (2 * params + 1000 * room))
    settings = config.copy()
    settings.workers = workers
    assert micro_batch.measure(settings) == chosen
    free[0] = workers * (2 * params + 1900)
    with pytest.raises(UserError, match=r"one sequence of 16 tokens needs 1\.0 KB, but 950 B of this machine's"):
        micro_batch.measure(settings)


def test_a_system_that_does_not_report_its_memory_takes_the_whole_batch(config, monkeypatch):
    monkeypatch.setattr(micro_batch, "available_bytes", lambda: None)
    assert micro_batch.measure(config) == 8


@pytest.fixture
def gpu(monkeypatch):
    """The CPU in the role of a GPU of 1 GB with 800 MB free. Return the shares of its memory that were allowed."""
    shares = []
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (800_000_000, 1_000_000_000))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda share, device: shares.append(share))
    return shares


def test_a_gpu_tries_passes_with_its_share_of_the_free_memory(config, gpu, monkeypatch):
    def run(self, sequences):
        if sequences > 3:
            raise torch.OutOfMemoryError

    monkeypatch.setattr(TrialPass, "run", run)
    corpus, settings = make(config.data), config.copy()
    settings.workers = 2
    assert micro_batch.measure_on_gpu(settings, corpus, torch.device("cpu")) == 2
    assert gpu == [pytest.approx(0.9 * 0.8 / 2)]


def test_a_gpu_without_memory_for_the_state_is_answered_in_one_line(config, gpu, monkeypatch):
    def full(config, params):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(micro_batch, "added_bytes", full)
    with pytest.raises(UserError, match=r"16 tokens does not fit in the 800\.0 MB that are free on cpu"):
        micro_batch.measure_on_gpu(config, make(config.data), torch.device("cpu"))


def test_the_state_on_a_gpu_is_what_training_adds(config, monkeypatch):
    parts = {"weights": 4, "gradients": 4, "inner optimizer": 8, "slow weights": 4, "a round": 1}
    monkeypatch.setattr(micro_batch, "memory_per_param", lambda settings, peers: parts)
    assert micro_batch.added_bytes(config, 100) == 1300
    on_cpu = config.copy()
    on_cpu.state_device = "cpu"
    assert micro_batch.added_bytes(on_cpu, 100) == 800


def test_a_process_of_its_own_measures(config):
    assert micro_batch.measure_in_process(config) == 8


def test_fake_tensors_need_no_process_and_no_memory(config, monkeypatch):
    """Each attention layer has 4 · 120,000² weights of 4 bytes, which are 230 GB."""
    monkeypatch.setattr(micro_batch, "measure_in_process", lambda settings: pytest.fail("a process was started"))
    settings = config.copy()
    settings.model.hidden_size = 120_000
    monkeypatch.setattr(micro_batch, "available_bytes", lambda: 10**14)
    assert micro_batch.choose(settings) == 8
    monkeypatch.setattr(micro_batch, "available_bytes", lambda: 10**6)
    with pytest.raises(UserError, match="one sequence of 16 tokens needs"):
        micro_batch.choose(settings)


def test_with_eager_attention_fake_tensors_count_the_bytes_of_the_real_pass(config):
    """Other attention may count more: with fake tensors, transformers always creates the causal mask."""
    settings, corpus = config.copy(), make(config.data)
    settings.model.attention = "eager"
    real = micro_batch.trial_pass(settings, corpus, micro_batch.make_model(settings, corpus), torch.device("cpu"))
    with FakeTensorMode():
        fake = micro_batch.trial_pass(settings, corpus, micro_batch.make_model(settings, corpus), torch.device("cpu"))
        counted = fake.bytes_per_sequence()
    assert counted == real.bytes_per_sequence()


def test_a_model_that_needs_values_runs_a_trial_pass(config, monkeypatch):
    def run(self, sequences):
        if torch.ones(1).item() > 0:
            raise AssertionError("fake tensors have no values")

    monkeypatch.setattr(TrialPass, "run", run)
    monkeypatch.setattr(micro_batch, "measure_in_process", lambda settings: 4)
    assert micro_batch.choose(config) == 4


def test_a_trial_in_the_precision_of_the_run(config):
    model = micro_batch.make_model(config, make(config.data))
    settings = config.copy()
    settings.inner.precision = "bfloat16"
    device = torch.device("cpu")
    assert micro_batch.trial_pass(settings, make(config.data), model, device).autocast is not nullcontext
    assert micro_batch.trial_pass(config, make(config.data), model, device).autocast is nullcontext


def test_a_trial_in_training_mode(config):
    """Passes in evaluation mode, in which `from_pretrained` returns a model, need less memory."""
    model = micro_batch.make_model(config, make(config.data)).eval()
    assert micro_batch.trial_pass(config, make(config.data), model, torch.device("cpu")).model.training


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 'outerloop: one sequence does not fit' >&2; exit 2", "^one sequence does not fit$"),
        ("echo 'Boom: no' >&2; exit 1", r"trial pass .* failed \(Boom: no\): set inner\.micro_batch to a number"),
        ("kill -9 $$", r"trial pass .* failed \(it ended with code -9\): set inner\.micro_batch"),
    ],
)
def test_a_failed_trial_is_answered_in_one_line(config, script, said, tmp_path, monkeypatch):
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(micro_batch.sys, "executable", str(python))
    with pytest.raises(UserError, match=said):
        micro_batch.measure_in_process(config)
