"""trackio sink: `log=[console,trackio]`, then `trackio show`. Runs stay on this machine."""

from __future__ import annotations

import trackio

from outerloop.sinks.charts import STEP, Charts
from outerloop.sinks.sink import Row, RunInfo


class Trackio:
    """A sink that logs a run to trackio, with tokens and bytes sent as values next to the charts.

    Args:
        project: of the run.
        name: of the run; None: that of the run directory, or of the swept options.
    """

    def __init__(self, *, project: str = "outerloop", name: str | None = None) -> None:
        self.project, self.name = project, name

    def start(self, run: RunInfo) -> None:
        """Start the run, or continue that of a resumed run, which has the same name."""
        self.charts = Charts(run.settings["workers"])
        self.run = trackio.init(
            project=self.project,
            name=self.name or run.name,
            group=run.group,
            config=dict(run.settings),
            resume="allow",
            embed=False,
        )

    def write(self, row: Row) -> None:
        """Log one row if it has charts. The results of a finished run are logged as summary/*."""
        if row["event"] == "summary":
            self.run.log({f"summary/{key}": x for key, x in row.items() if isinstance(x, int | float)})
        elif values := self.charts.values(row):
            step = int(values.pop(STEP))
            self.run.log(values, step=step)

    def close(self) -> None:
        """Write the remaining data."""
        self.run.finish()
