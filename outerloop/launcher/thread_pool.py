"""Run workers as threads of this process that take turns."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from outerloop.config.instantiate import make
from outerloop.exchange.inprocess import Hub
from outerloop.inner.events import Event
from outerloop.inner.stop_point import StopPoint
from outerloop.kernels.threads import set_threads
from outerloop.launcher import cpu_share
from outerloop.launcher.run_worker import BeforeFirstStep, join_exchange, run_worker
from outerloop.launcher.worker_pool import run_to_end, stopping_event
from outerloop.types import Result


class ComputeThread:
    """Computes for all workers of a process in a single thread, with `cores` torch threads.

    Each thread that computes has its own pool of OpenMP threads. If all pools together had more threads than there are
    cores, the threads would sleep between operations.
    """

    def __init__(self, cores: int) -> None:
        self.pool = ThreadPoolExecutor(1)
        self(set_threads, cores)

    def __call__(self, work: Callable[..., Result], *args: Any) -> Result:
        """Call work(*args) in this thread. Return its result, or raise its exception."""
        return self.pool.submit(work, *args).result()

    def close(self) -> None:
        """End the thread after its current call."""
        self.pool.shutdown()


class ThreadWorkerPool:
    """Runs workers as threads that take turns (exchange=inprocess). One more thread computes for the active worker.

    before_first_step: called for each worker before its first step.
    """

    def __init__(
        self,
        config: DictConfig,
        run_dir: Path,
        resume_step: int | None,
        *,
        before_first_step: BeforeFirstStep | None = None,
    ) -> None:
        self.config, self.run_dir, self.resume_step, self.before_first_step = (
            config,
            run_dir,
            resume_step,
            before_first_step,
        )
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.hub = Hub(config.workers)
        self.stop_points = [StopPoint() for _ in range(config.workers)]
        self.threads = [threading.Thread(target=self.run_worker, args=(i,), daemon=True) for i in range(config.workers)]
        self.compute = ComputeThread(config.threads or cpu_share.threads_per_process(1))

    def start(self) -> None:
        """Start the worker threads."""
        for thread in self.threads:
            thread.start()

    def run_worker(self, index: int) -> None:
        """Run one worker until it has sent its last event."""
        set_threads(1)
        self.events.put(run_to_end(index, partial(self.train, index)))

    def train(self, index: int) -> None:
        """Join the exchange, and train as one worker."""
        with closing(make(self.config.exchange, hub=self.hub, rank=index)) as exchange:
            join_exchange(self.config, exchange, self.run_dir, self.resume_step, index)
            run_worker(
                self.config,
                index=index,
                run_dir=self.run_dir,
                resume_step=self.resume_step,
                exchange=exchange,
                emit=self.events.put,
                check_stop=self.hub.check_stop,
                stop_point=self.stop_points[index],
                compute=self.compute,
                before_first_step=self.before_first_step,
            )

    def request_stop(self) -> None:
        """Ask all workers to wait for `stop_after` before their next inner step."""
        for index, stop_point in enumerate(self.stop_points):
            self.events.put(stopping_event(index, stop_point.request()))

    def stop_after(self, step: int) -> None:
        """Ask all workers to save and leave after inner step `step`."""
        for stop_point in self.stop_points:
            stop_point.set_target(step)

    def stop(self) -> None:
        """Ask all workers to leave at their next step."""
        self.hub.stop("the run was stopped")
        for stop_point in self.stop_points:
            stop_point.cancel()

    def join(self) -> None:
        """Wait until all workers have left."""
        for thread in self.threads:
            thread.join()
        self.compute.close()
