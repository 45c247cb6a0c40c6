"""Define the small value types that the components of protocols.py pass to each other, and the errors.

Letters used in shapes in all files: N values in a tensor, C chunks, L chunk length, K kept per chunk, P peers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from torch import Tensor  # the command line prints its help without torch

Result = TypeVar("Result")

Refusals = Mapping[str, str]
"""Peer -> why its message is left out of a round; the text starts with the peer's name."""

Tensors = dict[str, "Tensor"]
"""Parameter name -> plain local tensor; the same names in the same order on every peer."""

Parts = dict[str, "Tensor"]
"""Encoded form of one tensor on the wire: part name -> tensor. Nested codecs prefix their parts ("values.code")."""


def printable(text: str) -> str:
    """Escape non-printable characters in untrusted text, for example as \\x1b or \\u202e."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )


class UserError(ValueError):
    """A mistake that the user can correct. The command line exits with code 2.

    The message is one line: what was found, what is allowed, what to set.
    """


EXTRAS = {
    "transformers": "train",
    "tokenizers": "train",
    "matplotlib": "report",
    "datasets": "hf",
    "accelerate": "trainer",
    "lightning": "lightning",
    "tensorboard": "tensorboard",
    "trackio": "trackio",
}
"""Optional package -> the extra of outerloop-train that installs it."""


def missing_package(name: str | None) -> UserError | None:
    """Return the error for a module that cannot be imported; None if it is not part of an optional package."""
    package = (name or "").partition(".")[0]
    if package not in EXTRAS:
        return None
    return UserError(f"{package} is not installed: run pip install 'outerloop-train[{EXTRAS[package]}]'")


class RoundFailed(Exception):
    """A round did not complete. No weights were changed, so the next round includes the progress of this round."""


class QuorumLost(Exception):
    """For too long, too few peers were present to decide a round. The run ends; its checkpoints remain."""


class StateTransferRequired(Exception):
    """This replica is too far behind the others, or differs from most of them: it must take over their state.

    `state` is a function that fetches their state. Its argument is the maximum size in bytes. The function returns the
    round of the state, and the bytes that `SharedState.serialize` returned after that round.
    """

    def __init__(self, state: Callable[[int], tuple[Round, bytes]]) -> None:
        super().__init__("this replica is behind the other peers or differs from most of them")
        self.state = state


class LeaderFailed(Exception):
    """The process that communicates on behalf of this process cannot continue; the message states why."""


class Stopped(BaseException):
    """The run was asked to stop (Ctrl-C, or another worker failed).

    This is not an error, so `except Exception` does not catch it.
    """


class Terminated(KeyboardInterrupt):
    """The process received SIGTERM. This causes the same clean shutdown as Ctrl-C, with exit code 143."""


def raise_terminated(number: int, frame: FrameType | None) -> None:
    """Handle SIGTERM by raising Terminated."""
    raise Terminated


class ReplicasDiverged(Exception):
    """Peers that must hold equal slow weights hold different slow weights."""


class Outvoted(ReplicasDiverged):
    """Most peers ended with slow weights that differ from this peer's. Their weights are the model of the run."""


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
    """One peer's message in a round. `blob` is the wire message, or a view of it."""

    peer: str
    round: Round
    blob: bytes | memoryview = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """Facts about an exchange that hold for every run.

    agrees             every peer of a round gets the same contributions, so that slow weights stay equal
    waits_for_all      a launched message is always included; otherwise the other peers may complete a round without it
    lockstep           all peers are in the same round at the same time, so that they can all-gather during a run
    measures_transfer  the transfer time excludes the time spent waiting for late peers
    concurrent         `start` may be called from a different thread than the other methods, while inner steps run
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
    """The peers that send their state, and the peers that receive it, before the first inner step.

    number: number of the handoff in the sequence of all-gathers outside of rounds.
    givers, takers: names of the peers that send and receive, in order. All givers hold equal states, and the first
        giver is the first peer of the run.
    max_bytes: maximum size of the state.
    timeout_s: how long to wait for the other peers in the handoff.
    """

    number: int
    givers: Sequence[str]
    takers: Sequence[str]
    max_bytes: int
    timeout_s: float = 0.0


@dataclass(frozen=True)
class Requirement:
    """A property that one part of the outer loop needs another part to have.

    axis: the axis of the other part, one of "method", "compress", "feedback", "aggregate", "exchange" or "schedule".
    fact: the name of the property of the other part.
    value: the value that this property must have.
    reason: one line for the user that states why, and what to set instead.
    """

    axis: str
    fact: str
    value: object
    reason: str


@dataclass(frozen=True)
class RoundCost:
    """The cost of a round to this peer, from one landing to the next, in seconds and bytes.

    compute_s: time of inner steps.
    codec_s: time of launching and landing.
    hidden_s: time of the inner steps between launch and landing.
    transfer_s: time in which payloads were being transferred, whether or not inner steps ran at the same time.
    bytes_sent: bytes that this peer sent, counting every copy.
    """

    compute_s: float
    codec_s: float
    hidden_s: float
    transfer_s: float
    bytes_sent: int


@dataclass(frozen=True)
class CodecContext:
    """The round and seed with which a tensor is compressed, the tensor's name, and how its values are grouped.

    All fields but `leads` are equal on every peer. `seed` is different for each round and tensor. If an outer codec
    determines how many consecutive values share a scale, `group` is that number (the number of values kept per chunk),
    else None. `name` is the name of the parameter.

    Peers can agree on a tensor one round ahead. In each round one peer is the leader (`leads`). If its compressor
    returns a part named "next" for a tensor, this part becomes every peer's `agreed` for the same tensor in the next
    round. A part named "next" does not belong to the encoded tensor: `decode` only checks it, and it is not summed.
    `agreed` is None if no "next" part has landed.
    """

    round: int
    seed: int
    group: int | None = None
    leads: bool = False
    agreed: Tensor | None = None
    name: str = ""
