"""The inner step at which a run that is interrupted stops, the same for all workers of a machine.

    1. `request` makes each worker wait before its next inner step, and returns the number of steps that it has begun.
    2. `set_target` lets each train up to the largest of these numbers. There it saves its state and leaves.

Since no worker begins another step between the two, all can reach the target. A worker that waits for the others' part
of a round, inside a step that it has begun, does not delay the answer.
"""

from __future__ import annotations

import threading


class StopPoint:
    """The stop point of one worker. Its training thread calls `begin_step`, another thread everything else."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.begun = 0
        self.requested = False
        self.target: int | None = None

    def begin_step(self, done: int) -> bool:
        """Return whether to take another inner step after `done` steps. Waits while the target is not known."""
        with self.changed:
            self.changed.wait_for(lambda: self.target is not None or not self.requested)
            self.begun = done + 1
            return self.target is None or done < self.target

    def request(self) -> int:
        """Ask the worker to wait before its next inner step. Return the number of inner steps that it has begun."""
        with self.changed:
            self.requested = True
            return self.begun

    def set_target(self, step: int) -> None:
        """Let the worker train up to inner step `step`."""
        with self.changed:
            self.target = step
            self.changed.notify_all()

    def cancel(self) -> None:
        """Let a waiting worker continue: the run ends without saving."""
        with self.changed:
            self.requested = False
            self.changed.notify_all()
