"""Run the tensor computations of a round.

Each tensor of a fragment goes through the fused pipeline if that pipeline supports it, else through the dense pipeline.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from outerloop import wire
from outerloop.core.codec import UpdateCodec
from outerloop.core.pipeline.dense import DensePipeline, LocalUpdate
from outerloop.core.pipeline.fused import FusedPipeline, SparseUpdates
from outerloop.core.pipeline.values import AggregatedRound, DecodedRound, Snapshot
from outerloop.kernels.portable import exact_sum
from outerloop.protocols import Aggregate, Feedback, OuterMethod
from outerloop.replica.buffers import Buffers
from outerloop.replica.island import Island, to_float32
from outerloop.replica.state_size import tree_bytes
from outerloop.types import Contribution, Round, Tensors

MAX_DENSE_FRACTION = 1 / 16
"""Maximum ratio of bytes in dense to fused tensors at which decoded messages count as small (`decoded_is_small`)."""


class RoundPipeline:
    """Computes how a round changes one replica: its slow and fast weights, residual and method state.

    Args:
        island: gives access to the fast weights.
        slow: the slow weights by parameter name; updated in place.
        buffers: buffers of the same model.
        method, feedback, aggregate: the parts for these axes.
        codec: encodes this peer's tensors and decodes those of all peers.
        peer: this peer's name.
        delay, sync_every: the schedule's inner steps between launch and landing, and between two rounds of a fragment.
        merge_local: weight, 0 .. 1, of the LOCAL value when a landed fragment is written to the model, or "carry".
        concurrent: whether inner steps continue between `copy` and `launch`.
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
        codec: UpdateCodec,
        peer: str,
        delay: int,
        sync_every: int,
        merge_local: float | Literal["carry"],
        concurrent: bool,
    ) -> None:
        self.concurrent = concurrent
        self.island, self.slow, self.buffers, self.codec = island, slow, buffers, codec
        self.carry = merge_local == "carry" and delay > 0
        self.merge_local = 0.0 if merge_local == "carry" else float(merge_local)
        self.reads = method.reads
        self.copies: Tensors = {}
        self.dense = DensePipeline(
            method=method, feedback=feedback, aggregate=aggregate, codec=codec, peer=peer, slow=slow
        )
        on_copy = bool(delay or self.merge_local or not island.in_place)
        self.fused = FusedPipeline(self.dense, on_copy=on_copy, slow_moves=delay >= sync_every)

    def snapshot(self, fragment: int, names: Sequence[str]) -> Snapshot:
        """Return the current values of these tensors of the model, without a copy if they can be read in place."""
        weights = self.reads == "weights"
        read = self.island.read_raw(names) if weights else self.island.read(names, "gradients")
        return Snapshot(read, self.buffers.parts(fragment))

    def copy(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot with copies of the tensors that may change before their last use.

        The copies overwrite those of the previous round, which are no longer needed, because allocating new memory
        would take longer than copying.
        """
        read, copied = snapshot.read, self.copied(snapshot.read)
        for name in copied:
            if name not in self.copies:
                self.copies[name] = torch.empty_like(read[name])
        return Snapshot(read | {name: self.copies[name].copy_(read[name]) for name in copied}, snapshot.buffers)

    def launch(self, round: Round, snapshot: Snapshot, *, leads: bool) -> LocalUpdate:
        """Compute this peer's update, add feedback, and compress it. The parts keep the order of the snapshot.

        Changes no state that outlives the call.
        """
        read = snapshot.read
        fused, rest = self.split(read)
        sparse = self.fused.launch(round.number, fused, read)
        converted = {name: in_precision_of(x, read[name]) for name, x in rest.items()}
        dense = self.dense.launch(round.number, rest, converted, leads=leads)
        parts, update = sparse.parts | dense.parts, sparse.update | dense.update
        return LocalUpdate(
            {name: parts[name] for name in read} | snapshot.buffers,
            {name: update[name] for name in read},
            sparse.squares + dense.squares,
            {name: read[name] for name in self.landing_needs(read)},
        )

    def landing_needs(self, names: Iterable[str]) -> Iterable[str]:
        """Return the names of the tensors whose fast weights at the launch are needed again at the landing."""
        if self.carry:
            return names
        return self.split(names)[0] if self.fused.on_copy else ()

    def copied(self, names: Iterable[str]) -> Iterable[str]:
        """Return the names of the tensors to copy at a launch, all of which are fast weights that are read in place."""
        if self.reads == "gradients" or not self.island.in_place:
            return ()
        return names if self.concurrent else self.landing_needs(names)

    def decode(self, received: Iterable[Contribution], like: Tensors, *, measured: bool) -> DecodedRound:
        """Validate all messages, and decode the tensors that go through the fused pipeline. Changes nothing.

        measured: whether to compute the norms of messages. Raises InvalidMessage if a message is invalid.
        """
        in_order = sorted(received, key=lambda contribution: contribution.peer)
        messages = [self.codec.unpack(contribution, like) for contribution in in_order]
        kept = self.fused.decode(messages, self.split(like)[0])
        measured |= self.dense.aggregate.needs_norms
        return DecodedRound(messages, kept, self.norms(messages, kept, like) if measured else [])

    def aggregate(
        self, decoded: DecodedRound, like: Tensors, *, factors: list[float], samples: list[int]
    ) -> AggregatedRound:
        """Aggregate all messages, after multiplying each by its factor.

        samples: number of samples of each message, which some aggregates use as its weight.

        Raises InvalidMessage if a message cannot be decoded.
        """
        messages, dense = decoded.messages, {name: x for name, x in like.items() if name not in decoded.kept}
        norms = [norm * factor for norm, factor in zip(decoded.norms, factors, strict=True)] if decoded.norms else []
        mean = self.dense.aggregate_messages(messages, dense, factors=factors, samples=samples, norms=norms)
        kept = self.fused.scaled(decoded.kept, factors, norms)
        return AggregatedRound(messages, mean, kept, self.buffers.combine(messages))

    def sent(self, aggregated: AggregatedRound, like: Tensors) -> Iterator[list[Tensor]]:
        """For each tensor, yield all peers' contributions, ordered by peer name.

        Coordinates that are zero for all peers may be omitted.
        """
        number = aggregated.messages[0].header.round
        yield from self.fused.sent(number, aggregated.kept, like)
        for name in aggregated.mean:
            yield self.dense.decoded(aggregated.messages, name, like[name])

    def norms(self, messages: Sequence[wire.Message], kept: dict[str, SparseUpdates], like: Tensors) -> list[float]:
        """Return the L2 norm of each message, over all of its tensors, dense and fused.

        Raises InvalidMessage if a message cannot be decoded.
        """
        dense = {name: x for name, x in like.items() if name not in kept}
        squares = self.dense.squares_of(messages, dense) | self.fused.squares_of(kept, like)
        return [math.sqrt(exact_sum(of_message)) for of_message in zip(*squares.values(), strict=True)]

    def land(self, aggregated: AggregatedRound, update: Tensors, fast_at_launch: Tensors, *, included: bool) -> float:
        """Update the residual, the slow and fast weights, and the buffers. Return Σ ḡ², where ḡ is the aggregate.

        Overwrites `fast_at_launch`. included: whether the round includes this peer's message.
        """
        if included:
            squares = self.land_with_own(aggregated, update, fast_at_launch)
        else:
            squares = self.land_without_own(aggregated, update)
        self.buffers.land(aggregated.buffers, included=included)
        return squares

    def land_with_own(self, aggregated: AggregatedRound, update: Tensors, fast_at_launch: Tensors) -> float:
        """Land a round that includes this peer's message.

        If merge_local is "carry", fast weights θ ← slow weights φ + (θ − θ at the launch), so that no inner step since
        the launch is lost or counted twice. Returns Σ ḡ², where ḡ is the aggregate.
        """
        kept, on_copy = aggregated.kept, self.fused.on_copy
        current = self.island.read_raw(kept) if self.carry and self.island.in_place else {}
        if self.carry:  # the other weights of the model now contain only the progress since the launch
            rest = {name: x for name, x in fast_at_launch.items() if name not in current}
            self.island.add(rest, alpha=-1)
        fast = {name: fast_at_launch[name] for name in kept} if on_copy else self.island.read_raw(kept)
        squares = self.update_slow(aggregated, update, fast, current, included=True)
        # Without unsent values, use the slow weights themselves: they are not rounded to the dtype of the fast weights.
        computed = fast if self.fused.keeps_unsent else {name: self.slow[name] for name in kept}
        self.write(aggregated.mean, computed if on_copy and not current else {}, carry=self.carry)
        return squares

    def land_without_own(self, aggregated: AggregatedRound, update: Tensors) -> float:
        """Land a round that was decided without this peer's message, or that refused it (RoundLander.discard follows).

        The residual does not change. The fast weights θ change by the same amount as the slow weights φ, so Δ = φ − θ
        does not change either, up to rounding. Returns Σ ḡ², where ḡ is the aggregate.
        """
        fast = self.island.read(list(update), "weights")
        delta = {name: self.slow[name] - x for name, x in fast.items()}
        squares = self.update_slow(aggregated, update, self.island.read_raw(aggregated.kept), {}, included=False)
        self.island.write({name: self.slow[name] - x for name, x in delta.items()}, merge_local=0.0)
        return squares

    def update_slow(
        self, aggregated: AggregatedRound, update: Tensors, fast: Tensors, current: Tensors, *, included: bool
    ) -> float:
        """Update the slow weights. If the round `included` this peer's message, also update the residual.

        Returns Σ ḡ², where ḡ is the aggregate. `fast` and `current` are those of `FusedPipeline.land`.
        """
        slow = {name: self.slow[name] for name in aggregated.kept}
        squares = self.dense.land(aggregated.mean, aggregated.messages, update, self.slow, included=included)
        kept, messages = aggregated.kept, aggregated.messages
        return squares + self.fused.land(kept, messages, slow, fast, current, included=included)

    def discard(self, names: Iterable[str]) -> None:
        """Discard the fast weights' progress and the residual of these parameters: θ ← φ, e ← 0."""
        slow = {name: self.slow[name] for name in names}
        for name in slow:
            self.dense.feedback.forget(name)
        self.island.write(slow, merge_local=0.0)

    def write(self, names: Iterable[str], computed: Tensors, *, carry: bool = False) -> None:
        """Write to the model the fast weights from which inner steps continue after an update of the slow weights.

        names: tensors whose fast weights the feedback computes now.
        computed: those that the kernels have computed.
        carry: whether to add these fast weights to the model's current values instead of replacing the current values.
        """
        begun = {name: self.dense.feedback.begin(name, self.slow[name]) for name in names} | computed
        if carry:
            self.island.add(begun, alpha=1)
        else:
            self.island.write(begun, merge_local=self.merge_local)

    def split(self, names: Iterable[str]) -> tuple[Tensors, Tensors]:
        """Return the slow weights that go through the fused pipeline, then those that go through the dense pipeline."""
        slow = {name: self.slow[name] for name in names}
        fused = {name: x for name, x in slow.items() if self.takes(name, x)}
        return fused, {name: x for name, x in slow.items() if name not in fused}

    def takes(self, name: str, slow: Tensor) -> bool:
        """Return whether a tensor goes through the fused kernels, which require contiguous memory.

        The answer must be the same on all peers, so peers compare memory layouts before they start.
        """
        held = self.island.local_shard(name)
        return self.fused.takes(slow, held.dtype) and held.is_contiguous()

    def decoded_is_small(self, names: Iterable[str]) -> bool:
        """Return whether decoded messages need little memory: nearly all values are in tensors that stay sparse."""
        fused, rest = self.split(names)
        return tree_bytes(rest) <= MAX_DENSE_FRACTION * tree_bytes(fused)

    def landing_assumptions(self) -> dict[str, Any]:
        """Return what a launch assumes about its landing. A saved round can only be landed under the same assumptions.

        carry: whether landings keep the progress of the inner steps since the launch.
        fused: names of the tensors that go through the fused pipeline.
        """
        return {"carry": self.carry, "fused": sorted(self.split(self.slow)[0])}

    @property
    def spare_bytes(self) -> int:
        """Size in bytes of the copies that launches keep between rounds, once all of them are allocated."""
        return sum(self.island.local_shard(name).nbytes for name in self.copied(self.slow))


def in_precision_of(slow: Tensor, x: Tensor) -> Tensor:
    """Return x as float32, so that the payloads of all peers have the same precision whatever the model's dtype.

    If the slow weights are float64, float64 stays float64.
    """
    return to_float32(x) if slow.dtype == torch.float64 else x.float()
