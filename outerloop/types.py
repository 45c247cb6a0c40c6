"""The small values that pass the seams, and the errors; what passes them is in protocols.py.

Letters used in shapes everywhere: N values in a tensor, C chunks, L chunk length, K kept per chunk, P peers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from torch import Tensor

Made = TypeVar("Made")

Refusals = Mapping[str, str]
"""Peer -> its name, and why its message of a round does not count."""

Tensors = dict[str, Tensor]
"""Parameter name -> plain local tensor; the same names in the same order on every peer."""

Parts = dict[str, Tensor]
"""What one tensor became on the wire; nested codecs prefix their parts ("values.code")."""


def printable(text: str) -> str:
    """Escape non-printable characters in untrusted text: \\x1b, \\u202e."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


class UserError(ValueError):
    """A mistake that the user can mend. One line: what came, what is allowed, what to type. Exit code 2."""


class RoundFailed(Exception):
    """A round did not complete. Nothing has moved, so the next round carries what this one held."""


class QuorumLost(Exception):
    """Too few peers were left to decide a round, for too long: the run ends here, and its checkpoints stay."""


class StateTransferRequired(Exception):
    """This replica is too far behind the others, or differs from most of them: it is to take over their state.

    `state` gets it: the most bytes that it may have -> the round that it is as of, and `SharedState.pack` there.
    """

    def __init__(self, state: Callable[[int], tuple[Round, bytes]]) -> None:
        super().__init__("this replica is not where the others are")
        self.state = state


class LeaderFailed(Exception):
    """The process that speaks for this one cannot go on; the text says why."""


class Stopped(BaseException):
    """The run was asked to stop (Ctrl-C, or another worker failed). Not an error, so no `except Exception` takes it."""


class ReplicasDiverged(Exception):
    """Two peers that must hold equal slow weights do not."""


class Outvoted(ReplicasDiverged):
    """Most peers ended with other slow weights than this one: theirs are the model of the run."""


@dataclass(frozen=True, order=True)
class Round:
    """One exchange of one fragment of the model."""

    number: int
    fragment: int = 0


FIRST = Round(0)


@dataclass(frozen=True)
class DueRounds:
    """What the schedule asks for after one inner step; launches come before landings."""

    launch: Sequence[Round] = ()
    land: Sequence[Round] = ()


@dataclass(frozen=True)
class Contribution:
    """What one peer put into a round. `blob` is one wire message, or a view of it; its header holds the samples."""

    peer: str
    round: Round
    blob: bytes | memoryview = field(repr=False)


@dataclass(frozen=True)
class ExecutorHandoff:
    """Whose state goes to whom before the first inner step.

    `number`: of the meeting that this counts as. `givers`, `takers`: names in their order; all givers hold equal states
    of `most_bytes` at most, and the first of them is the first peer of the run.
    """

    number: int
    givers: Sequence[str]
    takers: Sequence[str]
    most_bytes: int


@dataclass(frozen=True)
class RoundCost:
    """What this peer spent from one landing to the next, in seconds and bytes.

    `compute_s`: inner steps. `codec_s`: launching and landing. `hidden_s`: inner steps between launch and landing.
    `moved_s`: while payloads were on their way, whether the inner steps went on or not. `bytes_sent`: every copy.
    """

    compute_s: float
    codec_s: float
    hidden_s: float
    moved_s: float
    bytes_sent: int


@dataclass(frozen=True)
class CodecContext:
    """When a tensor is compressed, and how its values belong together; all but `leads` is equal on every peer.

    `seed` differs by round and tensor. `group` is how many consecutive values share a scale, where an outer codec
    knows it (what one chunk kept), else None.

    Peers may agree on something a round ahead. In each round one of them leads: what its compressor says about a tensor
    in a part named "next" is every peer's `agreed` for that tensor in the next round. A part of that name is no part of
    the tensor: `decode` only checks it, and nobody adds it up. `agreed` is None when no such word has landed.
    """

    round: int
    seed: int
    group: int | None = None
    leads: bool = False
    agreed: Tensor | None = None
