"""`log=`: several sinks at once, a sink of one's own, and sinks that fail or are not installed."""

import io
import json
import sys
from types import SimpleNamespace

import pytest
from rich.console import Console

from outerloop.config import load
from outerloop.launcher.run_info import make_sinks
from outerloop.launcher.run_info import run_info as described
from outerloop.sinks.charts import Charts
from outerloop.sinks.console import Terminal, format_tokens
from outerloop.sinks.sink import Sinks, print_line
from outerloop.types import UserError
from tests.support.sink_rows import CHARTS, ROWS, play, run_info


@pytest.mark.parametrize(
    ("option", "sinks"),
    [
        ("log=console", ["console"]),
        ("log=wandb", ["console", "wandb"]),
        ("log=[jsonl,console,wandb]", ["console", "wandb"]),
        ("log=jsonl", []),
        ("log=[]", []),
    ],
)
def test_sinks_are_chosen_as_a_list(option, sinks):
    assert sorted(make_sinks(load.load([option])).sinks) == sinks


def test_a_sink_of_ones_own_by_its_dotted_path(tmp_path, monkeypatch):
    (tmp_path / "mysink.py").write_text(
        "class Count:\n    def __init__(self, start_at): self.rows = start_at\n"
        "    def start(self, run): pass\n    def write(self, row): self.rows += 1\n    def close(self): pass\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    sinks = make_sinks(load.load(["+log.mine._target_=mysink.Count", "+log.mine.start_at=5"]))
    play(sinks, run_info(tmp_path), {"event": "saved", "worker": 0, "step": 1})
    assert sinks.sinks["mine"].rows == 6
    with pytest.raises(UserError, match=r"log\.mine\.begin: no such option"):
        load.load(["+log.mine._target_=mysink.Count", "+log.mine.begin=5"])


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("log=[console,wandbb]", "log=wandbb: log must be one of .*: set log=wandb"),
        ("log.wandb.project=x", "log.wandb.project: no such option"),
        ("+log.mine.x=1", "log.mine.x: no such option"),
    ],
)
def test_mistakes_are_named(option, message):
    with pytest.raises(UserError, match=message):
        load.load([option])


def test_a_sink_that_is_not_installed_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "trackio", None)
    monkeypatch.delitem(sys.modules, "outerloop.sinks.trackio", raising=False)
    with pytest.raises(UserError, match=r"trackio is not installed: run pip install 'outerloop-train\[trackio\]'"):
        make_sinks(load.load(["log=trackio"]))


class Failing:
    def __init__(self, method):
        self.method, self.calls = method, []

    def __getattr__(self, method):
        def call(*args):
            self.calls.append(method)
            if method == self.method:
                raise OSError("no disk")

        return call


@pytest.mark.parametrize("method", ["start", "write", "close"])
def test_a_sink_that_fails_gets_no_more_rows_and_disturbs_no_other(method, tmp_path, capsys):
    failing, other = Failing(method), Failing(None)
    play(Sinks({"bad": failing, "good": other}), run_info(tmp_path), {}, {})
    assert other.calls == ["start", "write", "write", "close"]
    assert failing.calls[-1] == method and failing.calls.count(method) == 1
    assert capsys.readouterr().out == "log.bad failed and is disabled from now on: no disk\n"


def tensorboard_points(run_dir, tag):
    """The points of one chart in TensorBoard, as (position, value)."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run_dir / "tensorboard")).Reload()
    if tag not in events.Tags()["scalars"]:
        return []
    return sorted((event.step, round(event.value, 3)) for event in events.Scalars(tag))


def test_tensorboard_holds_every_value_against_steps_and_the_loss_against_bytes(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from outerloop.sinks.tensorboard import TensorBoard

    sample = {"event": "sample", "worker": 0, "step": 20, "text": "def f(", "wall_s": 9.0}
    play(TensorBoard(), run_info(tmp_path), *ROWS, sample)
    assert tensorboard_points(tmp_path, "val/loss") == [(0, 5.0), (10, 4.0), (20, 3.5)]
    assert tensorboard_points(tmp_path, "val/loss_by_bytes_sent") == [(0, 5.0), (7, 4.0), (14, 3.5)]
    assert tensorboard_points(tmp_path, "val/loss_by_tokens") == [(0, 5.0), (200, 4.0), (400, 3.5)]
    assert tensorboard_points(tmp_path, "train/loss") == [(5, 3.0), (19, 2.0)]
    assert tensorboard_points(tmp_path, "tokens") == [(5, 100), (10, 100), (19, 380), (20, 380)], "of no evaluation"
    assert tensorboard_points(tmp_path, "bytes_sent") == [(5, 0), (10, 7), (19, 7), (20, 14)]
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert events.Tags()["tensors"] == ["val/sample/text_summary"]


def test_tensorboard_keeps_the_values_before_a_resume_and_hides_those_after_it(tmp_path):
    """The first session reaches step 20; the second one resumes after step 10; the third one starts from scratch."""
    pytest.importorskip("tensorboard")
    from outerloop.sinks.tensorboard import TensorBoard

    def points():
        return [tensorboard_points(tmp_path, f"val/loss{axis}") for axis in ("", "_by_tokens", "_by_bytes_sent")]

    earlier = [row for row in ROWS if row["step"] <= 10]
    play(TensorBoard(), run_info(tmp_path), *ROWS)
    play(TensorBoard(), run_info(tmp_path, resume_step=10, earlier=earlier))
    assert points() == [[(0, 5.0), (10, 4.0)], [(0, 5.0), (200, 4.0)], [(0, 5.0), (7, 4.0)]]
    assert tensorboard_points(tmp_path, "train/loss") == [(5, 3.0)]
    play(TensorBoard(), run_info(tmp_path))
    assert points() == [[], [], []]


def test_the_axes_of_a_resumed_run_continue_from_its_earlier_rows():
    """Rows of the second worker, whose counts may differ, do not move the axes."""
    charts = Charts(2, [*ROWS, {"event": "round", "worker": 1, "step": 20, "round": 2, "bytes_sent": 99}])
    step = charts.values({"event": "step", "worker": 0, "step": 25, "tokens": 250, "loss": 1.0})
    assert (step["tokens"], step["bytes_sent"]) == (500, 14)
    landed = Charts(2, ROWS).values(
        {"event": "round", "worker": 0, "step": 30, "round": 3, "bytes_sent": 21, "wait_s": 1}
    )
    assert (landed["tokens"], landed["bytes_sent"]) == (380, 21)


def test_the_state_for_newcomers_has_a_chart_and_does_not_move_the_axis_of_bytes():
    row = {"event": "round", "worker": 0, "step": 30, "round": 3, "bytes_sent": 1021, "state_bytes_sent": 1000.0}
    values = Charts(1).values(row)
    assert (values["outer/bytes_sent"], values["outer/state_bytes_sent"], values["bytes_sent"]) == (1021, 1000.0, 21)


def test_loggers_get_the_earlier_rows_of_a_resumed_run(tmp_path):
    pytest.importorskip("tensorboard")
    from outerloop.sinks.tensorboard import TensorBoard

    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    run = described(load.load([]), SimpleNamespace(path=tmp_path, resume_step=10), Console())
    sink = TensorBoard()
    sink.start(run)
    sink.close()
    assert (sink.charts.bytes_sent, sink.charts.tokens) == (7, 50 * run.settings["workers"])


def test_trackio_gets_every_row(tmp_path, monkeypatch):
    """With a stub of the package."""
    rows = []
    run = SimpleNamespace(log=lambda values, step=None: rows.append((values, step)), finish=lambda: None)
    monkeypatch.setitem(sys.modules, "trackio", SimpleNamespace(init=lambda **options: run))
    monkeypatch.delitem(sys.modules, "outerloop.sinks.trackio", raising=False)
    from outerloop.sinks.trackio import Trackio

    play(Trackio(), run_info(tmp_path), *ROWS)
    assert [values | {"inner_step": step} for values, step in rows] == CHARTS


def test_runs_of_one_name_are_different_runs_in_trackio_and_a_resumed_run_keeps_its_own(tmp_path, monkeypatch):
    names = []

    def init(name, **options):
        names.append(name)
        return SimpleNamespace(finish=lambda: None)

    monkeypatch.setitem(sys.modules, "trackio", SimpleNamespace(init=init))
    monkeypatch.delitem(sys.modules, "outerloop.sinks.trackio", raising=False)
    from outerloop.sinks.trackio import Trackio

    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        play(Trackio(), run_info(tmp_path / folder))
    play(Trackio(name="renamed"), run_info(tmp_path / "a", resume_step=10))
    first, second, resumed = names
    assert first.startswith("sparseloco-seed0-") and second.startswith("sparseloco-seed0-")
    assert first != second and resumed == first


def test_a_round_after_every_inner_step_is_not_a_line_after_every_inner_step(tmp_path):
    """At most one a second, and the last; a failed round always."""
    out = io.StringIO()
    terminal = Terminal()
    terminal.start(run_info(tmp_path, console=Console(file=out, width=200)))
    terminal.rounds = last = 9
    for number, wall_s, failed in ((1, 0.0, ""), (2, 0.2, "too few"), (3, 0.9, ""), (4, 1.1, ""), (last, 1.2, "")):
        row = {"event": "round", "worker": 0, "step": number, "round": number, "fragment": 0, "failed": failed}
        terminal.write(row | {"wall_s": wall_s, "bytes_sent": 10, "peers": 2})
    shown = [line.split()[1] for line in out.getvalue().splitlines()]
    assert shown == [
        f"1/{last}",
        "2",
        f"4/{last}",
        f"{last}/{last}",
    ]


def test_a_line_states_how_many_of_the_bytes_are_the_state_of_the_run(tmp_path):
    out = io.StringIO()
    terminal = Terminal()
    terminal.start(run_info(tmp_path, console=Console(file=out, width=200)))
    row = {"event": "round", "worker": 0, "step": 1, "fragment": 0, "failed": "", "peers": 2}
    terminal.write(row | {"wall_s": 0.0, "round": 1, "bytes_sent": 18_900, "state_bytes_sent": 0.0})
    terminal.write(row | {"wall_s": 2.0, "round": 2, "bytes_sent": 1_937_800, "state_bytes_sent": 1_900_000.0})
    first, second = out.getvalue().splitlines()
    assert "sent 18.9 KB  2 peers" in first
    assert "sent 1.9 MB (of which 1.9 MB: the state, for newcomers)  2 peers" in second


def test_tokens_of_a_small_run_are_thousands():
    assert [format_tokens(count) for count in (512, 40_960, 999_960, 3_686_400)] == ["512", "41.0k", "1.0M", "3.7M"]


@pytest.mark.parametrize("line", ["join /ip6/2a01:4f8:a:b::2/tcp/4242", "results in runs/x[a]", "[bold]:x: 3.5[/]"])
def test_a_line_is_printed_as_it_is(line):
    out = io.StringIO()
    print_line(Console(file=out, width=20, force_terminal=True), line)
    assert out.getvalue() == f"{line}\n"
