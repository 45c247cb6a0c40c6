"""Track one worker of this machine by its rows in metrics.jsonl (docs/reference/metrics.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from outerloop.core.utilization import SPENT
from outerloop.watch.model.advice import cure_of_peer
from outerloop.watch.model.page import Peer, PeerPhase
from outerloop.watch.model.values import count, finite, peer_id, rounded, text

Row = Mapping[str, Any]
CIRCUIT = "/p2p-circuit"
"""Part of the address of a peer that is reached through a relay."""
ENDED = ("finished", "left", "died")
"""States of a worker that no longer trains."""


def status_line(row: Row) -> str:
    """Return the text of a "status" row. The prefix "worker N", which some texts have, is removed."""
    return text(row.get("text", "")).removeprefix(f"worker {row.get('worker')} ")


@dataclass
class Worker:
    """One worker.

    tokens_per_step: mean tokens per inner step since `counted_from`, or None while it is not known.
    counted_from: tokens and inner step of its first record since it joined or loaded the state; None: no record yet.
    payloads, payload_bytes: number of payloads that are not empty, and their total size.
    waiting: what it waits for, according to its newest line about that; "" if it does not wait.
    """

    index: int
    name: str
    state: PeerPhase = "starting"
    reason: str = ""
    round: int = 0
    step: int = 0
    landed_step: int = 0
    loss: Any = None
    tokens: int = 0
    tokens_step: int = 0
    tokens_per_step: float | None = None
    counted_from: tuple[int, int] | None = (0, 0)
    tokens_per_s: Any = None
    payloads: int = 0
    payload_bytes: int = 0
    bytes_sent: int = 0
    bytes_received: int | None = None
    refused_payloads: int = 0
    refused_messages: int | None = None
    address: str = ""
    waiting: str = ""
    spent_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(SPENT, 0.0))
    last_round: Row = field(default_factory=dict)

    @property
    def is_active(self) -> bool:
        """Return whether the worker still trains."""
        return self.state not in ENDED

    @property
    def refused(self) -> int:
        """Return how many messages this worker has refused, or how many payloads if it does not count messages."""
        return self.refused_payloads if self.refused_messages is None else self.refused_messages

    def add(self, row: Row) -> None:
        """Update the worker from one of its rows."""
        self.step = max(self.step, count(row.get("step")))
        handler = getattr(self, f"on_{row['event']}", None)
        if handler is not None:
            handler(row)

    def on_ready(self, row: Row) -> None:
        """Note that the worker has joined the others."""
        self.name = text(row.get("peer") or self.name)
        self.on_state(row)

    def on_address(self, row: Row) -> None:
        """Note the first address of the worker, which is the one that most machines can reach."""
        addresses = row.get("addresses")
        self.address = text(addresses[0]) if isinstance(addresses, list) and addresses else ""

    def on_step(self, row: Row) -> None:
        """Note loss, tokens and speed of an inner step."""
        self.loss, self.tokens_per_s = row.get("loss"), row.get("tokens_per_s")
        self.on_eval(row)
        self.state, self.reason, self.waiting = "training", "", ""

    def on_eval(self, row: Row) -> None:
        """Note the number of tokens so far, and the inner step after which it was counted."""
        tokens, step = count(row.get("tokens")), count(row.get("step"))
        if tokens < self.tokens:
            return
        self.tokens, self.tokens_step = tokens, step
        first_tokens, first_step = self.counted_from = self.counted_from or (tokens, step)
        if step > first_step:
            self.tokens_per_step = (tokens - first_tokens) / (step - first_step)

    def on_round(self, row: Row) -> None:
        """Note that a round has landed or failed."""
        self.last_round, self.waiting = row, ""
        self.round, self.landed_step = max(self.round, count(row.get("round"))), count(row.get("step"))
        size = count(row.get("payload_bytes"))
        self.payloads, self.payload_bytes = self.payloads + bool(size), self.payload_bytes + size
        self.bytes_sent = max(self.bytes_sent, count(row.get("bytes_sent")))
        self.refused_payloads += count(row.get("refused"))
        if "refused_messages" in row:
            self.refused_messages = count(row["refused_messages"])
        for name in SPENT:
            self.spent_s[name] += finite(row.get(name)) or 0.0
        failed = row.get("failed")
        self.state, self.reason = ("failed", text(failed)) if failed else ("training", "")

    def on_status(self, row: Row) -> None:
        """Note what the worker waits for, or that it downloads the state of the run."""
        line = status_line(row)
        if line.startswith("waiting: "):
            self.state, self.waiting = "waiting", line.removeprefix("waiting: ")
            self.reason = f"waits: {self.waiting}"
        elif line.startswith(("out of step", "state of the run: ")):
            self.state, self.reason, self.waiting = "catching up", line, ""

    def on_state(self, row: Row) -> None:
        """Note that the worker trains again: it has downloaded the state of the run.

        It has not trained in the steps that it skipped.
        """
        self.counted_from = None if self.tokens else (0, count(row.get("step")))
        self.state, self.reason, self.waiting = "training", "", ""

    def on_done(self, row: Row) -> None:
        """Note the totals of a finished worker."""
        self.name, self.state, self.reason = text(row.get("peer") or self.name), "finished", ""
        self.bytes_sent, self.bytes_received = count(row.get("bytes_sent")), count(row.get("bytes_received"))

    def on_left(self, row: Row) -> None:
        """Note that the worker's process has ended, unless it is known to have finished or died."""
        if self.state not in ("finished", "died"):
            self.state, self.reason = "left", "its process has ended before the end of the run"

    def on_died(self, row: Row) -> None:
        """Note why the worker died: the last line of the error."""
        lines = str(row.get("text") or "ended without a message").strip().splitlines()
        self.state, self.reason = "died", text(lines[-1] if lines else "")

    on_error = on_died

    def page(self, *, public_name: str, seq_len: int | None, late_s: float | None) -> Peer:
        """Return the row of the table of peers. `seq_len`: tokens per sample."""
        return {
            "name": self.name,
            "id": peer_id(self.name),
            "public_name": public_name,
            "state": self.state,
            "reason": self.reason,
            "cure": cure_of_peer(self.state),
            "round": self.round,
            "step": self.step,
            "loss": rounded(self.loss),
            "tokens_per_s": rounded(self.tokens_per_s),
            "samples": self.tokens // seq_len if seq_len else None,
            "bytes_sent": self.bytes_sent,
            "bytes_received": self.bytes_received,
            "address": self.address.partition("/p2p/")[0] if CIRCUIT not in self.address else self.address,
            "relayed": CIRCUIT in self.address if self.address else None,
            "round_trip_s": None,
            "refused": self.refused,
            "late_s": late_s,
            "age_s": None,
        }
