"""Log to TensorBoard: `log=[console,tensorboard]`, then `tensorboard --logdir runs`.

Values are plotted against inner steps. val/loss is also plotted against tokens and bytes sent, as val/loss_by_tokens
and val/loss_by_bytes_sent.
"""

from __future__ import annotations

import time

from torch.utils.tensorboard import SummaryWriter

from outerloop.sinks.charts import BYTES, STEP, TOKENS, Charts
from outerloop.sinks.sink import Row, RunInfo


class TensorBoard:
    """A sink that writes TensorBoard event files.

    Args:
        folder: name of the folder for event files, inside the run directory.
    """

    def __init__(self, *, folder: str = "tensorboard") -> None:
        self.folder = folder

    def start(self, run: RunInfo) -> None:
        """Open a new event file, and write the earlier rows of a resumed run to it again.

        With purge_step=0, TensorBoard hides all values in older event files of the folder. A later purge_step would not
        work, because it applies to all charts, whether their axes are steps, tokens or bytes.
        """
        self.charts = Charts(run.settings["workers"])
        self.start_s = time.time() - (run.earlier[-1]["wall_s"] if run.earlier else 0.0)
        self.writer = SummaryWriter(str(run.path / self.folder), purge_step=0)
        for row in run.earlier:
            self.write(row)

    def write(self, row: Row) -> None:
        """Write the chart values or the text sample of one row.

        The token and byte counts of an evaluation are not written, because its step may be lower than the last one.
        """
        if row["event"] == "sample":
            self.writer.add_text("val/sample", row["text"], row["step"], self.start_s + row["wall_s"])
        values = self.charts.values(row)
        axes = (STEP, TOKENS, BYTES) if row["event"] == "validation" else (STEP,)
        for name, value in values.items():
            if name not in axes:
                self.add_scalar(name, value, values[STEP], row)
        for axis in (TOKENS, BYTES) if "val/loss" in values else ():
            self.add_scalar(f"val/loss_by_{axis}", values["val/loss"], values[axis], row)

    def add_scalar(self, name: str, value: float, position: float, row: Row) -> None:
        """Write one value of a row at a position on its axis, with the time of the row."""
        self.writer.add_scalar(name, value, position, self.start_s + row["wall_s"])

    def close(self) -> None:
        """Close the event file."""
        self.writer.close()
