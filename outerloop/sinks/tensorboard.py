"""Log to TensorBoard: `log=[console,tensorboard]`, then `tensorboard --logdir runs`.

Values are plotted against inner steps. val/loss is also plotted against tokens and bytes sent, as val/loss_by_tokens
and val/loss_by_bytes_sent.
"""

from __future__ import annotations

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
        """Open the event file. On resume, TensorBoard hides values that were logged after the loaded checkpoint."""
        self.charts = Charts(run.settings["workers"], run.earlier)
        purge_step = None if run.resume_step is None else run.resume_step + 1
        self.writer = SummaryWriter(str(run.path / self.folder), purge_step=purge_step)

    def write(self, row: Row) -> None:
        """Write the chart values or the text sample of one row."""
        if row["event"] == "sample":
            self.writer.add_text("val/sample", row["text"], row["step"])
        values = self.charts.values(row)
        for name, value in values.items():
            if name != STEP:
                self.writer.add_scalar(name, value, values[STEP])
        for axis in (TOKENS, BYTES) if "val/loss" in values else ():
            self.writer.add_scalar(f"val/loss_by_{axis}", values["val/loss"], values[axis])

    def close(self) -> None:
        """Close the event file."""
        self.writer.close()
