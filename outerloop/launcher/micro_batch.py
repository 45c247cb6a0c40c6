"""Choose inner.micro_batch=auto: the first of batch, ⌈batch/2⌉, ⌈batch/4⌉, ... sequences per pass that fits in memory.

    CUDA       trial passes are run. Meanwhile, a tensor takes the room of the state that training will keep on the GPU
               (optimizer, slow weights, residual; with state_device=cpu only the inner optimizer's)
    elsewhere  sequences x bytes of one sequence <= HOST_SHARE x (available memory / workers - bytes of one worker's
               weights and state). The bytes are those of a pass with fake tensors, which have sizes but no values, so
               that it takes no memory and little time. If this fails, for example because the model branches on values,
               a real pass over one sequence is run

A separate process, `outerloop measure`, runs the real passes, so that all of its memory is free again when training
starts. It reads the configuration from standard input and prints the number of sequences.
"""

from __future__ import annotations

import logging
import subprocess
import sys
from contextlib import nullcontext
from os import environ
from pathlib import Path

import torch
from omegaconf import DictConfig, OmegaConf
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import Module

from outerloop.config.instantiate import make
from outerloop.config.model import make_model
from outerloop.config.options.saved_settings import saved_settings
from outerloop.config.profile import memory_per_param
from outerloop.config.user_code import enable_user_code, names_in
from outerloop.inner.data.corpus import Corpus
from outerloop.inner.micro_batch import TrialPass, largest
from outerloop.inner.trainer import autocast_context, pick_device
from outerloop.launcher import cpu_share
from outerloop.launcher.available_memory import available_bytes
from outerloop.launcher.process_pool import worker_pythonpath
from outerloop.sinks.console import format_bytes
from outerloop.types import UserError

logger = logging.getLogger(__name__)
HOST_SHARE = 0.5
"""Share of the memory left by weights and state that passes may use. The rest is for libraries and other programs."""
GPU_SHARE = 0.9
"""Share of a GPU's free memory that training may use. The rest is for libraries and fragmentation."""
IN_TRIAL = ("weights", "gradients")
"""Components of memory that exist during the trial passes."""
ON_DEVICE = (*IN_TRIAL, "inner optimizer")
"""Components of memory that are on the GPU even with state_device=cpu."""
ADVICE = "close other programs, or train on a machine with more memory"
BY_HAND = "set inner.micro_batch to a number of sequences"


def saved(config: DictConfig) -> int | None:
    """Return the sequences per pass that the run in run_dir has saved, or None if there is no such run or number."""
    try:
        number = OmegaConf.select(saved_settings(Path(config.run_dir)), "inner.micro_batch") if config.run_dir else None
    except FileNotFoundError:
        return None
    return number if isinstance(number, int) else None


def choose(config: DictConfig) -> int:
    """Return the number of sequences per pass. Raises UserError if not even one fits, or if the trial fails."""
    on_gpu = pick_device(config.inner.device, 0).type == "cuda"
    return (None if on_gpu else estimate(config)) or measure_in_process(config)


def estimate(config: DictConfig) -> int | None:
    """Return how many sequences fit in main memory, from fake tensors, or None if the model does not run with these.

    Raises UserError if not even one sequence fits, or if the model cannot be created.
    """
    try:
        return measure_on_host(config, make(config.data), fake=True)
    except UserError:
        raise
    except Exception as error:  # the model may be the user's own, and fail in any way
        logger.info("inner.micro_batch=auto runs a trial pass, because fake tensors failed: %s", error)
        return None


def measure_in_process(config: DictConfig) -> int:
    """Return the number of sequences that `outerloop measure` prints. Raises UserError like `choose`."""
    command = [sys.executable, "-P", "-m", "outerloop", "measure"]
    text, env = OmegaConf.to_yaml(config, resolve=True), environ | {"PYTHONPATH": worker_pythonpath()}
    done = subprocess.run(command, input=text, capture_output=True, text=True, env=env, check=False)
    if done.returncode == 0:
        return int(done.stdout.split()[-1])
    last = (done.stderr.strip().splitlines() or [f"it ended with code {done.returncode}"])[-1]
    if done.returncode == 2:
        raise UserError(last.removeprefix("outerloop: "))
    raise UserError(f"the trial pass of inner.micro_batch=auto failed ({last}): {BY_HAND}")


def main(arguments: list[str]) -> int:
    """Read a configuration from standard input, print the number of sequences that fit, and return exit code 0.

    Raises UserError if not even one sequence fits.
    """
    config = OmegaConf.create(sys.stdin.read())
    assert isinstance(config, DictConfig)
    enable_user_code(names_in(config))
    print(measure(config))
    return 0


def measure(config: DictConfig) -> int:
    """Return how many of the inner.batch sequences fit in one pass. Raises UserError if not even one fits."""
    device, corpus = pick_device(config.inner.device, 0), make(config.data)
    return measure_on_gpu(config, corpus, device) if device.type == "cuda" else measure_on_host(config, corpus)


def measure_on_host(config: DictConfig, corpus: Corpus, *, fake: bool = False) -> int:
    """Return how many sequences fit in main memory, or inner.batch if this system does not report its free memory.

    `fake`: use fake tensors.
    """
    if (free := available_bytes()) is None:
        return int(config.inner.batch)
    with FakeTensorMode() if fake else nullcontext():
        model = make_model(config, corpus)
        if not fake:
            cpu_share.limit_threads(num_parameters(model), config.inner.seq_len)
        needed = trial_pass(config, corpus, model, torch.device("cpu")).bytes_per_sequence()
    state = num_parameters(model) * sum(memory_by_component(config).values())
    budget = max(0.0, HOST_SHARE * (free / config.workers - state))
    chosen = largest(config.inner.batch, lambda sequences: sequences * needed <= budget)
    if chosen is None:
        raise UserError(
            f"a forward and backward pass over one sequence of {config.inner.seq_len} tokens needs"
            f" {format_bytes(needed)}, but {format_bytes(budget)} of this machine's memory are left for it: {ADVICE}"
        )
    return chosen


def measure_on_gpu(config: DictConfig, corpus: Corpus, device: torch.device) -> int:
    """Return how many sequences fit on a GPU, next to the state of training and the other workers of this GPU."""
    free, total = torch.cuda.mem_get_info(device)
    workers = -(-config.workers // torch.cuda.device_count())
    torch.cuda.set_per_process_memory_fraction(GPU_SHARE * free / total / workers, device)
    chosen = None
    try:
        model = make_model(config, corpus).to(device)
        state = torch.empty(added_bytes(config, num_parameters(model)), dtype=torch.uint8, device=device)
        chosen = largest(config.inner.batch, trial_pass(config, corpus, model, device).fits)
        del state
    except torch.OutOfMemoryError:  # not even the state fits
        pass
    if chosen is None:
        raise UserError(
            f"a forward and backward pass over one sequence of {config.inner.seq_len} tokens does not fit in the"
            f" {format_bytes(free)} that are free on {device}: {ADVICE}"
        )
    return chosen


def trial_pass(config: DictConfig, corpus: Corpus, model: Module, device: torch.device) -> TrialPass:
    """Return the TrialPass that measures a model, which is on `device` already."""
    autocast = autocast_context(config.inner.precision, device)
    return TrialPass(model.train(), autocast, seq_len=config.inner.seq_len, vocab_size=corpus.vocab_size)


def memory_by_component(config: DictConfig) -> dict[str, float]:
    """Return a map from each component of one worker's memory to its bytes per parameter."""
    return memory_per_param(config, peers=config.exchange.get("peers", config.workers))


def added_bytes(config: DictConfig, params: int) -> int:
    """Return the bytes of GPU memory that training uses in addition to weights, gradients and passes."""
    parts = memory_by_component(config)
    counted = ON_DEVICE if config.state_device == "cpu" else tuple(parts)
    return round(params * sum(parts[name] for name in counted if name not in IN_TRIAL))


def num_parameters(model: Module) -> int:
    """Return the number of trainable parameters."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)
