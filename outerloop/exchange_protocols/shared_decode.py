"""Share the decoded messages of a round among peers of one process, or the ranks of an island."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar, runtime_checkable

from outerloop.protocols import Exchange
from outerloop.types import Refusals, Round


class Reading(Protocol):
    """The result of decoding the messages of a round."""

    @property
    def refused(self) -> Refusals:
        """Peer -> the reason why its message is left out."""
        ...


Read = TypeVar("Read", bound=Reading)


@runtime_checkable
class SharedDecode(Protocol):
    """An exchange that lets several peers or ranks share the decoded messages of a round."""

    def decode_shared(self, round: Round, read: Callable[[Refusals], Read]) -> Read:
        """Call `read` for the messages of a round, and return its result.

        The argument of `read` contains the refusals that another rank of this peer has already found.

        If several peers share this process and get the same contributions, `read` is called once and all of them get
        the same object, which must not be modified. Raises the errors of `read`.
        """
        ...


def decode_shared(exchange: Exchange, round: Round, read: Callable[[Refusals], Read]) -> Read:
    """Call `SharedDecode.decode_shared`. If the exchange lacks it, call `read` for this peer alone."""
    return exchange.decode_shared(round, read) if isinstance(exchange, SharedDecode) else read({})
