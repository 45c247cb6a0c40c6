"""Compare the planner with published and measured figures.

    .venv/bin/python scripts/check_published.py

Streaming DiLoCo (arXiv 2501.18512): Gbit/s for 95 % utilization with 100 inner steps per round. The sizes, step times
and layers are the paper's, all rounded. Its results are rounded as well: those with three digits are on a grid of 50
values from 0.1 to 1,000 Gbit/s, each 1.21 times the previous one, so a printed number may differ by 21 % from the true
one. All nine rows share the following assumptions, which the paper does not state: each parameter is sent once, in 16
bits; reductions overlap with the backward pass, which is two thirds of a step, as in the authors' calculator; streaming
sends fragments of three layers in 4 bits and lands them one step later.

NoLoCo (arXiv 2506.10911): if a message takes the time t, a pair takes 2 t, and a tree of P peers 2 t log2(P).

Four hosts as network namespaces on a bridge (tc tbf, round trip 1.8 ms): each pulls the payloads of the other three.
The figures were measured with a prototype of this swarm: the lowest and the highest of several runs.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

from outerloop.plan.gather import bandwidth_for
from outerloop.plan.links import Links, gather_s, payload_links, tree_s

SHARE, SYNC_EVERY, BACKWARD, FRAGMENT_LAYERS, GRID = 0.95, 100, 2 / 3, 3, 10 ** (4 / 49)


@dataclass(frozen=True)
class Size:
    """One model in the Streaming DiLoCo paper. `printed`: its Gbit/s for data parallel, DiLoCo and streaming."""

    name: str
    params: float
    layers: int
    step_s: float
    printed: tuple[float, float, float]

    def planned(self) -> tuple[float, float, float]:
        """Return the Gbit/s that the planner predicts for data parallel, DiLoCo and streaming."""
        fragments, backward_s = self.layers / FRAGMENT_LAYERS, BACKWARD * self.step_s
        compute_s = SYNC_EVERY * self.step_s
        every_step = bandwidth_for(SHARE, bits=16 * self.params, compute_s=self.step_s, hidden_s=backward_s)
        diloco = bandwidth_for(SHARE, bits=16 * self.params, compute_s=compute_s, hidden_s=backward_s)
        streaming = bandwidth_for(
            SHARE,
            bits=4 * self.params / fragments,
            compute_s=compute_s / fragments,
            hidden_s=backward_s + self.step_s,
        )
        return every_step / 1e9, diloco / 1e9, streaming / 1e9


SIZES = (
    Size("1B", 1e9, 24, 0.1, (222, 23.3, 2.0)),
    Size("10B", 1e10, 48, 0.8, (268, 33.9, 1.4)),
    Size("100B", 1e11, 108, 4.9, (391, 49.4, 1.1)),
)
HOSTS = ((100, 10.0, 2.67, 2.89), (20, 3.0, 4.3, 4.5))
"""Per measurement: link rate in Mbit/s, megabytes per payload, lowest and highest measured seconds."""
METHODS = ("data parallel", "diloco", "streaming, overlap, 4 bits")


def table() -> Iterator[tuple[str, str, float, float]]:
    """Yield model size, method, the paper's Gbit/s and the planner's Gbit/s, row by row."""
    for size in SIZES:
        for method, printed, planned in zip(METHODS, size.printed, size.planned(), strict=True):
            yield size.name, method, printed, planned


def gathered_s(mbit: float, megabytes: float) -> float:
    """Return the seconds that the planner predicts for a gather between four hosts with links of this rate."""
    return gather_s(payload_links(mbit * 1e6, mbit * 1e6, 0.9e-3), megabytes * 1e6, 4)


def main() -> None:
    """Print all three tables."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print("| Gbit/s for 95 % | printed | planned | ratio |\n| --- | --- | --- | --- |")
    for size, method, printed, planned in table():
        print(f"| {size}, {method} | {printed:g} | {planned:.3g} | {planned / printed:.2f} |")
    print("\n| tree over pair | 2 t log2(P) / 2 t | planned |\n| --- | --- | --- |")
    for peers, printed in ((4, 2), (16, 4), (64, 6), (1024, 10)):
        planned = tree_s(Links(1e6, 1e6), 1e6, peers) / 2
        print(f"| {peers} peers | {printed} | {planned:.3g} |")
    print("\n| four hosts | measured | planned |\n| --- | --- | --- |")
    for mbit, megabytes, least_s, most_s in HOSTS:
        print(f"| {megabytes:g} MB at {mbit} Mbit/s | {least_s} - {most_s} s | {gathered_s(mbit, megabytes):.2f} s |")


if __name__ == "__main__":
    main()
