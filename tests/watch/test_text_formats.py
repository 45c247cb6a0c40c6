"""Plain text and the format of Prometheus, and the dashboard that uses its metrics."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from outerloop.watch import prometheus
from outerloop.watch.prometheus import Counters, metrics_text
from outerloop.watch.sweep_dir import SweepDirectory
from outerloop.watch.text import aligned, amount, decimal, duration, page_text, with_short_names
from tests.support.watch_rows import HOSTILE, page_of, run_rows, status, write_run

ROOT = Path(__file__).parents[2]
DASHBOARD = ROOT / "examples/monitoring/grafana.json"
METRICS = [
    *prometheus.HEADER.values(),
    *prometheus.PEER.values(),
    prometheus.UP,
    prometheus.WATCH_UP,
    prometheus.INFO,
    *prometheus.CONTRIBUTOR.values(),
    prometheus.CONTRIBUTOR_INFO,
    prometheus.PEER_INFO,
    prometheus.SWEEP_LOSS,
    prometheus.SWEEP_BYTES,
    prometheus.SWEEP_RUNS,
]


def samples(text: str) -> dict[str, str]:
    """Metric with its labels -> value."""
    return dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))


def test_metrics_of_a_run_have_the_numbers_of_the_page():
    found = samples(metrics_text(page_of(run_rows(3)), is_up=True, counters=Counters()))
    assert found["outerloop_watch_up"] == "1" and found["outerloop_round"] == "3"
    assert found["outerloop_val_loss_nats"] == "2.0" and found["outerloop_outer_sent_bytes_total"] == "1500"
    assert found['outerloop_peer_late_seconds{peer="001-b"}'] == "1.5"
    assert found['outerloop_run_info{run="mine",recipe="sparseloco",state="running"}'] == "1"
    assert not any(name.startswith("outerloop_peer_received_bytes_total") for name in found), "not known yet"


def test_counters_of_a_run_do_not_fall_when_it_goes_back():
    """A run of 3 rounds goes back to round 1, and on to round 4; gauges go back with it. A swarm states what it has."""
    counters = Counters()
    names = ("outerloop_outer_sent_bytes_total", 'outerloop_peer_samples_total{peer="000-a"}', "outerloop_round")

    def shown(rounds, kind="run"):
        found = samples(metrics_text({**page_of(run_rows(rounds)), "kind": kind}, is_up=True, counters=counters))
        return [int(found[name]) for name in names]

    first, third, fourth = ([int(samples_of(rounds)[name]) for name in names] for rounds in (1, 3, 4))
    assert first < third < fourth
    assert [shown(3), shown(1), shown(4)] == [third, [*third[:2], 1], fourth]
    assert shown(1, kind="swarm") == first


def samples_of(rounds):
    """The metrics of a run of so many rounds in a watch process that has seen nothing before."""
    return samples(metrics_text(page_of(run_rows(rounds)), is_up=True, counters=Counters()))


def test_a_peer_that_died_is_down_and_its_loss_may_be_nan():
    rows = [
        *run_rows(1),
        {"event": "step", "worker": 0, "step": 9, "loss": float("nan")},
        {"event": "died", "worker": 0, "step": 9, "text": "killed"},
    ]
    found = samples(metrics_text(page_of(rows), is_up=True, counters=Counters()))
    assert found['outerloop_peer_up{peer="000-a"}'] == "0" and found['outerloop_peer_up{peer="001-b"}'] == "1"
    assert found['outerloop_peer_train_loss_nats{peer="000-a"}'] == "NaN"


@pytest.mark.parametrize(("name", "kind", "meaning"), METRICS)
def test_names_have_units_and_help_texts(name, kind, meaning):
    """Counters end in _total, and no name has a unit that is not a base unit."""
    assert re.fullmatch(r"outerloop_[a-z_]+", name) and meaning.endswith(".") and len(meaning) > 15
    assert (kind == "counter") == name.endswith("_total") and kind in ("counter", "gauge")
    assert not re.search(r"_(ms|minutes|kb|mb|percent|loss)$", name)


def test_each_metric_is_declared_once_and_before_its_samples():
    text = metrics_text(page_of(run_rows(3)), is_up=True, counters=Counters())
    declared = re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)
    assert len(declared) == len(set(declared)) == len(re.findall(r"^# HELP", text, re.MULTILINE))
    seen: list[str] = []
    for line in text.splitlines():
        if line.startswith("# TYPE"):
            seen.append(line.split()[2])
        elif not line.startswith("#"):
            assert line.split("{")[0].split(" ")[0] == seen[-1]


def test_metrics_of_a_sweep_are_by_group(tmp_path):
    write_run(tmp_path / "0", run_rows(3), finished=True)
    page = SweepDirectory(tmp_path).read()
    found = samples(metrics_text(page, is_up=True, counters=Counters()))
    assert found['outerloop_sweep_val_loss_nats{group="sparseloco"}'] == "2.0"
    assert "Finished runs" in page_text(page, "") and "sparseloco" in page_text(page, "")


def test_the_dashboard_uses_metrics_that_exist():
    dashboard = json.loads(DASHBOARD.read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    used = {name for query in queries for name in re.findall(r"outerloop_\w+", query)}
    assert len(used) > 8 and used <= {name for name, _, _ in METRICS}
    assert "://" not in DASHBOARD.read_text()


def test_every_metric_is_documented():
    page = (ROOT / "docs/reference/watch.md").read_text()
    assert [name for name, _, _ in METRICS if f"`{name}`" not in page] == []


def test_the_text_page_has_header_peers_and_events():
    lines = page_text(page_of([*run_rows(3), status(0, HOSTILE)]), "").splitlines()
    assert lines[0] == "mine: running"
    assert "progress   round 3 of 10, step 12 of 40" in lines
    assert any(re.fullmatch(r"000-a +training +3 +12 +2\.000 +100 .*", line) for line in lines)
    assert all(line.isprintable() for line in lines)
    assert page_text(None, "no answer").splitlines() == ["problem: no answer", "", "nothing has been read yet"]


def test_names_in_sentences_are_shortened():
    line = "none from 003-12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp, 004-short"
    assert with_short_names(line) == "none from 003-…vnc6iDEp, 004-short"


def test_columns_are_aligned():
    assert list(aligned([["a", "bb", "1"], ["ccc", "d", "10"]], words=2)) == ["a    bb   1", "ccc  d   10"]


@pytest.mark.parametrize(
    ("form", "value", "text"),
    [
        (decimal, None, "–"),
        (decimal, "nan", "nan"),
        (decimal, 2.5, "2.500"),
        (decimal, 1e9, "1.000e+09"),
        (amount, 1_234_567, "1.235 M"),
        (amount, 12, "12"),
        (duration, 1.5, "1.5s"),
        (duration, 65, "1m05s"),
        (duration, 3725, "1h02m"),
        (duration, None, "–"),
    ],
)
def test_numbers_are_short(form, value, text):
    assert form(value) == text
