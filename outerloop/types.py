"""The small values that the protocols in protocols.py exchange, and the errors.

Letters used in shapes everywhere: N values in a tensor, C chunks, L chunk length, K kept per chunk, P peers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from torch import Tensor

Result = TypeVar("Result")

Refusals = Mapping[str, str]
"""Peer -> why its message of a round does not count; the text starts with the peer's name."""

Tensors = dict[str, Tensor]
"""Parameter name -> plain local tensor; the same names in the same order on every peer."""

Parts = dict[str, Tensor]
"""Encoded form of one tensor on the wire: part name -> tensor. Nested codecs prefix their parts ("values.code")."""


def printable(text: str) -> str:
    """Escape non-printable characters in untrusted text: \\x1b, \\u202e."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )


class UserError(ValueError):
    """A mistake that the user can correct. One line: what was found, what is allowed, what to set. Exit code 2."""


class RoundFailed(Exception):
    """A round did not complete. No weights were changed, so the next round carries what this one held."""


class QuorumLost(Exception):
    """Too few peers to decide a round were present for too long. The run ends here; its checkpoints stay."""


class StateTransferRequired(Exception):
    """This replica is too far behind the others, or differs from most of them: it must take over their state.

    `state` fetches it. Its argument is the maximum size in bytes; it returns the round of the state, and the bytes that
    `SharedState.serialize` returned at that round.
    """

    def __init__(self, state: Callable[[int], tuple[Round, bytes]]) -> None:
        super().__init__("this replica is behind the other peers or differs from most of them")
        self.state = state


class LeaderFailed(Exception):
    """The process that communicates on behalf of this one cannot continue; the text states why."""


class Stopped(BaseException):
    """The run was asked to stop (Ctrl-C, or another worker failed).

    Not an error, so `except Exception` does not catch it.
    """


class ReplicasDiverged(Exception):
    """Two peers that must hold equal slow weights hold different ones."""


class Outvoted(ReplicasDiverged):
    """Most peers ended with slow weights that differ from this peer's: theirs are the model of the run."""


@dataclass(frozen=True, order=True)
class Round:
    """One exchange of one fragment of the model."""

    number: int
    fragment: int = 0


FIRST = Round(0)


@dataclass(frozen=True)
class DueRounds:
    """The rounds that the schedule requests after one inner step; launches come before landings."""

    launch: Sequence[Round] = ()
    land: Sequence[Round] = ()


@dataclass(frozen=True)
class Contribution:
    """One peer's message in a round. `blob` is the wire message, or a view of it; its header holds the samples."""

    peer: str
    round: Round
    blob: bytes | memoryview = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """Facts about an exchange that hold for every run.

    agrees             every peer of a round gets the same contributions, so that slow weights stay equal
    waits_for_all      a launched message always counts; otherwise the other peers may complete a round without it
    lockstep           all peers are in the same round at the same time, so that they can meet in the middle of a run
    measures_transfer  the transfer time excludes the time spent waiting for late peers
    concurrent         `start` may be called from another thread than everything else, while inner steps run
    replicated         a majority decides rounds, so peers may be absent, join late and take over the others' state
    """

    agrees: bool
    waits_for_all: bool
    lockstep: bool
    measures_transfer: bool
    concurrent: bool
    replicated: bool = False


@dataclass(frozen=True)
class StateHandoff:
    """The peers that send their state, and those that receive it, before the first inner step.

    `number`: the handoff counts as the meeting of this number, which waits for `timeout_s`. `givers`, `takers`: peer
    names in order. All givers hold equal states of at most `max_bytes`, and the first giver is the first peer of the
    run.
    """

    number: int
    givers: Sequence[str]
    takers: Sequence[str]
    max_bytes: int
    timeout_s: float = 0.0


@dataclass(frozen=True)
class Requirement:
    """A property that one part of the outer loop needs another part to have.

    `axis`: the other part: "method", "compress", "feedback", "aggregate", "exchange" or "schedule". `fact`: the name of
    its property, `value`: what this must be. `reason`: one line for the user: why, and what to set instead.
    """

    axis: str
    fact: str
    value: object
    reason: str


@dataclass(frozen=True)
class RoundCost:
    """The cost to this peer from one landing to the next, in seconds and bytes.

    `compute_s`: inner steps. `codec_s`: launching and landing. `hidden_s`: inner steps between launch and landing.
    `transfer_s`: time in which payloads were being transferred, whether inner steps ran meanwhile or not. `bytes_sent`:
    every copy counted.
    """

    compute_s: float
    codec_s: float
    hidden_s: float
    transfer_s: float
    bytes_sent: int


@dataclass(frozen=True)
class CodecContext:
    """The round and seed under which a tensor is compressed, its name, and how its values are grouped.

    All fields but `leads` are equal on every peer. `seed` differs by round and tensor. `group` is the number of
    consecutive values that share a scale, where an outer codec knows it (the values kept per chunk), else None. `name`
    is that of the parameter.

    Peers can agree on something one round ahead. In each round one peer leads: what its compressor puts for a tensor
    into a part named "next" becomes every peer's `agreed` for that tensor in the next round. A part named "next" does
    not belong to the tensor: `decode` only checks it, and it is not added up. `agreed` is None if no "next" part has
    landed.
    """

    round: int
    seed: int
    group: int | None = None
    leads: bool = False
    agreed: Tensor | None = None
    name: str = ""
