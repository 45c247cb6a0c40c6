"""Build the objects of one worker from the configuration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from hydra.utils import get_class
from omegaconf import DictConfig
from torch.nn import Module
from torch.optim import Optimizer

from outerloop.config.initial_weights import load_initial_weights
from outerloop.config.instantiate import make
from outerloop.config.load import inner_optimizer
from outerloop.config.model import make_model
from outerloop.config.rank_layout import ALONE, LOCAL_RANK, RankLayout
from outerloop.config.run_directory import identity_file
from outerloop.config.shared_settings import samples_per_round, settings_to_compare
from outerloop.core import round_scheduler
from outerloop.core.outer_loop import OuterLoop
from outerloop.inner.data.corpus import Corpus
from outerloop.inner.gathered_follower import GatheredFollower
from outerloop.inner.lr_schedule import SCHEDULES
from outerloop.inner.text_sampler import TextSampler
from outerloop.inner.trainer import Trainer, pick_device
from outerloop.inner.training_stream import make_stream, order_seed
from outerloop.protocols import AdaptiveSchedule, Exchange, OuterMethod, Schedule
from outerloop.replica.gathered import Gathered
from outerloop.replica.island import Island, run_inline
from outerloop.state.part_states import load_part, unwrap_parts
from outerloop.swarm.corpus.folder import corpus_path
from outerloop.types import Capabilities, Round, UserError


def initial_peers(config: DictConfig) -> list[str]:
    """Return the configured addresses of running peers to join. The list is empty if the exchange has no addresses."""
    return list(config.exchange.get("initial_peers", []))


def peers_to_dial(config: DictConfig, run_dir: Path, worker: int = 0) -> list[str]:
    """Return the addresses of the peers that a worker contacts when it starts.

    These are exchange.initial_peers. If that is empty, they are the addresses that the worker stored when it was in the
    run before, as far as a peer answers there; a new worker has stored none. `run_dir`: folder of the worker's key.
    """
    from outerloop.swarm.membership.answering_peers import answering_peers  # imports hivemind, which only swarms need

    open_internet = bool(config.exchange.get("open_internet"))
    return initial_peers(config) or answering_peers(identity_file(run_dir, worker), open_internet=open_internet)


def make_peer_exchange(
    config: DictConfig,
    run_dir: Path,
    *,
    initial_peers: Sequence[str],
    worker: int = 0,
    lanes: int = 1,
    on_status: Callable[[str], None] | None = None,
) -> Exchange:
    """Create the exchange of this process.

    Values that are known only at run time, such as the path of the key file, are passed as those arguments that the
    yaml file of the exchange lists. `lanes`: number of shards in each message of this peer's island. `on_status`:
    called with status lines for the user.
    """
    node = config.exchange
    options = {
        "run": node.get("run") or "default",
        "worker": worker,
        "initial_peers": list(initial_peers),
        "identity_path": str(identity_file(run_dir, worker)),
        "on_status": on_status,
        "corpus": shared_corpus(config),
    } | (settings_to_compare(config, lanes=lanes) if "settings" in node else {})
    return make(node, **{name: value for name, value in options.items() if name in node})


def shared_corpus(config: DictConfig) -> str | None:
    """Return the folder of the training data that the peers of the run serve, or None with any other data."""
    data = config.data
    return str(corpus_path(data.folder, data.sha256)) if "sha256" in data else None


def make_sampler(config: DictConfig, corpus: Corpus) -> TextSampler | None:
    """Return the text sampler, or None if samples.every is 0.

    Raises UserError if the data has no tokenizer, or if the prompt is empty.
    """
    samples = config.samples
    if not samples.every:
        return None
    return TextSampler(
        every=samples.every,
        prompt=str(samples.prompt or ""),
        tokens=samples.tokens,
        window=config.inner.seq_len,
        tokenizer=corpus.tokenizer(),
    )


def make_outer_loop(
    config: DictConfig,
    model: Module,
    exchange: Exchange,
    *,
    rounds: int | None,
    steps: int | None = None,
    samples_per_round: int | None = None,
    island: Island | None = None,
    method: OuterMethod | None = None,
) -> OuterLoop:
    """Return the configured outer loop for a model.

    `rounds`: number of rounds, or None if there is no last round. `steps`, `samples_per_round`: as in OuterLoop.
    `method`: replaces the configured method, if given.
    """
    return OuterLoop(
        model,
        method=method or make(config.method),
        compress=make(config.compress),
        feedback=make(config.feedback),
        aggregate=make(config.aggregate),
        schedule=make(config.schedule),
        exchange=exchange,
        merge_local=config.merge_local,
        buffers=config.buffers,
        eager=config.eager,
        clip=config.clip,
        exclude_accused=config.exclude_accused,
        state_dtype=config.state_dtype,
        timeout_s=config.round_timeout_s,
        seed=config.seed,
        rounds=rounds,
        steps=steps,
        samples_per_round=samples_per_round,
        island=island or Island(model, state_device=state_device(config)),
    )


def make_trainer(
    config: DictConfig,
    corpus: Corpus,
    exchange: Exchange,
    index: int,
    layout: RankLayout = ALONE,
    compute: Callable[..., Any] = run_inline,
) -> Trainer[OuterLoop | GatheredFollower]:
    """Return the inner trainer of one local worker, with its outer loop attached. `exchange` must have joined."""
    inner, ranks = config.inner, layout.ranks
    model = make_model(config, corpus)
    if config.get("init_from"):
        load_initial_weights(model, config.init_from)
    model = model.to(pick_device(inner.device, index if layout is ALONE else LOCAL_RANK))
    forward: Any = torch.compile(model) if inner.compile else layout.wrap(model)  # an island is never compiled
    outer = make_rank_outer_loop(layout, config, model, exchange, compute)
    # random numbers drawn during training differ between workers, and between the ranks of an island
    torch.manual_seed(order_seed(exchange, config.seed) + 1 + exchange.rank + exchange.size * ranks.rank)
    stream = make_stream(
        corpus,
        exchange,
        ranks,
        outer,
        assignment=config.assignment,
        seed=config.seed,
        batch=inner.batch,
        seq_len=inner.seq_len,
    )
    return Trainer(
        model,
        forward=forward,
        ranks=ranks,
        stream=stream,
        outer=outer,
        optimizer=make_optimizer_factory(config) if inner_optimizer(config) else None,
        lr_factor=make_lr_factor(config, outer.schedule),
        warmup_steps=inner.warmup_steps,
        accumulate=inner.accumulate,
        micro_batch=inner.get("micro_batch"),
        clip_norm=inner.clip_norm,
        precision=inner.precision,
    )


def state_device(config: DictConfig) -> torch.device | None:
    """Return the device of the outer state, or None to keep the outer state on the model's device."""
    return torch.device("cpu") if config.state_device == "cpu" else None


def make_rank_outer_loop(
    layout: RankLayout, config: DictConfig, model: Module, exchange: Exchange, compute: Callable[..., Any]
) -> OuterLoop | GatheredFollower:
    """Return the outer loop of this rank, or a follower if another rank of its island holds the outer state."""
    device = state_device(config)
    if layout.kind != "gathered":
        island = Island(model, state_device=device, compute=compute)
    else:
        island = Gathered(model, layout.ranks, state_device=device)
        if layout.is_follower:
            return GatheredFollower(island, model, make(config.schedule))
    return make_outer_loop(
        config, model, exchange, rounds=config.rounds, samples_per_round=samples_per_round(config), island=island
    )


def make_optimizer_factory(config: DictConfig) -> Callable[..., Optimizer]:
    """Return the factory of the inner optimizer, after testing it on a single parameter.

    Raises UserError if the optimizer rejects its settings.
    """
    factory = make(config.inner.optimizer)
    try:
        factory([("layers.0.weight", torch.nn.Parameter(torch.zeros(1, 1)))])
    except (ValueError, TypeError) as error:
        raise UserError(f"inner.optimizer: {error}") from error
    return factory


def make_lr_factor(config: DictConfig, schedule: Schedule) -> Callable[[int], float]:
    """Return a function that maps an inner step to its learning-rate factor: warm-up, then inner.lr_schedule.

    The decay ends with the run. Each call asks the schedule for its current estimate of the total number of inner
    steps.
    """
    factor = SCHEDULES[config.inner.get("lr_schedule", "cosine")]
    return lambda step: factor(
        step,
        warmup_steps=config.inner.warmup_steps,
        total_steps=schedule.inner_steps(config.rounds),
        floor=config.inner.lr_floor,
    )


def make_schedule(config: DictConfig, saved_outer: Callable[[], dict[str, Any] | None]) -> Schedule:
    """Return the configured schedule. If it is adaptive, restore its state from the saved state of an outer loop.

    `saved_outer` returns that saved state, or None if the run starts from scratch. It is called only for adaptive
    schedules. Raises UserError if the saved state does not fit the schedule.
    """
    schedule = make(config.schedule)
    if isinstance(schedule, AdaptiveSchedule) and (state := saved_outer()):
        load_part("schedule", schedule, unwrap_parts(state).get("schedule", {}))
    return schedule


def capabilities(config: DictConfig) -> Capabilities:
    """Return the capabilities of the configured exchange, without constructing it."""
    info: Capabilities = get_class(config.exchange._target_).info  # type: ignore[attr-defined]
    return info


def first_round(config: DictConfig, saved_outer: Callable[[], dict[str, Any] | None], inner_step: int) -> Round:
    """Return the first round that a run exchanges if it starts or resumes at inner step `inner_step`.

    This is the first round in flight, or else the first one that is launched after `inner_step`.

    `saved_outer` returns the saved state of an outer loop, or None if the run starts from scratch. It is called only
    for schedules with a delay, and for adaptive schedules.
    """
    saved_outer = cache(saved_outer)
    schedule = make_schedule(config, saved_outer)
    state = saved_outer() if schedule.delay else None
    return round_scheduler.first_round(schedule, unwrap_parts(state)["in_flight"] if state else [], inner_step)
