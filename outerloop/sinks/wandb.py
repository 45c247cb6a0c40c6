"""Log to Weights & Biases: `log=wandb`. Without an API key, runs are stored offline, and `wandb sync` uploads them.

An option in the configuration takes precedence over wandb's environment variable (WANDB_PROJECT, WANDB_ENTITY,
WANDB_MODE, WANDB_RUN_GROUP, WANDB_NAME, WANDB_JOB_TYPE, WANDB_TAGS, WANDB_DIR, WANDB_CONSOLE, WANDB_QUIET). If neither
the option nor the variable is set, the value is derived from the run.
"""

from __future__ import annotations

import html
import netrc
import os
import uuid
from typing import Any, TypeVar
from urllib.parse import urlsplit

from outerloop.sinks.charts import FOLDERS, STEP, Charts
from outerloop.sinks.sink import Row, RunInfo, print_line
from outerloop.sinks.stored_text import stored_text
from outerloop.types import UserError

ALERT_EVERY_S = 3600
"""Minimum number of seconds between two alerts about failed rounds."""
MODES = ("online", "offline", "disabled")
MAX_TAG = 64
"""Maximum length of a tag, in characters. wandb refuses a run with a longer or an empty one."""
ARTIFACTS = {"loss.png": "figure", "hf": "model"}
"""Name of a file or folder in the run directory -> artifact type."""
Value = TypeVar("Value")


class Wandb:
    """A sink that logs a run to Weights & Biases, with inner steps, tokens and bytes as axes.

    wandb's own step counter is not used: wandb drops values whose step is lower than the last one, but the result of an
    evaluation may be logged after later steps.

    Args:
        project, entity, name, group: settings of the wandb run. None: use the environment variable if it is set,
            or else a default for this run.
        mode: online, offline or disabled. None: use WANDB_MODE if it is set, or else online if there is an API key, or
            else offline.
        artifacts: whether to store loss.png and the model in hf/ as artifacts at the end of the run.
    """

    def __init__(
        self,
        *,
        project: str | None = None,
        entity: str | None = None,
        name: str | None = None,
        group: str | None = None,
        mode: str | None = None,
        artifacts: bool = False,
    ) -> None:
        if mode not in (None, *MODES):
            raise UserError(f"log.wandb.mode={mode} is not one of {', '.join(MODES)}: set log.wandb.mode=offline")
        self.project, self.entity, self.name, self.group = project, entity, name, group
        self.mode, self.artifacts, self.finished = mode, artifacts, False

    def start(self, run: RunInfo) -> None:
        """Start a wandb run, or continue the existing one if this run is resumed."""
        import wandb

        self.path, self.charts = run.path, Charts(run.settings["workers"], run.earlier)
        quiet = {"console": unless_set("WANDB_CONSOLE", "off"), "quiet": unless_set("WANDB_QUIET", True)}
        mode: Any = self.mode or unless_set("WANDB_MODE", "online" if has_key() else "offline")
        self.run: Any = wandb.init(
            project=self.project or unless_set("WANDB_PROJECT", "outerloop"),
            entity=self.entity,
            name=self.name or unless_set("WANDB_NAME", run.name),
            group=self.group or unless_set("WANDB_RUN_GROUP", run.group),
            job_type=unless_set("WANDB_JOB_TYPE", run.settings["recipe"]),
            tags=unless_set("WANDB_TAGS", [tag[:MAX_TAG] for tag in run.tags if tag]),
            mode=mode,
            dir=unless_set("WANDB_DIR", str(run.path)),
            config=dict(run.settings),
            id=stored_text(run.path / "wandb-id.txt", uuid.uuid4().hex),
            resume="allow",
            settings={key: value for key, value in quiet.items() if value is not None},
        )
        for folder in FOLDERS:
            self.run.define_metric(f"{folder}/*", step_metric=STEP)
        if self.run.url:
            print_line(run.console, f"wandb: {self.run.url}")

    def write(self, row: Row) -> None:
        """Log one row if a chart shows it or if it contains text. A "summary" row marks the run as finished."""
        if row["event"] == "summary":
            self.summarize(row)
        elif row["event"] == "sample":
            self.log_text(row)
        elif values := self.charts.values(row):
            self.run.log(values)
        if row["event"] == "round" and row["failed"] and row["worker"] == 0:
            text = f"round {row['round']}: {row['failed']}"
            self.run.alert(title="A round failed", text=text, level="WARN", wait_duration=ALERT_EVERY_S)

    def log_text(self, row: Row) -> None:
        """Log a generated text sample."""
        import wandb

        self.run.log({"val/sample": wandb.Html(f"<pre>{html.escape(row['text'])}</pre>"), STEP: row["step"]})

    def summarize(self, summary: Row) -> None:
        """Copy the results of the run to the summary of the wandb run, and store the artifacts."""
        self.finished = True
        self.run.summary.update({key: value for key, value in summary.items() if isinstance(value, int | float | str)})
        for name, kind in ARTIFACTS.items() if self.artifacts else ():
            if (self.path / name).exists():
                self.run.log_artifact(str(self.path / name), name=f"{kind}-{self.run.id}", type=kind)

    def close(self) -> None:
        """Upload or write the remaining data, and mark the run as failed if it did not finish."""
        self.run.finish(exit_code=0 if self.finished else 1)


def unless_set(variable: str, value: Value) -> Value | None:
    """Return the value, or None if this environment variable is set, because wandb reads the variable itself."""
    return None if os.environ.get(variable) else value


def has_key() -> bool:
    """Return whether the environment or ~/.netrc (written by `wandb login`) contains an API key for wandb's server."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    server = urlsplit(os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai").hostname or ""
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(server) is not None
    except (OSError, netrc.NetrcParseError):
        return False
