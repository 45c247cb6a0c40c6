"""Define the errors, and the small value types that the parts of a run (protocols/) pass to each other.

Letters for shapes in all files: N values in a tensor, C chunks, L values per chunk, K kept values per chunk, P peers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from torch import Tensor  # so that the command line prints its help without importing torch

Result = TypeVar("Result")

Refusals = Mapping[str, str]
"""Peer name -> the reason why its message is left out of a round. The reason starts with the peer's name."""

Tensors = dict[str, "Tensor"]
"""Parameter name -> plain local tensor; the same names in the same order on every peer."""

Parts = dict[str, "Tensor"]
"""Encoded form of one tensor on the wire: part name -> tensor. Parts of an inner codec have a prefix: "values.code"."""


def id_of(name: str) -> str:
    """Return the peer id in a name of the form NNN-<peer id>. A bare peer id is returned unchanged."""
    return name.partition("-")[2] or name


def printable(text: str) -> str:
    """Escape non-printable characters in untrusted text, for example as \\x1b or \\u202e."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )


def listed_names(names: Sequence[str], *, at_most: int = 5) -> str:
    """Return the first names in one line, separated by commas, and the number of the names that are left out."""
    more = f" and {len(names) - at_most} more" if len(names) > at_most else ""
    return ", ".join(names[:at_most]) + more


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
    "segno": "host",
    "starlette": "watch",
    "uvicorn": "watch",
}
"""Optional package -> the extra of outerloop-train that installs it."""


def missing_package(name: str | None) -> UserError | None:
    """Return an error that names the extra to install, or None if the module `name` is not in an optional package."""
    package = (name or "").partition(".")[0]
    if package not in EXTRAS:
        return None
    return UserError(f"{package} is not installed: run pip install 'outerloop-train[{EXTRAS[package]}]'")


class RoundFailed(Exception):
    """A round did not complete. No weights were changed, so the next round includes the progress of this round."""


class QuorumLost(Exception):
    """Too few peers were present for too long, so no round could be decided. The run ends; its checkpoints remain."""


class StateTransferRequired(Exception):
    """This replica is too far behind the other peers, or differs from most of them, and must load their state.

    `state(max_bytes)` fetches that state, which may have at most `max_bytes` bytes. It returns the round of the state,
    and the bytes that `SharedState.serialize` returned after that round.
    """

    def __init__(self, state: Callable[[int], tuple[Round, bytes]]) -> None:
        super().__init__("this replica is behind the other peers or differs from most of them")
        self.state = state


class LeaderFailed(Exception):
    """The island's leader, the process that communicates for all of its ranks, failed; the message gives the reason."""


class Stopped(BaseException):
    """The run was asked to stop (Ctrl-C, or another worker failed).

    This is not an error, so `except Exception` does not catch it.
    """


class ReplicasDiverged(Exception):
    """Peers that must hold equal slow weights hold different slow weights."""


class Outvoted(ReplicasDiverged):
    """Most peers finished with slow weights that differ from this peer's. Theirs are the final model of the run."""


@dataclass(frozen=True, order=True)
class Round:
    """One exchange of one model fragment, identified by its number and the index of the fragment, both from 0."""

    number: int
    fragment: int = 0

    def __str__(self) -> str:
        """Return the round's name in every message to the user, which counts rounds from 1: "round 61 fragment 2"."""
        return f"round {self.number + 1}" + (f" fragment {self.fragment}" if self.fragment else "")


FIRST = Round(0)


@dataclass(frozen=True)
class DueRounds:
    """The rounds to launch and to land after one inner step. Launches come before landings."""

    launch: Sequence[Round] = ()
    land: Sequence[Round] = ()


@dataclass(frozen=True)
class Contribution:
    """One peer's message in a round. `blob` holds the bytes of the wire message, or a view of them."""

    peer: str
    round: Round
    blob: bytes | memoryview = field(repr=False)


@dataclass(frozen=True)
class Contributor:
    """The contributions of one peer to a run, over all rounds so far (core/ledger.py).

    peer: the peer's id, which is derived from its key; "" for all peers together that have no entry of their own.
    rounds: number of rounds that counted its message.
    samples: training samples credited to it; at most what it claimed in these messages.
    first_round, last_round: numbers of the first and last such round.
    """

    peer: str
    rounds: int
    samples: int
    first_round: int
    last_round: int


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """The properties of an exchange, which are the same in every run.

    agrees             all peers in a round get the same contributions, so their slow weights stay equal
    waits_for_all      a round includes every launched message; if False, it may complete without some of them
    lockstep           all peers are in the same round at the same time, so they can all-gather during a run
    measures_transfer  the transfer time excludes the time spent waiting for late peers
    concurrent         `start` may be called from a different thread than the other methods, while inner steps run
    replicated         rounds are decided by majority vote, so peers may be absent, or join late and load the state
    """

    agrees: bool
    waits_for_all: bool
    lockstep: bool
    measures_transfer: bool
    concurrent: bool
    replicated: bool = False


@dataclass(frozen=True)
class StateHandoff:
    """A transfer of the initial state between peers, before the first inner step.

    number: sequence number of the handoff; all-gathers outside of rounds are numbered in the same sequence.
    givers, takers: names of the peers that send and that receive the state, in order. All givers hold equal states, and
        the first giver is the first peer of the run.
    max_bytes: maximum size of the state.
    timeout_s: maximum time to wait for the other peers.
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
    fact: the name of the required property.
    value: the value that the property must have.
    reason: one line for the user, with the reason and what to set instead.
    """

    axis: str
    fact: str
    value: object
    reason: str


@dataclass(frozen=True)
class RoundCost:
    """The cost of a round to this peer, from one landing to the next, in seconds and bytes.

    compute_s: time spent in inner steps.
    codec_s: time spent launching and landing.
    hidden_s: time spent in the inner steps between launch and landing.
    transfer_s: time during which payloads were in transfer, whether or not inner steps ran at the same time.
    bytes_sent: bytes that this peer sent, counting every copy.
    """

    compute_s: float
    codec_s: float
    hidden_s: float
    transfer_s: float
    bytes_sent: int


@dataclass(frozen=True)
class CodecContext:
    """The inputs of a compressor besides the values of the tensor that it encodes or decodes.

    All fields except `leads` are equal on all peers. `seed` is different for each round and tensor. `name` is the
    parameter's name. `group` is the number of consecutive values that share a scale, if an enclosing codec sets it (to
    the number of values kept per chunk), else None.

    Peers can agree on an auxiliary tensor one round ahead. Each round has one leader, whose `leads` is True. If its
    compressor returns a part named "next" for a parameter, this part becomes every peer's `agreed` for the same
    parameter in the next round. It is not part of the encoded values: `decode` only checks it, and it is not summed.
    `agreed` is None if no "next" part has landed.
    """

    round: int
    seed: int
    group: int | None = None
    leads: bool = False
    agreed: Tensor | None = None
    name: str = ""
