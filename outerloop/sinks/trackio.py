"""Log to trackio: `log=[console,trackio]`, then `trackio show`. Runs are stored on this machine."""

from __future__ import annotations

import trackio

from outerloop.sinks.charts import STEP, Charts
from outerloop.sinks.sink import Row, RunInfo


class Trackio:
    """A sink that logs the charts of a run to trackio, plus the token count and the bytes sent.

    Args:
        project: trackio project of the run.
        name: name of the trackio run; None: the name in RunInfo.
    """

    def __init__(self, *, project: str = "outerloop", name: str | None = None) -> None:
        self.project, self.name = project, name

    def start(self, run: RunInfo) -> None:
        """Start a trackio run. A resumed run continues the trackio run of the same name."""
        self.charts = Charts(run.settings["workers"], run.earlier)
        self.run = trackio.init(
            project=self.project,
            name=self.name or run.name,
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
