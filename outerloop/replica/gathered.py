"""An island that meets others as whole tensors: the leader holds the outer state, the others lend a hand.

    leader reads:    every rank gathers one parameter after another; only the leader keeps what it gets
    leader writes:   the leader's full tensors go out one after another; every rank keeps its shard

Islands of unequal sizes can meet so, and one of many ranks meets one of a single process; slow weights, residual and
momentum are the leader's alone, whole. Where all islands are cut alike, lanes (island.py) need neither the gathering
nor the room. The other ranks follow: they serve the leader after every inner step, until it lets them go on.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import Module

from outerloop.replica.island import Island, widened
from outerloop.replica.rank_group import RankGroup
from outerloop.replica.sharding import shard_of, whole
from outerloop.types import LeaderFailed, Tensors, UserError


class Gathered(Island):
    """At the leader, the parameters as full tensors. What is read is a copy.

    Args:
        model: under `fully_shard`, or a copy of it in every process (DDP).
        ranks: all processes of the island.
        state_device: of the leader's outer state, if that shall not lie with its model.

    Raises:
        UserError: if the model has no trainable parameter.
    """

    in_place = in_lanes = False

    def __init__(self, model: Module, ranks: RankGroup, *, state_device: torch.device | None = None) -> None:
        super().__init__(model, state_device=state_device)
        self.ranks = ranks

    def local(self, name: str) -> Tensor:
        """A parameter as it is, whole."""
        return self.pick([name])[name]

    def layouts(self) -> dict[str, str]:
        """Shapes; how an island cuts them is its own affair."""
        return {name: f"{list(p.shape)}" for name, p in self.params.items()}

    def read(self, names: Sequence[str], what: Literal["weights", "gradients"]) -> Tensors:
        """Fast weights or gradients as float32 or wider, whole."""
        self.tell("gather", names=list(names), what=what)
        return {name: widened(x) for name, x in self.gather(names, what).items()}

    def pick(self, names: Iterable[str]) -> Tensors:
        """Fast weights in the model's own precision, whole."""
        names = list(names)
        self.tell("gather", names=names, what="weights")
        return self.gather(names, "weights")

    def write(self, slow: Tensors, *, merge_local: float) -> None:
        """θ ← merge_local · θ + (1 − merge_local) · φ, of every rank."""
        self.tell("scatter", types={name: str(x.dtype) for name, x in slow.items()}, merge_local=merge_local)
        self.scatter(slow, merge_local)

    def add(self, tensors: Tensors, *, times: float) -> None:
        """θ ← θ + times · x, of every rank."""
        now = self.pick(tensors)
        self.write({name: torch.add(now[name], x, alpha=times) for name, x in tensors.items()}, merge_local=0.0)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """The other ranks serve meanwhile; then they go on with their inner steps, or raise because this one did."""
        try:
            yield
        except Exception as error:
            self.tell("stop", reason=str(error) or type(error).__name__, mistake=isinstance(error, UserError))
            raise
        self.tell("go on")

    def call(self, work: str, **details: Any) -> None:
        """The other ranks do their part of this work; theirs is no call."""
        if self.ranks.leads:
            self.tell(work, **details)

    def complete(self, slow: Tensors, *, keep: bool) -> Tensors:
        """They are whole."""
        return {name: x.cpu() for name, x in slow.items()} if keep else {}

    def tell(self, order: str, **details: Any) -> None:
        """One order to the followers."""
        self.ranks.spread(json.dumps({"do": order} | details).encode())

    @torch.no_grad()
    def gather(self, names: Iterable[str], what: str) -> Tensors:
        """All ranks call it; the leader gets the full tensors, the others nothing."""
        kept = {}
        for name in names:
            full = whole(self.params[name], of_gradient=what == "gradients")
            if self.ranks.leads:
                kept[name] = self.brought(full)
        return kept

    @torch.no_grad()
    def scatter(self, tensors: Tensors, merge_local: float) -> None:
        """All ranks call it; `tensors` are the leader's, and of any content with the others."""
        for name, x in tensors.items():
            p = self.params[name]
            part = shard_of(x, p) if hasattr(p, "device_mesh") else self.ranks.same(x.to(p.device))
            super().write({name: part}, merge_local=merge_local)


class Follower:
    """What a rank has that does not lead: attach it as one attaches an outer loop."""

    announced = False

    def __init__(self, island: Gathered) -> None:
        self.island = island

    def before_update(self) -> float:
        """Nothing reads the weights meanwhile."""
        return 0.0

    def after_inner_step(self, samples: int) -> list[Any]:
        """Serve the leader; there is never a report."""
        self.serve()
        return []

    def serve(self) -> None:
        """Take part in what the leader reads and writes, until it lets this rank go on. Raises as `hear` does."""
        while self.hear()["do"] != "go on":
            pass

    def hear(self) -> dict[str, Any]:
        """The leader's next order; one to read or to write has been followed.

        Raises UserError when the leader has raised one, LeaderFailed when it has raised anything else.
        """
        order = json.loads(self.island.ranks.spread(b""))
        if order["do"] == "gather":
            self.island.gather(order["names"], order["what"])
        elif order["do"] == "scatter":
            for name, dtype in order["types"].items():
                p = self.island.params[name]
                space = torch.empty(p.shape, dtype=getattr(torch, dtype.removeprefix("torch.")), device=p.device)
                self.island.scatter({name: space}, order["merge_local"])
        elif order["do"] == "stop":
            raise (UserError if order["mistake"] else LeaderFailed)(order["reason"])
        return order
