"""Run one worker: join the others and train. The first worker that finishes writes the model."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from torch import distributed as dist
from torch.nn import Module

from outerloop.config.build import make, model_of, next_launch, schedule_of, trainer_of
from outerloop.config.rank_layout import ALONE, RankLayout
from outerloop.core.memory_usage import HoldsMemory, estimate
from outerloop.core.outer_loop import OuterLoop
from outerloop.inner.data.corpus import Corpus
from outerloop.inner.events import Event
from outerloop.inner.export import export_hf
from outerloop.inner.gathered_follower import GatheredFollower, follow
from outerloop.inner.trainer import Trainer
from outerloop.inner.worker import Worker
from outerloop.inner.worker_settings import WorkerSettings
from outerloop.launcher import cpu_share
from outerloop.protocols import Exchange
from outerloop.replica.island import run_inline
from outerloop.replica.sharding import is_sharded
from outerloop.state import checkpoint


def join(config: DictConfig, exchange: Exchange, run_dir: Path, resume_step: int | None, index: int) -> None:
    """Wait until the other peers have joined. Raises UserError if they do not."""

    def saved_outer() -> dict[str, Any] | None:
        return None if resume_step is None else checkpoint.load(run_dir, resume_step, index)["trainer"]["outer"]

    exchange.join(next_launch(schedule_of(config, saved_outer), resume_step or 0))


def live(
    config: DictConfig,
    *,
    index: int,
    run_dir: Path,
    resume_step: int | None,
    exchange: Exchange,
    emit: Callable[[Event], None],
    check_stop: Callable[[], None],
    seat: RankLayout = ALONE,
    compute: Callable[..., Any] = run_inline,
) -> None:
    """Run one worker to its last event. The exchange must have joined."""
    corpus = make(config.data)
    trainer = trainer_of(config, corpus, exchange, index, seat, compute)
    outer = trainer.outer
    if config.threads is None and trainer.device.type == "cpu":
        params = sum(p.numel() for p in trainer.params)
        compute(cpu_share.fit, params, config.inner.batch * config.inner.seq_len // seat.ranks.size)
    windows = corpus.validation(seq_len=config.inner.seq_len, sequences=config.eval.sequences)
    validation = seat.part_of(windows[index :: config.workers])
    plan = plan_of(config, index, run_dir, resume_step, ranks=seat.ranks.size)
    if seat.mesh is not None:
        emit(memory_status(outer, trainer, seat))
    if isinstance(outer, GatheredFollower):
        follow(outer, trainer, validation, plan)
        return
    worker = Worker(
        plan,
        trainer=trainer,
        outer=outer,
        exchange=exchange,
        validation=validation,
        emit=emit,
        check_stop=check_stop,
    )
    for warning in outer.warnings if index == 0 else ():
        worker.emit("status", text=f"note: {warning}")
    worker.emit("ready", params=sum(p.numel() for p in trainer.params), size=exchange.size)
    worker.run()
    outer.island.run_on_followers("leave")
    hand_in(config, corpus, outer, run_dir)
    worker.raise_if_diverged()


def hand_in(config: DictConfig, corpus: Corpus, outer: OuterLoop, run_dir: Path) -> None:
    """Write the slow weights as a Hugging Face model, unless that is done. All ranks of a sharded island call this."""
    first = not (dist.is_initialized() and dist.get_rank())  # transformers lets only rank 0 write weights
    slow = outer.island.full_tensors(outer.slow, keep=first)
    if not first:
        return
    with run_once(run_dir / ".model", f"{outer.slow_hash:016x}") as mine:
        if mine:
            export_hf(whole_model(config, corpus, outer.model), slow, corpus.tokenizer(), run_dir / "hf")


def whole_model(config: DictConfig, corpus: Corpus, model: Module) -> Module:
    """Return the model itself, or for a sharded model an unsharded one with the same buffers."""
    if not is_sharded(model):
        return model
    whole, names = model_of(config, corpus), dict(model.named_buffers())
    whole.load_state_dict({name: x for name, x in model.state_dict().items() if name in names}, strict=False)
    return whole


def memory_status(outer: HoldsMemory, trainer: Trainer, seat: RankLayout) -> Event:
    """Return the status event with the memory that this rank is going to need, before it trains."""
    memory = estimate(outer, trainer.optimizer)
    return {
        "event": "status",
        "worker": seat.island,
        "step": 0,
        "text": f"island {seat.island} rank {seat.ranks.rank}: {memory}",
    }


def plan_of(config: DictConfig, index: int, run_dir: Path, resume_step: int | None, *, ranks: int) -> WorkerSettings:
    """Return the plan of one worker of `ranks` ranks. Each rank evaluates as many windows at a time as it trains on."""
    return WorkerSettings(
        index=index,
        local_workers=config.workers,
        run_dir=run_dir,
        rounds=config.rounds,
        eval_every=config.eval.every,
        eval_batch=max(1, config.inner.batch // ranks),
        checkpoint_every=config.checkpoint.every,
        keep_payload_rounds=config.keep_payload_rounds,
        log_every=config.log_every,
        max_failed_rounds=config.max_failed_rounds,
        resume_step=resume_step,
    )


@contextmanager
def run_once(path: Path, what: str) -> Iterator[bool]:
    """Enter the block in one process at a time, and yield whether this process has to do the task.

    `path` stores the task (`what`) that was completed last. A block that raises or is killed does not count as done.
    """
    with path.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # released when the process ends, at the latest
        file.seek(0)
        mine = file.read() != what
        yield mine
        if mine:
            file.truncate(0)
            file.write(what)
