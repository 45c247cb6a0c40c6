"""Exclude single peers, show what they have contributed, and report those that join or leave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from outerloop.protocols import Exchange
from outerloop.types import Contributor, Refusals, Round


@runtime_checkable
class RejectsPeers(Protocol):
    """An exchange between peers that need not trust each other."""

    def refused(self, round: Round, refusals: Refusals) -> None:
        """Report that a round has landed on this replica without these peers' messages, which no peer can use."""
        ...


def report_refused(exchange: Exchange, round: Round, refusals: Refusals) -> None:
    """Report the unusable messages of a landed round, if any, to an exchange that rejects peers."""
    if refusals and isinstance(exchange, RejectsPeers):
        exchange.refused(round, refusals)


@runtime_checkable
class Publishes(Protocol):
    """An exchange that shows the contributions of all peers to those who observe the run."""

    def publish_contributors(self, round: Round, contributors: Sequence[Contributor]) -> None:
        """Show the contributions up to and including a round that has landed on this replica."""
        ...

    def public_names(self) -> Mapping[str, str]:
        """Return peer id -> public name, for the peers whose names are known."""
        ...


def report_contributors(exchange: Exchange, round: Round, contributors: Sequence[Contributor]) -> None:
    """Report the contributions up to and including a landed round to an exchange that shows them."""
    if isinstance(exchange, Publishes):
        exchange.publish_contributors(round, contributors)


def public_names(exchange: Exchange) -> Mapping[str, str]:
    """Return peer id -> public name; empty if the peers of the exchange have no names."""
    return exchange.public_names() if isinstance(exchange, Publishes) else {}


@runtime_checkable
class ReportsRoster(Protocol):
    """An exchange that reports which peers join and leave the run."""

    def roster_news(self) -> Sequence[str]:
        """Return one line for each peer that has joined or left since the last call.

        An exchange may limit the number of lines, and count further changes in one line.
        """
        ...


def roster_news(exchange: Exchange) -> Sequence[str]:
    """Return one line for each peer that has joined or left since the last call; empty if the exchange has none."""
    return exchange.roster_news() if isinstance(exchange, ReportsRoster) else ()
