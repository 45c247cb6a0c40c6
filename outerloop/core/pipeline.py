"""Both routes as one: each tensor of a fragment goes the fused way if it can, else the plain one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from outerloop import wire
from outerloop.core.codec import UpdateCodec, on
from outerloop.core.pipeline_dense import DensePipeline, LocalUpdate
from outerloop.core.pipeline_fused import FusedPipeline, SparseUpdates
from outerloop.feedback.local_error import LocalError
from outerloop.kernels.portable import exact_sum
from outerloop.protocols import Aggregate, Feedback, OuterMethod
from outerloop.replica.buffers import Buffers
from outerloop.replica.island import Island, widened
from outerloop.replica.state_size import bytes_of
from outerloop.types import Contribution, Parts, Round, Tensors


@dataclass(frozen=True)
class Snapshot:
    """What a launch is made of: fast weights in the model's own precision, or gradients; and buffers."""

    read: Tensors
    buffers: dict[str, Parts]


@dataclass(frozen=True)
class DecodedRound:
    """Messages of a round in peer-name order, what they kept of fused tensors, and their norms if measured."""

    messages: list[wire.Message]
    kept: dict[str, SparseUpdates]
    norms: list[float]


@dataclass(frozen=True)
class AggregatedRound:
    """All messages of a round in peer-name order, what all peers kept of fused tensors, the aggregate of the others,
    and the mean of buffers."""

    messages: list[wire.Message]
    mean: Tensors
    kept: dict[str, SparseUpdates]
    buffers: Tensors

    def to(self, device: torch.device) -> AggregatedRound:
        """The same with every tensor that lands on a device."""
        kept = {name: k.to(device) for name, k in self.kept.items()}
        return AggregatedRound(self.messages, on(device, self.mean), kept, on(device, self.buffers))


class RoundPipeline:
    """What a round does to the tensors of one replica: slow weights (updated in place), fast ones, residual, method.

    Args:
        island: the fast weights.
        slow: the slow weights by parameter name.
        buffers: of the same model.
        method, feedback, aggregate, payload: the axes.
        peer: this peer's name.
        delay, sync_every: of the schedule, inner steps.
        merge_local: weight of the LOCAL value when a landed fragment is written back, 0 .. 1, or "carry".
        concurrent: inner steps go on between `copy` and `launch`.
    """

    def __init__(
        self,
        island: Island,
        slow: Tensors,
        buffers: Buffers,
        *,
        method: OuterMethod,
        feedback: Feedback,
        aggregate: Aggregate,
        payload: UpdateCodec,
        peer: str,
        delay: int,
        sync_every: int,
        merge_local: float | Literal["carry"],
        concurrent: bool,
    ) -> None:
        self.concurrent = concurrent
        self.island, self.slow, self.buffers, self.payload = island, slow, buffers, payload
        self.carry = merge_local == "carry" and delay > 0
        self.merge_local = 0.0 if merge_local == "carry" else float(merge_local)
        self.reads = method.reads
        self.copies: Tensors = {}
        self.plain = DensePipeline(
            method=method, feedback=feedback, aggregate=aggregate, payload=payload, peer=peer, slow=slow
        )
        self.local = isinstance(feedback, LocalError)
        self.fused = FusedPipeline(self.plain, aside=bool(delay or self.merge_local or not island.in_place))
        self.fused.fits &= delay < sync_every  # at a delay of H the slow weights have moved since the launch

    def take(self, fragment: int, names: Sequence[str]) -> Snapshot:
        """These tensors of the model as it stands, in its own memory where it can be read there."""
        weights = self.reads == "weights"
        read = self.island.pick(names) if weights else self.island.read(names, "gradients")
        return Snapshot(read, self.buffers.parts(fragment))

    def copy(self, taken: Snapshot) -> Snapshot:
        """With copies of what changes before it is used for the last time, in the memory of the last copies.

        That is used up by now, and new pages cost more than copying does.
        """
        copied = self.copied(taken.read)
        for name in copied:
            if name not in self.copies:
                self.copies[name] = torch.empty_like(taken.read[name])
        return Snapshot(
            taken.read | {name: self.copies[name].copy_(taken.read[name]) for name in copied}, taken.buffers
        )

    def launch(self, round: Round, taken: Snapshot, *, leads: bool) -> LocalUpdate:
        """Difference, feedback, compress; everything in the order of what was taken. Changes nothing that lasts."""
        read = taken.read
        fused, plain = self.split(read)
        kept = self.fused.launch(round.number, fused, read)
        dense = self.plain.launch(round.number, plain, {name: widened(read[name]) for name in plain}, leads=leads)
        parts, offered = kept.parts | dense.parts, kept.offered | dense.offered
        return LocalUpdate(
            {name: parts[name] for name in read} | taken.buffers,
            {name: offered[name] for name in read},
            kept.squares + dense.squares,
            {name: read[name] for name in self.landing_needs(read)},
        )

    def landing_needs(self, names: Iterable[str]) -> Iterable[str]:
        """Of which tensors a landing needs the fast weights as they were at the launch."""
        if self.carry:
            return names
        return self.split(names)[0] if self.fused.aside else ()

    def copied(self, names: Iterable[str]) -> Iterable[str]:
        """What is copied at a launch: fast weights that are read in place."""
        if self.reads == "gradients" or not self.island.in_place:
            return ()
        return names if self.concurrent else self.landing_needs(names)

    def decode(self, received: Iterable[Contribution], like: Tensors, *, measured: bool) -> DecodedRound:
        """What all peers sent, checked, and decoded where it is fused. Raises InvalidMessage; changes nothing."""
        in_order = sorted(received, key=lambda contribution: contribution.peer)
        messages = [self.payload.unpack(contribution, like) for contribution in in_order]
        kept = self.fused.combine(messages, self.split(like)[0])
        measured |= self.plain.aggregate.needs_norms
        return DecodedRound(messages, kept, self.norms(messages, kept, like) if measured else [])

    def combine(
        self, decoded: DecodedRound, like: Tensors, *, factors: list[float], samples: list[int]
    ) -> AggregatedRound:
        """All messages as one, each counting times its factor and weighing as so many samples. Raises
        InvalidMessage.
        """
        messages, dense = decoded.messages, {name: x for name, x in like.items() if name not in decoded.kept}
        norms = [norm * factor for norm, factor in zip(decoded.norms, factors, strict=True)] if decoded.norms else []
        mean = self.plain.combine(messages, dense, factors=factors, samples=samples, norms=norms)
        kept = self.fused.scaled(decoded.kept, factors, norms)
        return AggregatedRound(messages, mean, kept, self.buffers.combine(messages))

    def sent(self, combined: AggregatedRound, like: Tensors) -> Iterator[list[Tensor]]:
        """Of each tensor what all peers sent, in peer-name order, but for values that are zero at all of them."""
        number = combined.messages[0].header.round
        yield from self.fused.sent(number, combined.kept, like)
        for name in combined.mean:
            yield self.plain.contributions(combined.messages, name, like[name])

    def norms(self, messages: Sequence[wire.Message], kept: dict[str, SparseUpdates], like: Tensors) -> list[float]:
        """L2 norm of each message, over all tensors in the order of `like` whichever way they go. Raises
        InvalidMessage.
        """
        dense = {name: x for name, x in like.items() if name not in kept}
        squares = [
            self.plain.squares_of(message, dense) | self.fused.squares_of(row, kept, like)
            for row, message in enumerate(messages)
        ]
        return [math.sqrt(exact_sum(one[name] for name in like)) for one in squares]

    def land(self, combined: AggregatedRound, offered: Tensors, then: Tensors, *, counted: bool) -> float:
        """Residual, slow and fast weights move; returns Σ ḡ². `then` is used up.

        carry: θ ← φ + (θ − θ at the launch), so that no inner step since then is lost or counted twice.
        Not `counted`: the round came to be without what this peer offered. The residual stays, and the fast weights are
        carried along with the slow ones, so that the next Δ = φ − θ is this one to rounding.
        """
        fast = {} if counted else self.island.read(list(offered), "weights")
        delta = {name: self.slow[name] - x for name, x in fast.items()}
        slow, aside = {name: self.slow[name] for name in combined.kept}, self.fused.aside and counted
        carry = self.carry and counted
        if carry:
            self.island.add(then, times=-1)  # θ is what was gained since the launch, until it is written
        begun = {name: then[name] for name in slow} if aside else self.island.pick(slow)
        squares = self.plain.land(combined.mean, combined.messages, offered, self.slow, counted=counted)
        squares += self.fused.land(combined.kept, combined.messages, slow, begun, counted=counted)
        if counted:
            self.write([*combined.mean, *(slow if aside or self.local else ())], carry=carry)
        self.island.write({name: self.slow[name] - x for name, x in delta.items()}, merge_local=0.0)
        self.buffers.land(combined.buffers, counted=counted)
        return squares

    def write(self, names: Iterable[str], *, carry: bool = False) -> None:
        """Into the model what the next inner steps begin from, now that these slow weights have moved.

        `carry`: in addition to what is there.
        """
        moved = {name: self.plain.feedback.begin(name, self.slow[name]) for name in names}
        if carry:
            self.island.add(moved, times=1)
        else:
            self.island.write(moved, merge_local=self.merge_local)

    def split(self, names: Iterable[str]) -> tuple[Tensors, Tensors]:
        """The slow weights that go through the two kernels, and the others."""
        slow = {name: self.slow[name] for name in names}
        fused = {name: x for name, x in slow.items() if self.takes(name, x)}
        return fused, {name: x for name, x in slow.items() if name not in fused}

    def takes(self, name: str, slow: Tensor) -> bool:
        """Whether a tensor goes through the kernels, which take the model's memory as it lies; peers compare that."""
        held = self.island.held(name)
        return self.fused.takes(slow, held.dtype) and held.is_contiguous()

    @property
    def spare(self) -> tuple[Tensors, Tensors]:
        """What launches and landings keep of one round for the next, besides residual and momentum."""
        feedback = self.plain.feedback
        return self.copies, feedback.space if isinstance(feedback, LocalError) else {}

    @property
    def spare_bytes(self) -> int:
        """What that will be."""
        copies = sum(self.island.held(name).nbytes for name in self.copied(self.slow))
        return copies + (bytes_of(self.split(self.slow)[0]) if self.local else 0)
