"""A recipe as the planner sees it, measured: its real parts on a replica of a few hundred thousand parameters.

    message   wire.pack of two sizes: bytes = frame + slope · parameters
    memory    bytes a parameter of what the parts really hold after one round

N parameters, M kept values of a tensor, P peers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import torch
from hydra.utils import get_class
from omegaconf import DictConfig
from torch import Tensor

from outerloop import wire
from outerloop.config import load
from outerloop.config.build import make
from outerloop.core.codec import UpdateCodec, schema_of
from outerloop.core.loop import STATE_DTYPES
from outerloop.core.pipeline_dense import DensePipeline
from outerloop.core.pipeline_fused import FusedPipeline
from outerloop.feedback.local_error import LocalError
from outerloop.plan.scenario import Method
from outerloop.protocols import Exchange
from outerloop.replica.state_size import bytes_of, momentum_share, residual_share
from outerloop.types import Tensors, UserError

NAME = "layers.0.weight"
SIDE = 512
"""Of the matrix that stands for a model: 64 chunks of 4096 values."""
LATE = 1_000_000
"""A round after every warm-up."""
FLOAT = 4


def recipe_of(name: str, *, sync_every: int | None, delay: int | None, density: float | None) -> DictConfig:
    """The settings of a recipe, with what was asked for where it has a place. Raises UserError.

    A method that meets every step goes on to; `delay` is cut to what lies before the next launch.
    """
    own, typed = load.load([f"recipe={name}"]), [f"recipe={name}"]
    if own.schedule.sync_every > 1 and (sync_every or delay is not None):
        steps = sync_every or own.schedule.sync_every
        longest = -(-steps // own.schedule.get("fragments", 1)) - 1
        late = own.schedule.delay if delay is None else delay
        typed += [f"schedule.sync_every={steps}", f"schedule.delay={min(late, longest)}"]
    if density is not None:
        typed += [f"compress.{path}k={kept_of(density, chunk)}" for path, chunk in sparse_parts(own.compress)]
    return load.load(typed) if typed[1:] else own


def sparse_parts(node: Any, path: str = "") -> Iterator[tuple[str, int]]:
    """Where in a compressor's settings there is a k of a chunk: its dotted place, ending in a dot, and the chunk."""
    if isinstance(node, DictConfig):
        if "k" in node and "chunk" in node:
            yield path, node["chunk"]
        for key, below in node.items():
            yield from sparse_parts(below, path + str(key) + ".")


def kept_of(density: float, chunk: int) -> int:
    """How many of a chunk."""
    return max(1, round(density * chunk))


def method_of(settings: DictConfig, *, params: float, peers: int) -> Method:
    """What the planner needs to know. Raises UserError."""
    schedule = make(settings.schedule)
    frame, slope = message_bytes(settings)
    memory = {part: bytes_each * params for part, bytes_each in memory_of(settings, peers=peers).items()}
    return Method(
        name=settings.recipe,
        exchange="gather" if cast(Exchange, get_class(settings.exchange._target_)).agrees else "gossip",
        sync_every=schedule.sync_every,
        delay=schedule.delay,
        fragments=schedule.fragments,
        payload_bytes=frame + slope * params / schedule.fragments,
        params=params,
        memory=memory,
        state_bytes=memory["slow weights"] + memory["outer optimizer"],
    )


def message_bytes(settings: DictConfig) -> tuple[float, float]:
    """Bytes of a message about nothing, and for each parameter more."""
    short, long = (len(message(settings, weights(rows))) for rows in (SIDE, 2 * SIDE))
    slope = (long - short) / SIDE**2
    return short - slope * SIDE**2, slope


def weights(rows: int) -> Tensors:
    """Gaussian (rows, SIDE) in place of a model."""
    return {NAME: torch.randn(rows, SIDE, generator=torch.Generator().manual_seed(0))}


def message(settings: DictConfig, fast: Tensors) -> bytes:
    """What a peer would send that has moved by this much."""
    method = make(settings.method)
    slow = {name: torch.zeros_like(x) for name, x in fast.items()}
    method.init(slow)
    offered, payload = method.outgoing(slow, fast), UpdateCodec(make(settings.compress), seed=0)
    parts = {name: payload.encode(LATE, name, x, leads=False) for name, x in offered.items()}
    header = wire.Header(LATE, 0, 0, wire.schema_hash(schema_of(offered)), 0, "0" * 56)
    return wire.pack(header, parts)


def memory_of(settings: DictConfig, *, peers: int) -> dict[str, float]:
    """Part -> bytes a parameter on the device that trains. Activations and the inputs are not among them."""
    dtype, x = STATE_DTYPES[settings.state_dtype], weights(SIDE)[NAME]
    return {
        "weights": FLOAT,
        "gradients": FLOAT,
        "inner optimizer": bytes_of(inner_state(settings)) / x.numel(),
        "slow weights": dtype.itemsize,
        "outer optimizer": dtype.itemsize * momentum_share(make(settings.method), dtype),
        "residual": dtype.itemsize * residual_share(make(settings.feedback), dtype),
        "a round": in_flight(settings, x, peers=peers),
    }


def inner_state(settings: DictConfig) -> Any:
    """Of the inner optimizer after one step; none where the gradients themselves are sent."""
    if not load.stepped_inside(settings):
        return None
    weight = torch.nn.Parameter(weights(SIDE)[NAME])
    weight.grad = torch.ones_like(weight)
    optimizer = make(settings.inner.optimizer)([(NAME, weight)])
    optimizer.step()
    return optimizer.state_dict()


def in_flight(settings: DictConfig, x: Tensor, *, peers: int) -> float:
    """Bytes a parameter of what was offered, what all sent and what comes of it, while a round lands.

    Through the two kernels: position and value of everything kept, of every peer; and of all fragments what was not
    sent where it stays in the fast weights, or their copy where they do not become the slow ones. Else three times the
    fragment in float32: what was offered, what of it was sent, the mean. With a delay a copy of all fast weights.
    """
    schedule, compress = make(settings.schedule), make(settings.compress)
    plain = DensePipeline(
        method=make(settings.method),
        feedback=make(settings.feedback),
        aggregate=make(settings.aggregate),
        payload=UpdateCodec(compress, seed=0),
        peer="",
    )
    late = 0 < schedule.delay < schedule.sync_every
    fused = FusedPipeline(plain, aside=late or settings.merge_local not in (0, "carry"))
    if schedule.delay >= schedule.sync_every or not fused.takes(x, x.dtype):
        return 3 * FLOAT / schedule.fragments + FLOAT * late
    topk = fused.topk(x)
    copies = fused.aside + isinstance(fused.feedback, LocalError)
    return 2 * FLOAT * peers * topk.k / topk.chunk + FLOAT * copies


def chosen(names: str) -> list[str]:
    """ "a,b" -> recipes; "all" -> every one there is. Raises UserError."""
    known = load.groups()["recipe"]
    wanted = known if names == "all" else names.split(",")
    for name in wanted:
        if name not in known:
            raise UserError(f"--recipe {name} is not one of {', '.join(known)}: pass --recipe sparseloco,diloco")
    return wanted
