"""Measure a recipe for `outerloop plan` by running its real parts on models of a few hundred thousand parameters.

message   size in bytes = frame + slope · parameters, computed from the packed messages of two models. It is too small
          for models with many small tensors, whose chunks are not full: by 16 % for model=nano
memory    bytes per parameter of the weights and gradients, of the state of the parts, and of a round
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import torch
from hydra.utils import get_object
from omegaconf import DictConfig
from torch import Tensor

from outerloop import wire
from outerloop.config import load
from outerloop.config.build import capabilities
from outerloop.config.instantiate import make
from outerloop.core.build_loop import STATE_DTYPES
from outerloop.core.codec import UpdateCodec, schema_of
from outerloop.core.pipeline.dense import DensePipeline
from outerloop.core.pipeline.fused import FusedPipeline
from outerloop.plan.scenario import Method
from outerloop.replica.state_size import momentum_share, residual_share, tree_bytes
from outerloop.types import Tensors, UserError

NAME = "layers.0.weight"
SIDE = 512
"""Number of rows and columns of the matrix that stands in for a model. The matrix has 64 chunks of 4096 values."""
LATE = 1_000_000
"""Number of a round in which every warm-up has ended."""
FLOAT = 4


def recipe_settings(name: str, *, sync_every: int | None, delay: int | None, density: float | None) -> DictConfig:
    """Return a recipe's settings, overridden by the arguments that apply to it. Raises UserError if they are invalid.

    `sync_every` and `delay` do not apply to a recipe that exchanges after every step. `delay` is reduced if necessary,
    so that a round lands before the next launch. With a delay, merge_local=0.0 becomes "carry", which keeps the inner
    steps between launch and landing. `density`: fraction of values that a compressor keeps in each chunk.
    """
    settings, overrides = load.load([f"recipe={name}"]), [f"recipe={name}"]
    if settings.schedule.sync_every > 1 and (sync_every or delay is not None):
        steps = sync_every or settings.schedule.sync_every
        max_delay = max(0, steps // settings.schedule.get("fragments", 1) - 1)
        late = min(settings.schedule.delay if delay is None else delay, max_delay)
        overrides += [f"schedule.sync_every={steps}", f"schedule.delay={late}"]
        if late and settings.merge_local == 0:
            overrides.append("merge_local=carry")
    if density is not None:
        overrides += [
            f"compress.{path}k={max(1, round(density * chunk))}" for path, chunk in sparse_parts(settings.compress)
        ]
    return load.load(overrides) if overrides[1:] else settings


def sparse_parts(node: Any, path: str = "") -> Iterator[tuple[str, int]]:
    """Yield (dotted path ending in a dot, chunk size) for each part that keeps k values per chunk."""
    if isinstance(node, DictConfig):
        if "_target_" in node and getattr(get_object(node["_target_"]), "keeps_k_per_chunk", False):
            yield path, node["chunk"]
        for key, child in node.items():
            yield from sparse_parts(child, path + str(key) + ".")


def plan_method(settings: DictConfig, *, params: float, peers: int) -> Method:
    """Return the properties of a recipe that the planner needs. Raises UserError if a part rejects its settings."""
    schedule = make(settings.schedule)
    frame, slope = message_bytes(settings)
    memory = {part: bytes_each * params for part, bytes_each in memory_per_param(settings, peers=peers).items()}
    exchange: Literal["gather", "gossip"] = "gather" if capabilities(settings).agrees else "gossip"
    return Method(
        name=settings.recipe,
        exchange=exchange,
        sync_every=schedule.sync_every,
        delay=schedule.delay,
        fragments=schedule.fragments,
        payload_bytes=frame + slope * params / schedule.fragments,
        params=params,
        memory=memory,
        state_bytes=memory["slow weights"] + memory["outer optimizer"],
        overrides=tuple(overrides_for(settings, f"swarm_{exchange}")),
    )


def overrides_for(settings: DictConfig, exchange: str) -> Iterator[str]:
    """Yield the overrides (key=value) without which a recipe has another exchange or loses the steps of its delay."""
    if f".{exchange}." not in settings.exchange._target_:
        yield f"exchange={exchange}"
    if settings.merge_local == "carry":
        yield "merge_local=carry"


def message_bytes(settings: DictConfig) -> tuple[float, float]:
    """Return the size of a message without parameters, and the size that each parameter adds, in bytes."""
    short, long = (len(message(settings, weights(rows))) for rows in (SIDE, 2 * SIDE))
    slope = (long - short) / SIDE**2
    return short - slope * SIDE**2, slope


def weights(rows: int) -> Tensors:
    """Return a Gaussian matrix (rows, SIDE) that stands in for a model's weights."""
    return {NAME: torch.randn(rows, SIDE, generator=torch.Generator().manual_seed(0))}


def message(settings: DictConfig, fast: Tensors) -> bytes:
    """Return the message of a peer whose slow weights are zero and whose fast weights are `fast`."""
    method = make(settings.method)
    slow = {name: torch.zeros_like(x) for name, x in fast.items()}
    method.init(slow)
    offered, payload = method.outgoing(slow, fast), UpdateCodec(make(settings.compress), seed=0)
    parts = {name: payload.encode(LATE, name, x, leads=False) for name, x in offered.items()}
    header = wire.Header(LATE, 0, 0, wire.schema_hash(schema_of(offered)), 0, "0" * 56)
    return wire.pack(header, parts)


def memory_per_param(settings: DictConfig, *, peers: int) -> dict[str, float]:
    """Return a map from component of memory to its bytes per parameter on the training device.

    Activations and inputs are not included.
    """
    dtype, x = STATE_DTYPES[settings.state_dtype], weights(SIDE)[NAME]
    return {
        "weights": FLOAT,
        "gradients": FLOAT,
        "inner optimizer": tree_bytes(inner_state(settings)) / x.numel(),
        "slow weights": dtype.itemsize,
        "outer optimizer": dtype.itemsize * momentum_share(make(settings.method), dtype),
        "residual": dtype.itemsize * residual_share(make(settings.feedback), dtype),
        "a round": round_memory(settings, x, peers=peers),
    }


def inner_state(settings: DictConfig) -> Any:
    """Return the inner optimizer's state after one step, or None if the method exchanges gradients instead."""
    if not load.inner_optimizer(settings):
        return None
    weight = torch.nn.Parameter(weights(SIDE)[NAME])
    weight.grad = torch.ones_like(weight)
    optimizer = make(settings.inner.optimizer)([(NAME, weight)])
    optimizer.step()
    return optimizer.state_dict()


def round_memory(settings: DictConfig, x: Tensor, *, peers: int) -> float:
    """Return the bytes per parameter that a round needs for its inputs, messages and result while it is applied.

    The fused pipeline stores the positions and values of every peer's kept entries, and a copy of all fast weights if
    the round is applied to a copy.
    The dense pipeline stores three float32 copies of the fragment (the update, the values sent, and the mean) and, if
    rounds are applied with a delay, a copy of all fast weights.
    """
    schedule, compress = make(settings.schedule), make(settings.compress)
    method = make(settings.method)
    method.init({NAME: x})
    dense = DensePipeline(
        method=method,
        feedback=make(settings.feedback),
        aggregate=make(settings.aggregate),
        codec=UpdateCodec(compress, seed=0),
        peer="",
    )
    late = 0 < schedule.delay < schedule.sync_every
    on_copy = late or settings.merge_local not in (0, "carry")
    fused = FusedPipeline(dense, on_copy=on_copy, slow_moves=schedule.delay >= schedule.sync_every)
    if not fused.takes(x, x.dtype):
        return 3 * FLOAT / schedule.fragments + FLOAT * late
    codec = fused.sparse_of(x)
    return 2 * FLOAT * peers * codec.k / codec.chunk + FLOAT * on_copy


def chosen_recipes(names: str) -> list[str]:
    """Return the recipes in a comma-separated list, or every recipe for "all". Raises UserError for an unknown name."""
    recipes = load.groups()["recipe"]
    chosen = recipes if names == "all" else names.split(",")
    for name in chosen:
        if name not in recipes:
            raise UserError(
                f"--recipe {name} is not one of {', '.join(recipes)}:"
                " pass names separated by commas, for example --recipe sparseloco,diloco"
            )
    return chosen
