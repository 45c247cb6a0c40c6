"""Lies that do not depend on the protocol of the run (exchange.trust)."""

from __future__ import annotations

from faulty.forging import FAR, Messages, Outgoing

VIEWS = (1, 2, FAR, (1 << 31) - 1)


def views(out: Outgoing) -> Messages:
    """Send view changes for views up to 2^31 - 1."""
    return out.with_more(*(out.view_change(out.machine.number, view) for view in VIEWS))


def histories(out: Outgoing) -> Messages:
    """Claim a round far ahead, and answer requests for commits with no commits."""
    return out.with_more(out.view_change(out.machine.number + FAR, 0))


def silence(out: Outgoing) -> Messages:
    """Send no consensus messages."""
    return []
