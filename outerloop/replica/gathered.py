"""Exchange full tensors between islands: the leader of an island holds its outer state, and the other ranks assist.

    leader reads:    all ranks gather one parameter at a time; only the leader keeps the result
    leader writes:   the leader's full tensors are sent one at a time; every rank keeps its shard

Islands of different sizes can take part in the same rounds, even an island of many ranks and a single process. Only the
leader holds slow weights, residual and momentum, unsharded. The other ranks are followers: after every inner step, they
execute the leader's commands until it lets them continue. If all islands are sharded in the same way, lanes (island.py)
are better, because they need no gathering and no memory for full tensors.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, Self

import torch
from torch import Tensor
from torch.nn import Module

from outerloop.replica.island import Island, hash_parameters, to_float32
from outerloop.replica.rank_group import RankGroup
from outerloop.replica.sharding import full_tensor, shard_like
from outerloop.types import LeaderFailed, Tensors, UserError


class Gathered(Island):
    """An island whose leader reads and writes parameters as full tensors. All tensors that are read are copies.

    Args:
        model: a model under `fully_shard`, or one with a copy in every process (DDP).
        ranks: all processes of the island.
        state_device: device of the leader's outer state, or None for the model's device.
        hash_frozen: whether to hash the frozen parameters, which islands that join a run compare.

    Raises:
        UserError: if the model has no trainable parameter.
    """

    in_place = False

    def __init__(
        self,
        model: Module,
        ranks: RankGroup,
        *,
        state_device: torch.device | None = None,
        hash_frozen: bool = True,
    ) -> None:
        super().__init__(model, state_device=state_device)
        self.ranks, self.is_sharded = ranks, False
        frozen = (
            (name, f"{list(p.shape)}", full_tensor(p, of_gradient=False))
            for name, p in self.frozen_parameters().items()
        )
        # a collective: computed here, because all ranks are here
        self.frozen_hash = hash_parameters(frozen) if hash_frozen else ""

    def read_parameter(self, name: str) -> Tensor:
        """Return a full parameter in its own dtype."""
        return self.read_raw([name])[name]

    def layouts(self) -> dict[str, str]:
        """Return a mapping from parameter name to its shape only, because other islands may be sharded differently."""
        return {name: f"{list(p.shape)}" for name, p in self.params.items()}

    def read(self, names: Sequence[str], what: Literal["weights", "gradients"]) -> Tensors:
        """Return full fast weights or gradients in float32 or wider."""
        self.send_command("gather", names=list(names), what=what)
        return {name: to_float32(x) for name, x in self.gather(names, what).items()}

    def read_raw(self, names: Iterable[str]) -> Tensors:
        """Return full fast weights in the model's own dtype."""
        names = list(names)
        self.send_command("gather", names=names, what="weights")
        return self.gather(names, "weights")

    def write(self, slow: Tensors, *, merge_local: float) -> None:
        """Merge slow weights φ into fast weights θ on every rank: θ ← merge_local · θ + (1 − merge_local) · φ."""
        self.send_command("scatter", types={name: str(x.dtype) for name, x in slow.items()}, merge_local=merge_local)
        self.scatter(slow, merge_local)

    def add(self, tensors: Tensors, *, alpha: float) -> None:
        """Add tensors x to fast weights θ on every rank: θ ← θ + alpha · x."""
        current = self.read_raw(tensors)
        self.write({name: torch.add(current[name], x, alpha=alpha) for name, x in tensors.items()}, merge_local=0.0)

    @contextmanager
    def followers_serving(self) -> Iterator[None]:
        """Run the block while the other ranks execute this rank's commands.

        Afterwards, the other ranks continue with inner steps, or raise an error if the block raised one.
        """
        try:
            yield
        except Exception as error:
            self.send_command("stop", reason=str(error) or type(error).__name__, mistake=isinstance(error, UserError))
            raise
        self.send_command("continue")

    def run_on_followers(self, work: str, **details: Any) -> None:
        """Send the command `work` to the other ranks. Does nothing if this rank is not the leader."""
        if self.ranks.is_leader:
            self.send_command(work, **details)

    def to_global(self, name: str, x: Tensor) -> Tensor:
        """Return x, because the leader's outer state consists of full tensors."""
        return x

    def full_tensors(self, slow: Tensors, *, keep: bool) -> Tensors:
        """Return the tensors, which are already full, on the CPU, or an empty dictionary if `keep` is False."""
        return {name: x.cpu() for name, x in slow.items()} if keep else {}

    def send_command(self, command: str, **details: Any) -> None:
        """Send one command to the followers."""
        self.ranks.broadcast(json.dumps({"do": command} | details).encode())

    @torch.no_grad()
    def gather(self, names: Iterable[str], what: str) -> Tensors:
        """Gather full tensors on the leader. All ranks must call this; other ranks get an empty dictionary."""
        gathered = {}
        for name in names:
            full = full_tensor(self.params[name], of_gradient=what == "gradients")
            if self.ranks.is_leader:
                gathered[name] = self.to_state_device(full)
        return gathered

    @torch.no_grad()
    def scatter(self, tensors: Tensors, merge_local: float) -> None:
        """Write the leader's tensors to the model. All ranks must call this; values from other ranks are ignored."""
        for name, x in tensors.items():
            p = self.params[name]
            part = shard_like(x, p) if hasattr(p, "device_mesh") else self.ranks.broadcast_tensor(x.to(p.device))
            super().write({name: part}, merge_local=merge_local)


class Follower:
    """Replaces the outer loop on the non-leader ranks of a gathered island. It is attached in the same way.

    The attribute `inner_step` equals that of the leader's outer loop. The other attributes describe outer state, which
    only the leader has.

    Args:
        island: the island, which holds the trained parameters.
        model: the model, as passed to `from_recipe`.
    """

    is_attached = notifies_updates = False
    trial_state = None
    spare_bytes = slow_hash = 0

    def __init__(self, island: Gathered, model: Module) -> None:
        self.island, self.model = island, model
        self.inner_step, self.slow = 0, Tensors()

    def before_update(self) -> float:
        """Return 0, the seconds spent waiting: nothing reads the weights between two calls of `after_inner_step`."""
        return 0.0

    def after_inner_step(self, samples: int) -> list[Any]:
        """Execute the leader's commands. Return an empty list, because only the leader reports rounds."""
        self.inner_step += 1
        self.serve()
        return []

    @contextmanager
    def slow_weights(self) -> Iterator[None]:
        """Take part in `OuterLoop.slow_weights`, which the leader must call at the same time."""
        self.serve()
        try:
            yield
        finally:
            self.serve()

    def state_dict(self) -> dict[str, Any]:
        """Return the inner step, because only the leader has outer state."""
        return {"inner_step": self.inner_step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set the inner step to that of a state of this rank or of the leader, which must load its state as well.

        Raises UserError if `state` has no inner step.
        """
        step = state.get("inner_step") if isinstance(state, Mapping) else None
        if not isinstance(step, int):
            raise UserError(
                "state of a Follower must be the result of its state_dict(), or of that of the island's first rank:"
                " load the file that this rank has saved"
            )
        self.inner_step = step

    def serve(self) -> None:
        """Take part in the leader's reads and writes until it lets this rank continue.

        Raises the errors of `recv_command`.
        """
        while self.recv_command()["do"] != "continue":
            pass

    def close(self) -> None:
        """Do nothing, because only the leader leaves the run."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def recv_command(self) -> dict[str, Any]:
        """Receive the leader's next command, take part in it if it is a read or a write, and return it.

        The command "move" sets `inner_step`, after the leader has skipped steps or resumed.

        Raises UserError if the leader has raised a UserError, or LeaderFailed if it has raised another error.
        """
        command = json.loads(self.island.ranks.broadcast(b""))
        if command["do"] == "gather":
            self.island.gather(command["names"], command["what"])
        elif command["do"] == "scatter":
            for name, dtype in command["types"].items():
                p = self.island.params[name]
                buffer = torch.empty(p.shape, dtype=getattr(torch, dtype.removeprefix("torch.")), device=p.device)
                self.island.scatter({name: buffer}, command["merge_local"])
        elif command["do"] == "move":
            self.inner_step = command["inner_step"]
        elif command["do"] == "stop":
            raise (UserError if command["mistake"] else LeaderFailed)(command["reason"])
        return command
