"""Compute the header of a run: progress, time left, losses, bits per parameter, utilization.

bits per parameter and inner step = bits per parameter and round / inner steps per round
tokens_total = tokens + tokens per inner step · inner steps left
eta_s = rounds left · seconds per round, measured over the last WINDOW rounds
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from outerloop.core.utilization import SPENT, utilization
from outerloop.report import metric_rows
from outerloop.watch.model.advice import cure_of_run
from outerloop.watch.model.page import Header, Number, RunPhase
from outerloop.watch.model.values import count, finite, setting, shown, text
from outerloop.watch.model.worker import Worker

if TYPE_CHECKING:
    from outerloop.watch.model.run_state import Surroundings

Row = Mapping[str, Any]
WINDOW = 20
"""Number of last rounds over which the time per round is averaged."""
SILENT_S = 120.0
"""Seconds without a row after which an unfinished run is shown as silent; the longest usual gap is an evaluation."""


@dataclass
class RunFacts:
    """Values that describe the whole run. Each comes from the newest row that contains it.

    landings: (round, seconds since the start of the run) of the last rounds: when each first landed; oldest first.
    error: why the run ended, or "".
    """

    params: int | None = None
    size: int | None = None
    alive: int | None = None
    val_loss: Any = None
    wall_s: float = 0.0
    error: str = ""
    landings: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=WINDOW + 1))

    def add(self, row: Row) -> None:
        """Update the values from one row."""
        self.wall_s = max(self.wall_s, finite(row.get("wall_s")) or 0.0)
        event = row["event"]
        if event == "ready":
            self.params, self.size = count(row.get("params")) or self.params, count(row.get("size")) or self.size
            self.error = ""
        elif event == "round":
            self.size, self.alive = count(row.get("expected")) or self.size, count(row.get("alive")) or self.alive
            number = count(row.get("round"))
            if not self.landings or number > self.landings[-1][0]:
                self.landings.append((number, finite(row.get("wall_s")) or 0.0))
        elif event == "validation":
            self.val_loss = row.get("val_loss")
        elif event == "error":
            lines = str(row.get("text") or "error without a message").strip().splitlines()
            self.error = text(lines[-1] if lines else "")


def seconds_left(landings: Sequence[tuple[int, float]], rounds: int | None) -> float | None:
    """Return the seconds until the last of `rounds` rounds lands, or None if this cannot be predicted.

    `landings`: number and time in seconds of the last rounds that landed, oldest first.
    """
    if rounds is None or len(landings) < 2:
        return None
    (first, first_s), (last, last_s) = landings[0], landings[-1]
    return max(0, rounds - last) * max(0.0, last_s - first_s) / (last - first)


def header(
    facts: RunFacts,
    workers: Sequence[Worker],
    settings: Mapping[str, Any],
    around: Surroundings,
    *,
    silent: bool,
) -> Header:
    """Return the header of a run."""
    state, reason = run_phase(facts, workers, around, silent=silent)
    rounds = count(setting(settings, "rounds")) or None
    done = max((worker.round for worker in workers), default=0)
    step = max((worker.step for worker in workers), default=0)
    h = steps_per_round(settings, workers)
    steps = count(setting(settings, "schedule.delay")) + round(h * rounds) if h and rounds else None
    bits = bits_per_param(workers, facts.params, fragments(settings))
    return {
        "name": text(around.name),
        "state": state,
        "reason": reason,
        "cure": cure_of_run(state),
        "recipe": text(setting(settings, "recipe", "")),
        "model": model_name(settings),
        "params": facts.params,
        "peers": facts.size,
        "alive": facts.alive,
        "round": done,
        "rounds": rounds,
        "step": step,
        "steps": steps,
        "tokens": sum(worker.tokens for worker in workers),
        "tokens_total": total_tokens(workers, steps),
        "tokens_per_s": shown(sum(finite(worker.tokens_per_s) or 0.0 for worker in workers if worker.is_active)),
        "elapsed_s": shown(facts.wall_s),
        "eta_s": shown(seconds_left(facts.landings, rounds)) if state == "running" else None,
        "loss": mean_loss(workers),
        "val_loss": shown(facts.val_loss),
        "bits_per_param_per_round": bits,
        "bits_per_param_per_step": bits / h if bits is not None and h else None,
        "bytes_sent": sum(worker.bytes_sent for worker in workers),
        "utilization": mean_utilization(workers),
        "updated_s": shown(around.updated_s),
        "links": list(around.links),
    }


def run_phase(
    facts: RunFacts, workers: Sequence[Worker], around: Surroundings, *, silent: bool
) -> tuple[RunPhase, str]:
    """Return the state of a run, and the reason for this state ("" if it needs none)."""
    if around.died or facts.error:
        return "died", text(around.died or facts.error)
    if around.results is not None:
        return "finished", ""
    if workers and not any(worker.is_active for worker in workers):
        return "stopped", "all workers of this machine have left, and there is no summary.json"
    if silent:
        return "silent", "no new record for more than two minutes"
    training = any(worker.state != "starting" for worker in workers)
    return ("running", "") if training else ("starting", "")


def fragments(settings: Mapping[str, Any]) -> int:
    """Return the number of fragments of the model, each of which is exchanged once per round."""
    return max(1, count(setting(settings, "schedule.fragments")))


def fixed_h(settings: Mapping[str, Any]) -> int | None:
    """Return H, the inner steps per round, or None if the schedule does not fix it."""
    if any(key in settings for key in ("schedule.sync_max", "schedule.seconds")):
        return None
    return count(setting(settings, "schedule.sync_every")) or None


def landing_interval(settings: Mapping[str, Any]) -> int | None:
    """Return the inner steps between two landings, H / fragments, or None if the schedule does not fix them."""
    every = fixed_h(settings)
    return every // fragments(settings) if every else None


def landing_step(settings: Mapping[str, Any], round_number: int) -> int | None:
    """Return the inner step at which a round has landed completely, or None if the schedule does not fix it."""
    every = fixed_h(settings)
    return round_number * every + count(setting(settings, "schedule.delay")) if every else None


def steps_per_round(settings: Mapping[str, Any], workers: Sequence[Worker]) -> float | None:
    """Return H. If the schedule does not fix it, return its mean over the landed rounds; None before the first one."""
    landed = max(workers, key=lambda worker: worker.round, default=None)
    fixed = fixed_h(settings)
    if fixed or landed is None or not landed.round:
        return fixed
    return max(0, landed.landed_step - count(setting(settings, "schedule.delay"))) / landed.round


def total_tokens(workers: Sequence[Worker], steps: int | None) -> int | None:
    """Return the tokens of all workers of this machine at the end of the run, if each trains until step `steps`."""
    if not steps or all(worker.tokens_per_step is None for worker in workers):
        return None
    left = (max(0, steps - worker.tokens_step) * (worker.tokens_per_step or 0.0) for worker in workers)
    return sum(worker.tokens for worker in workers) + round(sum(left))


def bits_per_param(workers: Sequence[Worker], params: int | None, fragments: int) -> float | None:
    """Return the payload bits per parameter and round of the worker that has sent most often, or None if none has."""
    sender = max(workers, key=lambda worker: worker.payloads, default=None)
    if not params or sender is None or not sender.payloads:
        return None
    return metric_rows.bits_per_param(sender.payload_bytes, sender.payloads, fragments=fragments, params=params)


def mean_loss(workers: Sequence[Worker]) -> Number:
    """Return the mean training loss of the workers. It is NaN if the loss of any worker is NaN."""
    losses = [float(loss) for worker in workers if (loss := shown(worker.loss)) is not None]
    return shown(sum(losses) / len(losses)) if losses else None


def mean_utilization(workers: Sequence[Worker]) -> Number:
    """Return the share of time that the workers have spent in inner steps, or None before the first round."""
    if not any(worker.round for worker in workers):
        return None
    return utilization(**{name: sum(worker.spent_s[name] for worker in workers) for name in SPENT})


def model_name(settings: Mapping[str, Any]) -> str:
    """Return a short description of the model: the last part of its class or function, with its main sizes."""
    target = str(setting(settings, "model._target_", "")).rpartition(".")[2]
    sizes = {name: settings.get(f"model.{key}") for key, name in (("layers", "layers"), ("hidden_size", "wide"))}
    return text(", ".join([target, *(f"{value} {name}" for name, value in sizes.items() if value)]).strip(", "))
