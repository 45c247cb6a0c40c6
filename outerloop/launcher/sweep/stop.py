"""Stop the jobs of a sweep that run in other processes of this machine, so that each saves a checkpoint.

    this process    after the first Ctrl-C or SIGTERM, creates the file STOP in the folder of the sweep, and waits for
                    the jobs; after the second one, it ends
    each job        once the file exists, does the same as after SIGTERM: it saves and ends; no further job starts

Without this, joblib kills its processes as soon as this process raises KeyboardInterrupt, and submitit's jobs train on
after the end of this process.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from outerloop.launcher.interrupts import InterruptHandler, signals_handled
from outerloop.output import print_error

sweep_process: int | None = None
"""Id of the process that runs the sweep, in that process; None in the processes of jobs."""
STOP = ".stop"
"""File in the folder of a sweep whose jobs must stop."""
LOOK_S = 0.5
"""Seconds between two checks for the file."""


def in_sweep_process() -> bool:
    """Return whether this process runs the sweep, and not only jobs that another process has started."""
    return os.getpid() == sweep_process


@contextmanager
def waiting_for_jobs(folder: Path, clock: Callable[[], float] = time.monotonic) -> Iterator[None]:
    """Run the block, which runs a sweep. After Ctrl-C or SIGTERM, let the jobs save, and raise once the block ends.

    A second Ctrl-C or SIGTERM, at least a second later, ends the block immediately.
    """
    received: list[KeyboardInterrupt] = []
    interrupt = InterruptHandler(clock)

    def handle(number: int, frame: FrameType | None) -> None:
        try:
            interrupt(number, frame)
        except KeyboardInterrupt as error:
            received.append(error)
            if len(received) > 1:
                raise
            request_stop(folder)
            print_error("\nwaiting until all jobs have stopped; interrupt again to stop them without saving")

    try:
        with signals_handled({signal.SIGINT: handle, signal.SIGTERM: handle}):
            yield
    except (Exception, SystemExit):
        if not received:
            raise
    if received:
        raise received[0]


@contextmanager
def stopping_with_sweep(folder: Path) -> Iterator[None]:
    """Run the block, which is one job. Raise Terminated in it on SIGTERM, and once the sweep must stop.

    If the job runs in another process than the sweep, that process ignores Ctrl-C from then on. A terminal sends Ctrl-C
    to all processes, and the process of the sweep handles it. If an idle process of joblib ended, joblib would kill the
    processes whose jobs are still saving. In the process of the sweep, as with n_jobs=1, Ctrl-C interrupts a job as it
    does a single run.
    """
    if in_sweep_process():
        handler = InterruptHandler()
        with signals_handled({signal.SIGINT: handler, signal.SIGTERM: handler}):
            yield
        return
    ended, interrupt = threading.Event(), InterruptHandler()
    watcher = threading.Thread(target=terminate_on_request, args=(folder, ended.wait), daemon=True)

    def terminate(number: int, frame: FrameType | None) -> None:
        ended.set()  # a second signal would stop the job without saving
        interrupt(number, frame)

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    with signals_handled({signal.SIGTERM: terminate}):
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join()


def terminate_on_request(folder: Path, ended: Callable[[float], bool]) -> None:
    """Send SIGTERM to this process once the sweep must stop. Return then, or once `ended`, which waits, is true."""
    while not ended(LOOK_S):
        if must_stop(folder):
            os.kill(os.getpid(), signal.SIGTERM)
            return


def request_stop(folder: Path) -> None:
    """Ask all jobs of a sweep to stop."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / STOP).touch()


def must_stop(folder: Path) -> bool:
    """Return whether all jobs of a sweep must stop."""
    return (folder / STOP).exists()


def forget_stop(folder: Path) -> None:
    """Remove the request to stop, before a sweep starts or continues."""
    (folder / STOP).unlink(missing_ok=True)
