"""End a run under torchrun with a checkpoint: stop all ranks after the same inner step (stop_point.py).

Rank 0 sets STOP_REQUESTED in the store of torchrun's rendezvous. Each rank then sends an event with the number of inner
steps that it has begun. Rank 0 sets STOP_AFTER to the largest of these numbers, and all ranks train up to it. If a lost
rank does not answer, rank 0 sets STOP_AFTER to LEAVE, and the other ranks leave without saving.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from torch import distributed as dist

from outerloop.inner.events import Event
from outerloop.inner.stop_point import StopPoint
from outerloop.launcher.worker_pool import stopping_event

STOP_POLL_S = 0.5
"""Seconds between two checks for a request to stop."""
STOP_REQUESTED, STOP_AFTER = "stop requested", "stop after"
"""Keys, in the store, of the request and of the inner step after which to stop."""
LEAVE = "leave"


@contextmanager
def following_stop(store: dist.Store, stop_point: StopPoint) -> Iterator[None]:
    """Watch for a stop request from rank 0 within the block, and end training after the step that rank 0 chooses."""
    ended = threading.Event()

    def appears(key: str) -> bool:
        while not store.check([key]):
            if ended.wait(STOP_POLL_S):
                return False
        return True

    def follow() -> None:
        with suppress(dist.DistError):  # the store ends with rank 0, and then torchrun ends this process
            if appears(STOP_REQUESTED):
                send_event(store, stopping_event(dist.get_rank(), stop_point.request(), blocked=stop_point.blocked()))
                if appears(STOP_AFTER):
                    obey(store.get(STOP_AFTER).decode(), stop_point)

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def obey(answer: str, stop_point: StopPoint) -> None:
    """Train up to the step in rank 0's answer or, if the answer is LEAVE, leave at once."""
    if answer != LEAVE:
        stop_point.set_target(int(answer))
        return
    stop_point.cancel()
    if dist.get_rank():  # the main thread's handler raises Stopped; rank 0 is stopped by its supervisor
        os.kill(os.getpid(), signal.SIGALRM)


def send_event(store: dist.Store, event: Event) -> None:
    """Send an event to rank 0."""
    store.set(f"{store.add('count', 1)}", json.dumps(event))
