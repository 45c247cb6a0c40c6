"""Exchange 4-bit gradients between ranks, and keep each rank's compression errors between steps.

    h = x + e;   q = int4(h);   e ← β e + (1 − β)(h − ĥ)        LoCo (arXiv 2407.04480); e ← 0 every T steps

    scatter   each rank sends its q of every piece to the piece's owner, which sums them in float32    (all-to-all)
    gather    the owner of a piece sends the piece's mean, again in 4 bits, to all ranks               (all-gather)

x is the gradient, e the stored compression error, q the 4-bit message and ĥ the decoded message; β and T are the
arguments `beta` and `reset_every`. The paper uses only `scatter`: afterwards, the updated weights are sent to all
ranks, which FSDP2 does anyway. DDP needs the mean on all ranks, so it also uses `gather`, for which the owner of a
piece stores a second compression error, that of the mean. All ranks, including the owner, use the decoded mean, so
their gradients are bit-identical.

Shapes: R ranks, P values per piece (the part of the gradients that one rank owns), B bytes per message.
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
    """LoCo state of one model on one rank. Save its `state_dict()` in the checkpoint of each rank.

    Args:
        beta: weight of the old error, at least 0 and below 1.
        reset_every: T. A stored error is reset to zero after T exchanges of its gradient, usually one per step.
        error_bits: bits per value of the stored error, 8 or 32.
        process_group: process group of DDP; None: all ranks. Ignored with FSDP2, which passes its own group.

    Attributes:
        bytes_sent: bytes that this rank has sent; a message counts once per recipient.
        bytes_float32: bytes that this rank would have sent in float32, with ring algorithms.

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
        if not 0 <= beta < 1:
            raise UserError(f"beta={beta} must be at least 0 and below 1: set beta=0.8")
        if reset_every < 1:
            raise UserError(f"reset_every={reset_every} must be at least 1: set reset_every=1024")
        if error_bits not in (8, 32):
            raise UserError(f"error_bits={error_bits} is not one of 8, 32: set error_bits=8")
        self.feedback = LoCo(beta=beta, reset_every=reset_every, bits=error_bits)
        self.shapes: dict[str, list[int]] = {}
        self.process_group = process_group
        self.backward_passes = self.bytes_sent = self.bytes_float32 = 0

    def scatter(self, name: str | None, x_RP: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        """Send row r of the gradients (R, P) float32 to rank r. Return the sum (P,) of all ranks' rows for this rank.

        name: name under which the compression error is stored. None: no error is added or stored.
        """
        message_RB = self.offer(name, x_RP)
        received_RB = torch.empty_like(message_RB)
        dist.all_to_all_single(received_RB, message_RB, group=group)
        self._count(message_RB[0], x_RP[0], len(x_RP))
        return decode(received_RB, x_RP.shape[1]).sum(0)

    def gather(self, name: str | None, x_P: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        """Send this rank's piece (P,) float32 to all ranks. Return the decoded pieces of all ranks (R, P)."""
        message_B = self.offer(name, x_P[None])[0]
        received_RB = message_B.new_empty(dist.get_world_size(group), len(message_B))
        dist.all_gather(list(received_RB), message_B, group=group)
        self._count(message_B, x_P, len(received_RB))
        return decode(received_RB, len(x_P))

    def offer(self, name: str | None, x: Tensor) -> Tensor:
        """Encode x (R, P) as messages (R, B) for `scatter` and `gather`, and update the error stored under `name`.

        If `name` is None, no error is added or stored. A group (64 values with one scale) that contains a non-finite
        value adds nothing to the stored error.
        """
        if name is None:
            return encode(x)
        self._check(name, x)
        self.feedback.error.move(name, x.device)
        h = self.feedback.add(name, x)
        message = encode(h)
        sent = decode(message, x.shape[1])
        unknown = sent.isnan()
        self.feedback.keep(name, h.masked_fill_(unknown, 0), sent.masked_fill(unknown, 0))
        return message

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's compression errors and their shapes."""
        return {"feedback": self.feedback.state_dict(), "shapes": dict(self.shapes)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned. Each error moves to the device of its gradient at its next exchange."""
        self.feedback.load_state_dict(state["feedback"])
        self.shapes = dict(state["shapes"])

    def _check(self, name: str, x: Tensor) -> None:
        """Raise UserError if the compression error stored under `name` does not have the shape of x."""
        known = self.shapes.setdefault(name, list(x.shape))
        if known != list(x.shape):
            raise UserError(
                f"{name}: the stored compression error ({known[0]} pieces of {known[1]} values) does not match the"
                f" gradients ({x.shape[0]} pieces of {x.shape[1]}): start with a new State() if the model or the number"
                " of ranks changed, or call"
                " model.set_reduce_scatter_unused_params(True) if FSDP2 leaves parameters out of some steps"
            )

    def _count(self, message_B: Tensor, piece_P: Tensor, ranks: int) -> None:
        """Count the bytes of `ranks` messages of equal size, except the one that stays on this rank."""
        self.bytes_sent += (ranks - 1) * message_B.numel()
        self.bytes_float32 += (ranks - 1) * 4 * piece_P.numel()
