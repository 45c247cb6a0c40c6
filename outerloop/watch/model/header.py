"""Compute the header of a run: progress, time left, losses, bits per parameter, utilization.

bits per parameter and round = 8 · payload bytes of one worker / rounds / parameters
tokens_total = tokens per inner step · inner steps of the run
eta_s = rounds left · seconds per round, measured over the last WINDOW rounds
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from outerloop.core.utilization import SPENT, utilization
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
    steps = total_steps(settings, workers)
    bits = bits_per_param(workers, facts.params)
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
        "bits_per_param_per_round": bits[0],
        "bits_per_param_per_step": bits[1],
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


def total_steps(settings: Mapping[str, Any], workers: Sequence[Worker]) -> int | None:
    """Return the inner steps of the whole run, extrapolated from the landed rounds; None before the first landing."""
    rounds = count(setting(settings, "rounds"))
    delay = count(setting(settings, "schedule.delay"))
    landed = max(workers, key=lambda worker: worker.round, default=None)
    if not rounds or landed is None or not landed.round:
        return None
    return delay + round(max(0, landed.landed_step - delay) / landed.round * rounds)


def total_tokens(workers: Sequence[Worker], steps: int | None) -> int | None:
    """Return the tokens of all workers of this machine at the end of the run, if each of them takes `steps` steps."""
    known = [worker for worker in workers if worker.tokens_step]
    return round(sum(worker.tokens / worker.tokens_step for worker in known) * steps) if known and steps else None


def bits_per_param(workers: Sequence[Worker], params: int | None) -> tuple[Number, Number]:
    """Return the payload bits per parameter and round, and per parameter and inner step, of one worker."""
    sender = max(workers, key=lambda worker: worker.round, default=None)
    if not params or sender is None or not sender.round:
        return None, None
    bits = 8 * sender.payload_bytes / params
    return bits / sender.round, bits / sender.landed_step if sender.landed_step else None


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
