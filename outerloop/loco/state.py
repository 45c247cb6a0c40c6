"""What a rank remembers between steps, and the two ways that gradients go: to the owner of a piece, and back to all.

    h = x + e;   q = int4(h);   e ← β e + (1 − β)(h − ĥ)        LoCo (arXiv 2407.04480); e ← 0 every T steps

    scatter   all ranks' q of a piece -> its owner, who sums them in float32      all-to-all
    gather    the mean of every piece, again in 4 bits -> all ranks               all-gather

The paper goes the first way; what then goes to all are the weights, which FSDP2 sends anyway. DDP needs the mean: its
owner keeps an error for it too, and takes what it decodes, as all do, so that gradients are equal bit for bit.

R ranks, P values a piece, B bytes a message.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from outerloop.feedback.loco import LoCo
from outerloop.loco.int4_messages import decode, encode
from outerloop.types import UserError


class State:
    """One a rank and a model; a checkpoint of a rank holds its own `state_dict()`.

    Args:
        beta: weight of the old error, 0 .. 1 exclusive.
        reset_every: T, steps between two resets.
        error_bits: of the stored error, 8 or 32.
        process_group: the ranks of DDP; None: all. FSDP2 knows its own.

    Attributes:
        bytes_sent: what this rank sent, every copy counted.
        bytes_float32: what a ring would have sent of the same gradients in float32.

    Raises:
        UserError: if a setting is out of range.
    """

    def __init__(
        self,
        *,
        beta: float = 0.8,
        reset_every: int = 1024,
        error_bits: int = 8,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        self.feedback = LoCo(beta=beta, reset_every=reset_every, bits=error_bits)
        self.shapes: dict[str, list[int]] = {}
        self.process_group = process_group
        self.backward_passes = self.bytes_sent = self.bytes_float32 = 0

    def scatter(self, name: str | None, x_RP: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        """Own gradients (R, P) float32, row r for rank r -> the sum (P,) of all ranks' rows for this rank.

        name: of the error; None: without.
        """
        message_RB = self.offer(name, x_RP)
        received_RB = torch.empty_like(message_RB)
        dist.all_to_all_single(received_RB, message_RB, group=group)
        self._count(message_RB[0], x_RP[0], len(x_RP))
        return decode(received_RB, x_RP.shape[1]).sum(0)

    def gather(self, name: str | None, x_P: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        """This rank's piece (P,) float32 -> what all ranks decode of all pieces (R, P)."""
        message_B = self.offer(name, x_P[None])[0]
        received_RB = message_B.new_empty(dist.get_world_size(group), len(message_B))
        dist.all_gather(list(received_RB), message_B, group=group)
        self._count(message_B, x_P, len(received_RB))
        return decode(received_RB, len(x_P))

    def offer(self, name: str | None, x: Tensor) -> Tensor:
        """x (R, P) -> its messages (R, B), while the error moves on: what `scatter` and `gather` send.

        A group with a value that is not finite adds nothing to the error.
        """
        if name is None:
            return encode(x)
        self._check(name, x)
        h = self.feedback.add(name, x)
        message = encode(h)
        sent = decode(message, x.shape[1])
        unknown = sent.isnan()
        self.feedback.keep(name, h.masked_fill_(unknown, 0), sent.masked_fill(unknown, 0))
        return message

    def state_dict(self) -> dict[str, Any]:
        """The errors of this rank, and what they are of."""
        return {"feedback": self.feedback.state_dict(), "shapes": dict(self.shapes)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        self.feedback.load_state_dict(state["feedback"])
        self.shapes = dict(state["shapes"])

    def _check(self, name: str, x: Tensor) -> None:
        """Raises UserError when the error is of other gradients than x."""
        known = self.shapes.setdefault(name, list(x.shape))
        if known != list(x.shape):
            raise UserError(
                f"{name}: the error of {known[0]} pieces of {known[1]} values does not fit gradients of {x.shape[0]} "
                f"pieces of {x.shape[1]}: begin with a new State() when the model or the number of ranks changed, or "
                "call model.set_reduce_scatter_unused_params(True) when FSDP2 leaves parameters out of some steps"
            )

    def _count(self, message_B: Tensor, piece_P: Tensor, ranks: int) -> None:
        """One of `ranks` equal messages stays here."""
        self.bytes_sent += (ranks - 1) * message_B.numel()
        self.bytes_float32 += (ranks - 1) * 4 * piece_P.numel()
