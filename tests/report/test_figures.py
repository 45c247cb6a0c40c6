"""The figures of a report: which files are left, and which groups are within the axes."""

import json

import pytest

from outerloop.commands import report as command
from outerloop.report import pareto, style
from tests.report.test_report import compare, make_run


@pytest.mark.parametrize("name", ["pareto", "spread"])
def test_figures_of_an_earlier_report_are_deleted(name, tmp_path):
    make_run(tmp_path / "run", [5], finished=False)
    old = tmp_path / "report" / f"{name}.png"
    old.parent.mkdir()
    old.write_bytes(b"old")
    command.main([str(tmp_path)])
    assert not old.exists()


def test_a_group_that_sent_nothing_is_on_a_logarithmic_axis(tmp_path, monkeypatch):
    for name, loss in (("alone", 2.2), ("sparse", 2.3), ("dense", 2.1)):
        make_run(tmp_path / name, [5, loss], recipe=name, sent=5_000_000 if name == "dense" else 3000)
    file = tmp_path / "alone/summary.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"bytes_sent_per_worker": 0}))
    drawn = []
    monkeypatch.setattr(style, "save", lambda figure, path: drawn.append(figure))
    assert pareto.draw(compare(tmp_path), tmp_path / "pareto.png")
    [axes] = drawn[0].axes
    drawn[0].canvas.draw()
    xs = {x: axes.transLimits.transform(axes.transScale.transform((x, 2.2)))[0] for x in (0.0, 3000.0, 5e6)}
    assert 0.0 < xs[0.0] < xs[3000.0] < xs[5e6] < 1.0, "within the axes, at different places"
    assert xs[3000.0] < 0.5, "logarithmic"
