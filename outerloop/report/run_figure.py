"""Draw the figure of one run: its losses against tokens, and its payload bytes compared with float32 payloads."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from outerloop.report.summary import fragments_in

Row = dict[str, Any]


def draw_run(rows: list[Row], summary: Row, path: Path) -> None:
    """Draw the losses and payload bytes of one run as a PNG."""
    figure, (loss, sent) = plt.subplots(1, 2, figsize=(11, 4.2), constrained_layout=True)
    draw_loss(loss, rows)
    draw_bytes(sent, rows, summary)
    figure.suptitle(title(summary))
    figure.savefig(path, dpi=130)
    plt.close(figure)


def title(summary: Row) -> str:
    """Return the title of the figure of a run: recipe, size, loss, and how much less it sent than float32."""
    size = f"{summary['recipe']}, {summary['workers']} workers, {summary['params'] / 1e6:.2f}M parameters"
    ratio = summary["ratio_to_fp32"]
    fewer = f", {ratio:.0f}x fewer bytes than float32" if ratio > 1.5 else ""
    return f"{size}: {summary['val_loss']:.3f} nats per token{fewer}"


def draw_loss(axes: Axes, rows: list[Row]) -> None:
    """Draw each worker's training loss as a thin line, and the global model's validation loss with markers."""
    steps = [row for row in rows if row["event"] == "step"]
    workers = sorted({row["worker"] for row in steps})
    for worker in workers:
        own = [row for row in steps if row["worker"] == worker]
        tokens = [row["tokens"] * len(workers) / 1e6 for row in own]
        axes.plot(tokens, [row["loss"] for row in own], lw=0.6, alpha=0.45, color="tab:blue")
    seen = [row for row in rows if row["event"] == "validation"]
    axes.plot([row["tokens"] / 1e6 for row in seen], [row["val_loss"] for row in seen], "o-", ms=3, color="tab:orange")
    axes.plot([], [], lw=0.8, color="tab:blue", label="training, each worker")
    axes.plot([], [], "o-", ms=3, color="tab:orange", label="validation, global model")
    axes.set(xlabel="million tokens, workers on this machine", ylabel="loss [nats per token]")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)


def draw_bytes(axes: Axes, rows: list[Row], summary: Row) -> None:
    """Draw worker 0's cumulative payload bytes, next to those of float32 pseudo-gradients in the same rounds."""
    rounds = [row for row in rows if row["event"] == "round" and row["worker"] == 0 and row["payload_bytes"]]
    numbers, float32_mb = [row["round"] for row in rounds], 4 * summary["params"] / fragments_in(rounds) / 1e6
    axes.plot(numbers, [float32_mb * n for n in range(1, len(rounds) + 1)], "--", color="gray", label="float32")
    axes.plot(
        numbers,
        list(accumulate(row["payload_bytes"] / 1e6 for row in rounds)),
        color="tab:green",
        label=f"{summary['bits_per_param_per_round']:.3g} bits per parameter",
    )
    axes.set(xlabel="outer rounds", ylabel="payloads of one worker, each counted once [MB]", yscale="log")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
