"""Check a configuration before the run writes or starts anything, by building its parts and a trial model."""

from __future__ import annotations

from pathlib import Path

import torch
from omegaconf import DictConfig
from torch import Size
from torch import distributed as dist
from torch.nn import Module

from outerloop import wire
from outerloop.aggregate.exclusion_votes import ExclusionVotes
from outerloop.aggregate.screen import screen_of
from outerloop.config.audits import check_audits
from outerloop.config.build import capabilities, make_optimizer_factory, make_sampler
from outerloop.config.initial_weights import read_weights
from outerloop.config.instantiate import make
from outerloop.config.model import make_model
from outerloop.core import compatibility
from outerloop.core.build_loop import agrees_on_rounds
from outerloop.inner.data.assigned_stream import training_text
from outerloop.inner.data.corpus import Corpus
from outerloop.inner.trainer import autocast_context, pick_device
from outerloop.protocols import OuterMethod, Schedule
from outerloop.replica.island import trainable_parameters
from outerloop.state import checkpoint
from outerloop.types import Capabilities, UserError

MAX_LANES = 64
"""Maximum number of shards of an island in one payload. The limit on payloads includes a tensor table for each."""


def check_parts(config: DictConfig) -> Module:
    """Instantiate all parts that are cheap to build, to report mistakes before anything is written or started.

    Weights of `init_from` are checked unless the run resumes from a checkpoint, which needs none. Return the trial
    model. Raises UserError if a part rejects its settings or is incompatible with another part.
    """
    if allow := config.exchange.get("allow"):
        from outerloop.swarm.access.access_control import (
            AllowList,  # imports hivemind, which a run without an allow-list may not need
        )

        AllowList(allow)
    parts = {axis: make(config[axis]) for axis in ("method", "compress", "feedback", "aggregate", "schedule")}
    exchange = capabilities(config)
    compatibility.refuse(**parts, exchange=exchange, eager=config.eager, merge_local=config.merge_local)
    check_audits(config)
    screen_of(config.clip, method=parts["method"], exchange=exchange, eager=config.eager)
    ExclusionVotes(on=config.exclude_accused, agrees=agrees_on_rounds(exchange, eager=config.eager))
    if config.exclude_accused and config.island.kind == "sharded":
        raise UserError(
            "exclude_accused=true needs one message per peer and round, but with island=sharded each shard has its own:"
            " set exclude_accused=false"
        )
    check_scores(config, method=parts["method"], schedule=parts["schedule"], exchange=exchange)
    if config.inner.optimizer:
        make_optimizer_factory(config)
    autocast_context(config.inner.precision, pick_device(config.inner.device, 0))
    corpus = make(config.data)
    check_training_text(config, corpus)
    make_sampler(config, corpus)
    check_validation(config, corpus, dist.get_world_size() if dist.is_initialized() else config.workers)
    model = trial_model(config, corpus)
    if config.init_from and not (config.run_dir and checkpoint.sealed(Path(config.run_dir))):
        read_weights(model, config.init_from)
    shapes = {name: p.shape for name, p in trainable_parameters(model).items()}
    compatibility.refuse_model(schedule=make(config.schedule), compress=parts["compress"], shapes=shapes)
    return model


def check_scores(config: DictConfig, *, method: OuterMethod, schedule: Schedule, exchange: Capabilities) -> None:
    """Raise UserError, naming the option to change, if scores.payloads is set but payloads cannot be scored."""
    why = reason_against_scores(config, method=method, schedule=schedule, exchange=exchange)
    if config.scores.payloads and why:
        raise UserError(f"scores.payloads={config.scores.payloads} {why}, or scores.payloads=0")


def reason_against_scores(
    config: DictConfig, *, method: OuterMethod, schedule: Schedule, exchange: Capabilities
) -> str:
    """Return why payloads cannot be scored, and which option to change, or "" if they can."""
    needed = {
        "exchange=swarm_gather or exchange=inprocess": exchange.agrees,
        "island=single": config.island.kind == "single",
        "schedule=every_h": schedule.fragments == 1,
        "eager=false": not config.eager,
        "a recipe that sends pseudo-gradients and keeps slow weights equal, such as recipe=sparseloco": method.shared
        and (method.reads, method.sends) == ("weights", "differences"),
    }
    missing = next((option for option, is_set in needed.items() if not is_set), None)
    if missing is None:
        return ""
    return (
        f"needs {missing}, because a score is the effect of one payload on all slow weights, which peers share:"
        f" set {missing}"
    )


def limit_payloads(config: DictConfig, model: Module) -> None:
    """Limit exchange.max_blob_bytes to an upper bound on the size of this model's messages.

    The bound is twice the size limit of the wire format, because some methods send both fast and slow weights, and
    because values take more bytes with state_dtype=float64.
    """
    if "max_blob_bytes" in config.exchange:
        shapes = {name: x.shape for name, x in [*trainable_parameters(model).items(), *model.named_buffers()]}
        tables = wire.size_limit(dict.fromkeys(shapes, Size([0])))
        max_bytes = 2 * (wire.size_limit(shapes) + MAX_LANES * tables)
        config.exchange.max_blob_bytes = min(config.exchange.max_blob_bytes or max_bytes, max_bytes)


def trial_model(config: DictConfig, corpus: Corpus) -> Module:
    """Return the model on the meta device, where its weights use no memory.

    If the model cannot be created there (as with `from_pretrained`), return the real model. Raises UserError if that
    fails too.
    """
    try:
        return meta_model(config, corpus)
    except UserError:
        return make_model(config, corpus)


def meta_model(config: DictConfig, corpus: Corpus) -> Module:
    """Return the model on the meta device, where its weights use no memory. Raises UserError if that fails."""
    with torch.device("meta"):
        return make_model(config, corpus)


def check_training_text(config: DictConfig, corpus: Corpus) -> None:
    """Check that the training text can be divided among the peers, and is long enough. Raises UserError if not."""
    seq_len = config.inner.seq_len
    if config.scores.payloads:
        training_text(corpus, seq_len=seq_len, option="scores.payloads")
    if config.assignment == "by_round":
        training_text(corpus, seq_len=seq_len)
    else:
        peers = config.exchange.get("peers", config.workers)
        corpus.stream(rank=peers - 1, size=peers, batch=1, seq_len=seq_len, seed=config.seed)


def check_validation(config: DictConfig, corpus: Corpus, processes: int) -> None:
    """Check that the data provides at least one validation window per process. Raises UserError if not."""
    seq_len = config.inner.seq_len
    windows = len(corpus.validation(seq_len=seq_len, sequences=config.eval.sequences))
    if config.eval.sequences < processes:
        raise UserError(
            f"eval.sequences={config.eval.sequences} validation windows are too few, because each of {processes}"
            f" processes needs one: set eval.sequences={processes}"
        )
    if windows < processes:
        raise UserError(
            f"the validation text has {windows} windows of inner.seq_len={seq_len}, but each of {processes} processes"
            f" needs one: set inner.seq_len={max(1, seq_len * windows // processes)}"
        )
