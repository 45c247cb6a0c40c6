"""Run one worker: join the other peers and train. The first worker that finishes writes the model."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from torch import Tensor
from torch import distributed as dist
from torch.nn import Module

from outerloop import rng
from outerloop.config.audits import attach_audits
from outerloop.config.build import first_round, make_sampler, make_trainer
from outerloop.config.instantiate import make
from outerloop.config.model import make_model
from outerloop.config.rank_layout import ALONE, RankLayout
from outerloop.config.run_directory import EXPORTED, MODEL
from outerloop.core.memory_usage import HoldsMemory, estimate
from outerloop.core.outer_loop import OuterLoop
from outerloop.exchange_protocols import first_commit
from outerloop.inner.data.corpus import Corpus, notes_of
from outerloop.inner.events import Event
from outerloop.inner.export import export_hf
from outerloop.inner.gathered_follower import GatheredFollower, follow
from outerloop.inner.stop_point import StopPoint
from outerloop.inner.trainer import Trainer
from outerloop.inner.worker import Worker
from outerloop.inner.worker_settings import WorkerSettings
from outerloop.launcher import cpu_share
from outerloop.launcher.collections_at_start import collect_as_usual
from outerloop.protocols import Exchange
from outerloop.replica.island import run_inline
from outerloop.replica.sharding import is_sharded
from outerloop.scores.build import make_scorer
from outerloop.scores.scorer import PayloadScorer
from outerloop.state import checkpoint
from outerloop.state.file_lock import lock_file

BeforeFirstStep = Callable[[Trainer[Any], Corpus], None]
"""Called with a worker's trainer, and the text on which it trains."""


def join_exchange(config: DictConfig, exchange: Exchange, run_dir: Path, resume_step: int | None, index: int) -> None:
    """Join the exchange, and wait until the other peers have joined it. Raises UserError if they do not."""

    def saved_outer() -> dict[str, Any] | None:
        if resume_step is None:
            return None
        saved = checkpoint.load(run_dir, resume_step, index)["trainer"]
        return saved.get("outer", {"in_flight": []})  # a sharded island stores no rounds in flight

    exchange.join(first_round(config, saved_outer, resume_step or 0))


def run_worker(
    config: DictConfig,
    *,
    index: int,
    run_dir: Path,
    resume_step: int | None,
    exchange: Exchange,
    emit: Callable[[Event], None],
    check_stop: Callable[[], None],
    stop_point: StopPoint | None = None,
    layout: RankLayout = ALONE,
    compute: Callable[..., Any] = run_inline,
    before_first_step: BeforeFirstStep | None = None,
) -> None:
    """Train as one worker to the end of the run, then export the model. Call `join_exchange` first.

    before_first_step: called before the first step, e.g. to observe landings.
    """
    if resume_step is not None:
        config = config.copy()
        config.init_from = None  # the checkpoint contains all weights
    corpus, trainer, validation = prepare_training(config, exchange, index, layout, compute)
    collect_as_usual()
    outer = trainer.outer
    plan = worker_settings(config, index, run_dir, ranks=layout.ranks.size)
    if layout.mesh is not None:
        emit(memory_event(outer, trainer, layout))
    if isinstance(outer, GatheredFollower):
        follow(outer, trainer, validation, plan)
        return
    attach_audits(config, trainer, exchange, corpus)
    worker = Worker(
        plan,
        trainer=trainer,
        outer=outer,
        exchange=exchange,
        validation=validation,
        emit=emit,
        check_stop=check_stop,
        stop_point=stop_point,
        sampler=make_sampler(config, corpus) if index == 0 else None,
        export=partial(export_while_training, config, corpus, outer, run_dir),
    )
    if config.scores.payloads:
        outer.observe_landings(scorer_of(config, corpus, worker))
    if before_first_step is not None:
        before_first_step(trainer, corpus)
    for warning in (*notes_of(corpus), *outer.warnings):
        worker.emit_from_first_worker(f"note: {warning}")
    if resume_step is not None:
        worker.resume(resume_step)
    commit = {"commit": digest.hex()} if (digest := first_commit(exchange)) else {}
    worker.emit("ready", params=parameters(trainer), size=exchange.size, peer=exchange.peer, **commit)
    worker.run()
    outer.island.run_on_followers("leave")
    export_model(config, corpus, outer, run_dir)
    worker.raise_if_diverged()


def prepare_training(
    config: DictConfig, exchange: Exchange, index: int, layout: RankLayout, compute: Callable[..., Any]
) -> tuple[Corpus, Trainer[Any], Tensor]:
    """Return a worker's corpus, trainer and share of the validation windows. Set the number of threads of a CPU."""
    corpus = make(config.data)
    trainer = make_trainer(config, corpus, exchange, index, layout, compute)
    if config.threads is None and trainer.device.type == "cpu":
        tokens = sequences_per_pass(config, layout.ranks.size) * config.inner.seq_len
        compute(cpu_share.limit_threads, parameters(trainer), tokens)
    windows = corpus.validation(seq_len=config.inner.seq_len, sequences=config.eval.sequences)
    return corpus, trainer, layout.local_windows(windows[index :: config.workers])


def parameters(trainer: Trainer[Any]) -> int:
    """Return the number of trained parameters."""
    return sum(p.numel() for p in trainer.params)


def scorer_of(config: DictConfig, corpus: Corpus, worker: Worker) -> PayloadScorer:
    """Return the scorer of a worker. Its forward passes are as large as those of an inner step."""
    return make_scorer(
        corpus,
        worker.trainer,
        payloads=config.scores.payloads,
        windows=config.scores.windows,
        seq_len=config.inner.seq_len,
        seed=config.seed,
        batch=sequences_per_pass(config, worker.ranks.size),
        assigned=config.assignment == "by_round" and worker.outer.schedule.delay == 0,
        emit=worker.emit,
    )


def export_model(config: DictConfig, corpus: Corpus, outer: OuterLoop, run_dir: Path) -> None:
    """Write the slow weights, and the last means of averaged buffers, as a Hugging Face model.

    If another worker has already done so, nothing is written. All ranks of a sharded island must call this.
    """
    is_first = not (dist.is_initialized() and dist.get_rank())  # transformers lets only rank 0 write weights
    slow = outer.island.full_tensors(outer.slow, keep=is_first)
    if not is_first:
        return
    outer.before_update()
    with run_once(run_dir / EXPORTED, f"{outer.slow_hash:016x}") as is_own, outer.buffers.temporary_means():
        if is_own:
            export_hf(unsharded_model(config, corpus, outer.model), slow, corpus.tokenizer(), run_dir / MODEL)


def export_while_training(config: DictConfig, corpus: Corpus, outer: OuterLoop, run_dir: Path) -> None:
    """Write the slow weights as a Hugging Face model. The random state is restored, so training is not affected."""
    random_state = rng.get_state()
    export_model(config, corpus, outer, run_dir)
    rng.set_state(random_state)


def unsharded_model(config: DictConfig, corpus: Corpus, model: Module) -> Module:
    """Return the model itself if it is not sharded, else an unsharded model with the same buffers."""
    if not is_sharded(model):
        return model
    unsharded, names = make_model(config, corpus), dict(model.named_buffers())
    unsharded.load_state_dict({name: x for name, x in model.state_dict().items() if name in names}, strict=False)
    return unsharded


def memory_event(outer: HoldsMemory, trainer: Trainer, layout: RankLayout) -> Event:
    """Return a status event that states how much memory this rank will need for training."""
    memory = estimate(outer, trainer.optimizer)
    return {
        "event": "status",
        "worker": layout.island,
        "step": 0,
        "text": f"island {layout.island} rank {layout.ranks.rank}: {memory}",
    }


def worker_settings(config: DictConfig, index: int, run_dir: Path, *, ranks: int) -> WorkerSettings:
    """Return the settings of a worker with `ranks` ranks. Evaluation passes are as large as those of an inner step."""
    return WorkerSettings(
        index=index,
        run_dir=run_dir,
        rounds=config.rounds,
        eval_every=config.eval.every,
        eval_batch=sequences_per_pass(config, ranks),
        checkpoint_every=config.checkpoint.every,
        export_every=config.checkpoint.hf_every if index == 0 else 0,
        keep_payload_rounds=config.keep_payload_rounds,
        log_every=config.log_every,
        max_failed_rounds=config.max_failed_rounds,
    )


def sequences_per_pass(config: DictConfig, ranks: int) -> int:
    """Return the maximum number of sequences of a forward pass on each of the `ranks` ranks of a worker."""
    batch = max(1, config.inner.batch // ranks)
    return min(batch, config.inner.get("micro_batch") or batch)


@contextmanager
def run_once(path: Path, what: str) -> Iterator[bool]:
    """Let one process at a time enter the block, and yield whether this process must do the task `what`.

    The file `path` contains the name of the task that was completed last: if it is `what`, False is yielded. If the
    block raises or the process is killed, the task does not count as completed.

    Raises UserError if the file system has no locks.
    """
    with path.open("a+") as file:
        lock_file(file, fcntl.LOCK_EX)  # released at the latest when the process ends
        file.seek(0)
        is_own = file.read() != what
        yield is_own
        if is_own:
            file.truncate(0)
            file.write(what)
