"""Define the interface of worker pools, which run the workers of this machine.

A pool puts all events of its workers into one queue. A worker that cannot continue sends {"event": "error"}. If a
worker ends without sending a last event, the pool sends {"event": "died"}. `stop` asks the workers to leave at once,
and `join` waits until all have ended.

To end with a checkpoint (stop_point.py):

    request_stop   makes all workers wait before their next inner step. Each sends {"event": "stopping", "step": number
                   of inner steps that it has begun, "blocked": why it cannot end the last of them, or ""}. May be
                   repeated until the workers have left
    stop_after     lets all workers train up to a common step, save and leave
"""

from __future__ import annotations

import queue
import traceback
from collections.abc import Callable
from typing import Protocol

from outerloop.inner.events import Event
from outerloop.types import LeaderFailed, Outvoted, QuorumLost, ReplicasDiverged, RoundFailed, Stopped, UserError


class WorkerPool(Protocol):
    """Runs the workers of this machine; the module docstring explains the methods."""

    events: queue.SimpleQueue[Event]

    def start(self) -> None: ...

    def request_stop(self) -> None: ...

    def stop_after(self, step: int) -> None: ...

    def stop(self) -> None: ...

    def join(self) -> None: ...


def died_event(index: int, reason: str) -> Event:
    """Return the "died" event of a worker, with the reason."""
    return {"event": "died", "worker": index, "step": 0, "text": f"worker {index} {reason}"}


def stopping_event(index: int, begun: int, *, blocked: str = "") -> Event:
    """Return the "stopping" event of a worker that has begun `begun` inner steps and waits before the next one.

    `blocked`: why the worker cannot end the last of these steps, or "".
    """
    return {"event": "stopping", "worker": index, "step": begun, "blocked": blocked}


def error_event(index: int, error: BaseException) -> Event:
    """Return the error event of a worker that cannot continue.

    Its text is one line for a known error, and the full traceback otherwise.

    Its kind is "alone" if too few other peers were present for too long, "outvoted" if most peers ended with slow
    weights that differ from this worker's, "user" for a UserError, and "crash" otherwise.
    """
    kinds = {UserError: "user", QuorumLost: "alone", Outvoted: "outvoted"}
    kind = next((kind for error_type, kind in kinds.items() if isinstance(error, error_type)), "crash")
    is_known = isinstance(
        error, UserError | RoundFailed | QuorumLost | LeaderFailed | ReplicasDiverged | FloatingPointError
    )
    text = str(error) if is_known else "".join(traceback.format_exception(error))
    return {"event": "error", "worker": index, "step": 0, "kind": kind, "text": text}


def run_to_end(index: int, work: Callable[[], None]) -> Event:
    """Run a worker until it ends. Return its last event: "left", or "error" if it failed.

    SystemExit and a panic of a Rust extension, which are not subclasses of Exception, are failures too: a thread that
    raised them would end without an event. KeyboardInterrupt, which Python raises in the main thread only, is not
    caught.
    """
    try:
        work()
    except Stopped:
        pass
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return error_event(index, error)
    return {"event": "left", "worker": index, "step": 0}
