"""Choose the inner step after which an interrupted run stops, the same for all workers on a machine.

    1. `request`, called for each worker, makes it wait before its next inner step, and returns the number of inner
       steps that it has begun.
    2. `set_target` lets each worker train up to the largest of these numbers. The worker then saves its state and
       leaves.

Because no worker begins another step between the two calls, all workers can reach the target. `request` returns
immediately, even if a worker is waiting for other peers inside a step. If such a wait cannot end, because too few peers
are reachable, `blocked` returns the reason: no checkpoint can be saved then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class StopPoint:
    """The stop point of one worker. The training thread calls `begin_step`; another thread calls the rest."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.begun = 0
        self.requested = False
        self.target: int | None = None
        self.blocked: Callable[[], str] = lambda: ""

    def begin_step(self, done: int) -> bool:
        """Return whether to take another step after `done` inner steps. After `request`, wait until a target is set."""
        with self.changed:
            self.changed.wait_for(lambda: self.target is not None or not self.requested)
            self.begun = done + 1
            return self.target is None or done < self.target

    def extend_step(self, done: int) -> bool:
        """Return whether a step that counts as several inner steps may count one more after `done`, the count so far.

        Not between `request` and `set_target`, because the worker could pass a target that it does not know yet; and
        not at the target.
        """
        with self.changed:
            if self.requested:
                return self.target is not None and done != self.target
            self.begun = done + 1
            return True

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
        """Wake a waiting worker, because the run ends without saving."""
        with self.changed:
            self.requested = False
            self.changed.notify_all()
