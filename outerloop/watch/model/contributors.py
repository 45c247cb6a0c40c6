"""Rank the peers of a run by the samples that they have trained on.

The numbers are those that each peer reports about itself. A total that peers have signed replaces them here.
"""

from __future__ import annotations

from collections.abc import Iterable

from outerloop.watch.model.page import Contributor, Peer


def contributors(peers: Iterable[Peer]) -> list[Contributor]:
    """Return the peers with a number of samples, most samples first."""
    known: list[Contributor] = [{"peer": peer["name"], "samples": peer["samples"]} for peer in peers if peer["samples"]]
    return sorted(known, key=lambda entry: (-entry["samples"], entry["peer"]))
