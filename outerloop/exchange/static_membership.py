"""What is simple where all peers are there from the start: nobody is late, and nobody decides without the others."""

from __future__ import annotations

from collections.abc import Callable

from outerloop.types import Refusals, Round


class StaticMembership:
    """Part of an Exchange."""

    came_late = False
    recovery = None

    def decided(self, round: Round) -> bool:
        """Never: a round needs what this peer launches."""
        return False

    def landed(self, round: Round, state: Callable[[], bytes]) -> None:
        """Nobody will ask for the state."""

    def refused(self, round: Round, refusals: Refusals) -> None:
        """The report of the round names them; there is nobody to keep out."""
