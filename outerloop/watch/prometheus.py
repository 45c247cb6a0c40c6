"""Write the state of the page in the text format of Prometheus (docs/reference/watch.md lists the metrics).

All values are in base units: seconds, bytes, nats. Metrics are named after the charts of the loggers: the metric of
val/loss is outerloop_val_loss_nats.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from outerloop.report.contributors import OTHERS
from outerloop.watch.model.page import Page

Metric = tuple[str, str, str]
"""Name, type and help text of a metric."""
GONE = ("silent", "left", "died", "expelled")
"""States of a peer for which outerloop_peer_up is 0."""
HEADER = {
    "round": ("outerloop_round", "gauge", "Last round that has landed."),
    "rounds": ("outerloop_rounds", "gauge", "Rounds of the whole run."),
    "step": ("outerloop_inner_step", "gauge", "Inner steps of the worker that is furthest ahead."),
    "tokens": ("outerloop_tokens_total", "counter", "Training tokens of the workers that are watched."),
    "tokens_per_s": ("outerloop_tokens_per_second", "gauge", "Speed of all workers together within inner steps."),
    "params": ("outerloop_parameters", "gauge", "Trainable parameters."),
    "peers": ("outerloop_expected_peers", "gauge", "Peers that the run expects."),
    "alive": ("outerloop_alive_peers", "gauge", "Peers that are expected in the next round."),
    "loss": ("outerloop_train_loss_nats", "gauge", "Mean training loss, nats per token."),
    "val_loss": ("outerloop_val_loss_nats", "gauge", "Validation loss of the global model, nats per token."),
    "utilization": ("outerloop_outer_utilization_ratio", "gauge", "Share of time spent in inner steps, 0 to 1."),
    "bytes_sent": (
        "outerloop_outer_sent_bytes_total",
        "counter",
        "Bytes sent, every copy and the state for newcomers counted.",
    ),
    "payload_bytes": ("outerloop_payload_bytes", "gauge", "Size of the payload of one worker and round."),
    "elapsed_s": ("outerloop_elapsed_seconds", "gauge", "Duration of the run so far."),
    "eta_s": ("outerloop_eta_seconds", "gauge", "Predicted time until the last round lands."),
    "updated_s": ("outerloop_updated_timestamp_seconds", "gauge", "Time of the newest record, since 1970."),
}
"""Field of the header -> name, type and help text of its metric."""
PEER = {
    "round": ("outerloop_peer_round", "gauge", "Last round that landed or failed at this peer."),
    "loss": ("outerloop_peer_train_loss_nats", "gauge", "Training loss of this peer, nats per token."),
    "tokens_per_s": ("outerloop_peer_tokens_per_second", "gauge", "Speed of this peer within inner steps."),
    "samples": ("outerloop_peer_samples_total", "counter", "Samples that this peer has trained on."),
    "bytes_sent": ("outerloop_peer_sent_bytes_total", "counter", "Bytes that this peer has sent, state included."),
    "bytes_received": (
        "outerloop_peer_received_bytes_total",
        "counter",
        "Bytes that this peer has received, state included.",
    ),
    "refused": ("outerloop_peer_refused_messages_total", "counter", "Messages that this peer has refused."),
    "round_trip_s": ("outerloop_peer_round_trip_seconds", "gauge", "Round-trip time from this machine to the peer."),
    "late_s": (
        "outerloop_peer_late_seconds",
        "gauge",
        "Time from the first payload to its own in its last round.",
    ),
}
"""Field of a peer -> name, type and help text of its metric, which has the label `peer`."""
UP = ("outerloop_peer_up", "gauge", "Whether this peer takes part: 0 if it is silent, has left, died or is expelled.")
WATCH_UP = ("outerloop_watch_up", "gauge", "Whether the source of this page could be read.")
INFO = ("outerloop_run_info", "gauge", "The run: its name, recipe and state are labels.")
PEER_INFO = ("outerloop_peer_info", "gauge", "A peer with a public name: its peer id and this name are labels.")
CONTRIBUTOR = {
    "samples": ("outerloop_contributor_samples_total", "counter", "Samples credited to this contributor."),
    "rounds": ("outerloop_contributor_rounds_total", "counter", "Rounds that counted this contributor."),
}
"""Field of a contributor -> name, type and help text of its metric, which has the label `peer`: its peer id."""
CONTRIBUTOR_INFO = ("outerloop_contributor_info", "gauge", "A contributor: its peer id and public name are labels.")
MAX_NAMES = 100
"""Maximum number of peers in each metric about names or contributors. The number of contributors has no limit."""
SWEEP_LOSS = ("outerloop_sweep_val_loss_nats", "gauge", "Mean final validation loss of a group of runs.")
SWEEP_BYTES = ("outerloop_sweep_sent_bytes", "gauge", "Mean payload bytes that a worker of a group of runs sent.")
SWEEP_RUNS = ("outerloop_sweep_runs", "gauge", "Finished runs of a group.")
SPECIAL = {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}


@dataclass(frozen=True)
class Sample:
    """One value with its labels."""

    labels: Mapping[str, str]
    value: object


Family = tuple[Metric, list[Sample]]


class Counters:
    """The highest value that each counter of a run directory has had since this object was created.

    metrics.jsonl loses its last rows when a run resumes or goes back to a checkpoint. Prometheus would take the lower
    counts that follow for those of a new process, and add them to the earlier ones.
    """

    def __init__(self) -> None:
        self.highest: dict[str, float] = {}

    def kept(self, metric: Metric, samples: list[Sample]) -> list[Sample]:
        """Return the samples of a metric; if it is a counter, with the highest value that each has had."""
        name, kind, _ = metric
        return [self.highest_of(name, sample) for sample in samples] if kind == "counter" else samples

    def highest_of(self, name: str, sample: Sample) -> Sample:
        """Return a sample with the highest value that it has had. A sample without a value is returned unchanged."""
        if not isinstance(sample.value, (int, float)):
            return sample
        series = f"{name} {sorted(sample.labels.items())}"
        self.highest[series] = max(sample.value, self.highest.get(series, sample.value))
        return Sample(sample.labels, self.highest[series])


def metrics_text(page: Page | None, *, is_up: bool, counters: Counters) -> str:
    """Return all metrics. Metrics whose value is not known are left out. The counters of a run never decrease."""
    lines = list(family(WATCH_UP, [Sample({}, int(is_up and page is not None))]))
    if page is None:
        return "\n".join(lines) + "\n"
    for metric, samples in sweep_families(page) if page["kind"] == "sweep" else run_families(page):
        lines += family(metric, counters.kept(metric, samples) if page["kind"] == "run" else samples)
    return "\n".join(lines) + "\n"


def run_families(page: Page) -> Iterator[Family]:
    """Yield the metrics of a run or a swarm."""
    run, peers = page["run"], page["peers"]
    info = {"run": run["name"], "recipe": run["recipe"], "state": run["state"]}
    yield (INFO, [Sample(info, 1)])
    yield from families(HEADER, [({}, {**run, "payload_bytes": payload_bytes(page)})])
    yield from families(PEER, [({"peer": peer["name"]}, peer) for peer in peers])
    yield (UP, [Sample({"peer": peer["name"]}, int(peer["state"] not in GONE)) for peer in peers])
    yield from name_families(page)


def payload_bytes(page: Page) -> float | None:
    """Return the mean size of one worker's payload of one round in bytes, or None if it is not known."""
    bits, params = page["run"]["bits_per_param_per_round"], page["run"]["params"]
    return bits * params / 8 if isinstance(bits, (int, float)) and isinstance(params, int) else None


def name_families(page: Page) -> Iterator[Family]:
    """Yield the metrics about public names and about the first MAX_NAMES contributors."""
    named = [peer for peer in page["peers"] if peer["public_name"]][:MAX_NAMES]
    labels = [{"peer": peer["name"], "id": peer["id"], "name": peer["public_name"]} for peer in named]
    yield (PEER_INFO, [Sample(names, 1) for names in labels])
    first = [({"peer": entry["peer"] or OTHERS}, entry) for entry in page["contributors"][:MAX_NAMES]]
    yield from families(CONTRIBUTOR, first)
    yield (CONTRIBUTOR_INFO, [Sample({**label, "name": entry["name"]}, 1) for label, entry in first])


def sweep_families(page: Page) -> Iterator[Family]:
    """Yield the metrics of a sweep. They have the label `group`."""
    points = page["sweep"]["pareto"] if page["sweep"] else []
    yield (SWEEP_LOSS, [Sample({"group": point["label"]}, point["loss"]) for point in points])
    yield (SWEEP_BYTES, [Sample({"group": point["label"]}, point["bytes"]) for point in points])
    yield (SWEEP_RUNS, [Sample({"group": point["label"]}, point["runs"]) for point in points])


def families(
    metrics: Mapping[str, Metric], entries: Sequence[tuple[Mapping[str, str], Mapping[str, object]]]
) -> Iterator[Family]:
    """Yield several metrics. `metrics`: field -> metric. `entries`: labels and fields of each sample."""
    for field, metric in metrics.items():
        yield (metric, [Sample(labels, values[field]) for labels, values in entries])


def family(metric: Metric, samples: list[Sample]) -> Iterator[str]:
    """Yield the help, type and samples of one metric, or nothing if no sample has a value."""
    name, kind, meaning = metric
    known = [sample for sample in samples if sample.value is not None]
    if known:
        yield f"# HELP {name} {meaning}"
        yield f"# TYPE {name} {kind}"
    for sample in known:
        labels = ",".join(f'{key}="{escaped(value)}"' for key, value in sample.labels.items())
        value = SPECIAL.get(str(sample.value), str(sample.value))
        yield f"{name}{{{labels}}} {value}" if labels else f"{name} {value}"


def escaped(value: str) -> str:
    """Escape the value of a label."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
