"""Trivial parts of an Exchange whose peers are all present from the start: no newcomers, no decisions by a majority."""

from __future__ import annotations

from collections.abc import Callable

from outerloop.types import Refusals, Round


class StaticMembership:
    """The methods of an Exchange that concern late or excluded peers, where there are none."""

    came_late = False
    recovery = None

    def decided(self, round: Round) -> bool:
        """Return False: no round is decided without this peer's message."""
        return False

    def landed(self, round: Round, state: Callable[[], bytes]) -> None:
        """Do nothing: no peer will request the state."""

    def refused(self, round: Round, refusals: Refusals) -> None:
        """Do nothing: the report of the round names these peers, and no peer is excluded."""
