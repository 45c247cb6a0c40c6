"""Log to trackio: `log=[console,trackio]`, then `trackio show`. Runs are stored on this machine."""

from __future__ import annotations

import uuid

import trackio

from outerloop.sinks.charts import STEP, Charts
from outerloop.sinks.sink import Row, RunInfo
from outerloop.sinks.stored_text import stored_text


class Trackio:
    """A sink that logs the charts of a run to trackio, plus the token count and the bytes sent.

    Args:
        project: trackio project of the run.
        name: name of the trackio run, to which a random suffix is added; None: the name in RunInfo.
    """

    def __init__(self, *, project: str = "outerloop", name: str | None = None) -> None:
        self.project, self.name = project, name

    def start(self, run: RunInfo) -> None:
        """Start a trackio run, or continue the existing one if this run is resumed.

        trackio identifies a run by its name, so the name has a random suffix, and is stored in the run directory.
        """
        self.charts = Charts(run.settings["workers"], run.earlier)
        self.run = trackio.init(
            project=self.project,
            name=stored_text(run.path / "trackio-name.txt", f"{self.name or run.name}-{uuid.uuid4().hex[:8]}"),
            group=run.group,
            config=dict(run.settings),
            resume="allow",
            embed=False,
        )

    def write(self, row: Row) -> None:
        """Log one row if a chart shows it, or the numbers in a "summary" row as summary/*."""
        if row["event"] == "summary":
            self.run.log({f"summary/{key}": x for key, x in row.items() if isinstance(x, int | float)})
        elif values := self.charts.values(row):
            step = int(values.pop(STEP))
            self.run.log(values, step=step)

    def close(self) -> None:
        """Finish the trackio run and write the remaining data."""
        self.run.finish()
