"""Show progress in the terminal: a progress bar, or plain lines if the output is a file or a pipe."""

from __future__ import annotations

from typing import Any

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from outerloop.sinks.sink import RunInfo, print_line


def format_bytes(count: float) -> str:
    """Format a number of bytes: 1234567 -> 1.2 MB."""
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def format_tokens(count: int) -> str:
    """Format a number of tokens: 3686400 -> 3.7M, 40960 -> 41.0k."""
    return f"{count / 1e6:.1f}M" if count >= 999_950 else f"{count / 1e3:.1f}k" if count >= 1000 else f"{count}"


EVERY_S = 1.0
"""Minimum number of seconds between two printed rounds; some recipes have a round after every inner step."""


class Terminal:
    """The progress display of one run."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {"loss": None, "val_loss": None, "bytes_sent": 0, "peers": 0, "expected": 0}
        self.state["state_bytes_sent"] = 0
        self.first: dict[int, dict[str, Any]] = {}
        self.latest: dict[int, dict[str, Any]] = {}
        self.shown, self.shown_s = (0, -1), -EVERY_S

    def start(self, run: RunInfo) -> None:
        """Show the progress bar if the output is a terminal."""
        self.console, self.rounds = run.console, run.settings["rounds"]
        columns = [TextColumn("[bold]{task.completed}/{task.total}"), BarColumn(bar_width=10)]
        self.bar = Progress(
            *columns, TextColumn("{task.description}"), TimeRemainingColumn(compact=True), console=self.console
        )
        self.task = self.bar.add_task("starting", total=self.rounds)
        if self.console.is_terminal:
            self.bar.start()

    def write(self, row: dict[str, Any]) -> None:
        """Process one row and update the display."""
        self.state |= {key: row[key] for key in self.state if key in row}
        if row["event"] in ("step", "eval"):
            self.first.setdefault(row["worker"], row)
            self.latest[row["worker"]] = row
        if row["event"] == "round" and (row["round"], row["fragment"]) > self.shown:
            self.shown = row["round"], row["fragment"]
            self.show_round(row)
        if row["event"] == "validation":
            self.say(f"round {row['round']}/{self.rounds}  validation loss {row['val_loss']:.3f} nats")
        if row["event"] == "sample":
            self.say(f"round {row['round']}/{self.rounds}  sample: {row['text']}")
        if row["event"] in ("status", "died"):
            self.say(row["text"])

    def show_round(self, row: dict[str, Any]) -> None:
        """Update the progress bar, or print a line if the output is not a terminal."""
        if row["failed"]:
            self.say(f"round {row['round']} did not complete: {row['failed']}")
        if self.console.is_terminal:
            self.bar.update(self.task, completed=row["round"], description=self.line("loss", "val_loss"))
        elif row["wall_s"] >= self.shown_s + EVERY_S or row["round"] == self.rounds:
            self.shown_s = row["wall_s"]
            self.say(f"round {row['round']}/{self.rounds}  {self.line('loss')}")

    def line(self, *losses: str) -> str:
        """Return a one-line summary: latest values of these losses, tokens per second, bytes sent, peers."""
        parts = [
            f"{name.removesuffix('_loss')} {self.state[name]:.3f}" for name in losses if self.state[name] is not None
        ]
        if speed := self.tokens_per_s():
            parts.append(f"{speed:,.0f} tokens/s")
        peers, expected = self.state["peers"], self.state["expected"]
        peers_text = f"{peers} of {expected}" if peers < expected else f"{peers}"
        sent, of_state = f"sent {format_bytes(self.state['bytes_sent'])}", self.state["state_bytes_sent"]
        if of_state:
            sent += f" (of which {format_bytes(of_state)}: the state, for newcomers)"
        return "  ".join([*parts, sent, f"{peers_text} peer{'s' * (peers_text != '1')}"])

    def tokens_per_s(self) -> float:
        """Return the total tokens per second of all local workers, averaged over the current session."""
        tokens = sum(row["tokens"] - self.first[worker]["tokens"] for worker, row in self.latest.items())
        start_s = min((row["wall_s"] for row in self.first.values()), default=0.0)
        return tokens / max(1e-9, max((row["wall_s"] for row in self.latest.values()), default=0.0) - start_s)

    def say(self, text: str) -> None:
        """Print one plain line above the progress bar."""
        print_line(self.console, text)

    def close(self) -> None:
        """Stop the progress bar, leaving its last state on the screen."""
        if self.console.is_terminal:
            self.bar.stop()
