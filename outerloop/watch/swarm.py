"""Follow a swarm as a visitor, from the records that its peers publish about themselves (`outerloop status`)."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from outerloop.watch.model.page import Page
from outerloop.watch.model.swarm_state import SwarmState

if TYPE_CHECKING:
    from outerloop.core.contributor_rows import ContributorTable
    from outerloop.swarm.accountability.evidence import Evidence
    from outerloop.swarm.membership.roster import Record
    from outerloop.swarm.p2p.round_trips import Link


class Observation(Protocol):
    """The part of RunObservation (commands/observe.py) that is used here."""

    def seen(self) -> Sequence[tuple[Record, float]]:
        """Return the records of all peers present, each with its age in seconds."""
        ...

    def links(self) -> Mapping[str, Link]:
        """Return the newest link to each of these peers, by peer id. Peers that have not been asked yet are missing."""
        ...

    def expelled(self) -> Sequence[Evidence] | None:
        """Return the evidence against each expelled peer, or None if it is not known."""
        ...

    def contributions(self) -> ContributorTable | None:
        """Return what each peer has contributed, or None if it is not known."""
        ...


class Swarm:
    """A source of pages: the peers of one run, as a visitor sees them.

    Args:
        observation: reads the records of the peers as a visitor.
        run: exchange.run of the peers.
        settings: the settings of the run with dotted keys; empty if its peers do not describe them.
    """

    every_s = 2.0

    def __init__(self, observation: Observation, *, run: str, settings: Mapping[str, Any]) -> None:
        self.observation = observation
        self.state = SwarmState(run, settings)

    def read(self) -> Page:
        """Read the records of all peers, and return the page."""
        seen, links, evidence = self.observation.seen(), self.observation.links(), self.observation.expelled()
        expelled = None if evidence is None else {found.peer: found.why for found in evidence}
        self.state.add(time.time(), seen, expelled, self.observation.contributions(), links)
        return self.state.page()

    def close(self) -> None:
        """Close the source. The visitor is closed by the `with` block that created it."""
