"""Return a header without values, for pages that describe no single run."""

from __future__ import annotations

from outerloop.watch.model.page import Header, RunPhase
from outerloop.watch.model.values import text


def empty_header(name: str, state: RunPhase, updated_s: float | None) -> Header:
    """Return a header that states only a name, a state and the time of the newest record."""
    return {
        "name": text(name),
        "state": state,
        "reason": "",
        "cure": "",
        "recipe": "",
        "model": "",
        "params": None,
        "peers": None,
        "alive": None,
        "round": 0,
        "rounds": None,
        "step": 0,
        "steps": None,
        "tokens": None,
        "tokens_total": None,
        "tokens_per_s": None,
        "elapsed_s": None,
        "eta_s": None,
        "loss": None,
        "val_loss": None,
        "bits_per_param_per_round": None,
        "bits_per_param_per_step": None,
        "bytes_sent": 0,
        "utilization": None,
        "updated_s": updated_s,
        "links": [],
    }
