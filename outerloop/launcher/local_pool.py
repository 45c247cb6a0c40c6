"""The local workers of a run, as threads of this process or as separate processes, behind one interface.

A pool puts all events of its workers into one queue. A worker that cannot continue sends {"event": "error"}. For a
worker that ended without an event the pool sends {"event": "died"}. `stop` asks the workers to leave, and `join` waits
until all have ended.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from omegaconf import DictConfig

import outerloop
from outerloop.config.build import initial_peers, make
from outerloop.exchange.inprocess import Hub
from outerloop.inner.events import Event
from outerloop.kernels.threads import keep_to
from outerloop.launcher import cpu_share as cores
from outerloop.launcher import run_worker as life
from outerloop.types import LeaderFailed, Made, Outvoted, QuorumLost, ReplicasDiverged, RoundFailed, Stopped, UserError

LEAVE_S = 20
"""Seconds that a worker process has to leave before it is killed."""


class WorkerPool(Protocol):
    """The workers of this machine."""

    events: queue.SimpleQueue[Event]

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def join(self) -> None: ...


def died(index: int, how: str) -> Event:
    """Return the event for a worker that ended without sending an event."""
    return {"event": "died", "worker": index, "step": 0, "text": f"worker {index} {how}"}


def error_event(index: int, error: BaseException) -> Event:
    """Return the error event of a worker that cannot continue: one line for a known error, else the full traceback.

    Kind "alone": too few other peers were present for too long. Kind "outvoted": only this worker's run ends.
    """
    kinds = {UserError: "user", QuorumLost: "alone", Outvoted: "outvoted"}
    kind = next((kind for of, kind in kinds.items() if isinstance(error, of)), "crash")
    known = isinstance(
        error, UserError | RoundFailed | QuorumLost | LeaderFailed | ReplicasDiverged | FloatingPointError
    )
    text = str(error) if known else "".join(traceback.format_exception(error))
    return {"event": "error", "worker": index, "step": 0, "kind": kind, "text": text}


def search_path() -> str:
    """Return the PYTHONPATH with which a worker imports this outerloop, even if it was found in the current folder."""
    home, given = str(Path(outerloop.__file__).parent.parent), os.environ.get("PYTHONPATH", "")
    return os.pathsep.join(filter(None, [home if home not in sys.path else "", given]))


def last_word(index: int, life: Callable[[], None]) -> Event:
    """Run a worker to its end. Return its last event: "left", or "error" if it failed."""
    try:
        life()
    except Stopped:
        pass
    except Exception as error:
        return error_event(index, error)
    return {"event": "left", "worker": index, "step": 0}


class SingleWorkerPool:
    """A single thread that computes for all workers of a process, with `cores` torch threads.

    Each computing thread has its own pool of OpenMP threads. If all pools together have more threads than there are
    cores, the threads sleep between operations.
    """

    def __init__(self, cores: int) -> None:
        self.pool = ThreadPoolExecutor(1)
        self(keep_to, cores)

    def __call__(self, work: Callable[..., Made], *args: Any) -> Made:
        """Call work(*args) in that thread. Return or raise what it returns or raises."""
        return self.pool.submit(work, *args).result()

    def close(self) -> None:
        """End the thread after its current call."""
        self.pool.shutdown()


class ThreadWorkerPool:
    """Workers as threads that take turns (exchange=inprocess), and one thread that computes for the active worker."""

    def __init__(self, config: DictConfig, run_dir: Path, resume_step: int | None) -> None:
        self.config, self.run_dir, self.resume_step = config, run_dir, resume_step
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.hub = Hub(config.workers)
        self.threads = [threading.Thread(target=self.work, args=(i,), daemon=True) for i in range(config.workers)]
        self.compute = SingleWorkerPool(config.threads or cores.share_here(1))

    def start(self) -> None:
        """Start the worker threads."""
        for thread in self.threads:
            thread.start()

    def work(self, index: int) -> None:
        """Run one worker until it has sent its last event."""
        keep_to(1)
        self.events.put(last_word(index, partial(self.live, index)))

    def live(self, index: int) -> None:
        """Join and train as one worker."""
        with closing(make(self.config.exchange, hub=self.hub, rank=index)) as exchange:
            life.join(self.config, exchange, self.run_dir, self.resume_step, index)
            life.live(
                self.config,
                index=index,
                run_dir=self.run_dir,
                resume_step=self.resume_step,
                exchange=exchange,
                emit=self.events.put,
                check_stop=self.hub.check_stop,
                compute=self.compute,
            )

    def stop(self) -> None:
        """Ask all workers to leave at their next step."""
        self.hub.stop("the run was stopped")

    def join(self) -> None:
        """Wait until all workers have left."""
        for thread in self.threads:
            thread.join()
        self.compute.close()


class ProcessWorkerPool:
    """Workers as processes, each its own peer (exchange=swarm_*): events come as JSON lines on their standard output.

    Each has a separate session, so Ctrl-C reaches only the parent. A worker leaves when its standard input ends, so no
    worker outlives a killed parent.
    """

    def __init__(self, config: DictConfig, run_dir: Path, resume_step: int | None) -> None:
        self.config, self.run_dir, self.resume_step = config, run_dir, resume_step
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.processes: list[subprocess.Popen[str]] = []
        self.readers: list[threading.Thread] = []

    def start(self) -> None:
        """Start all workers. The others receive the address of the first as soon as it is known."""
        self.processes = [self.spawn(index) for index in range(self.config.workers)]
        self.readers = [threading.Thread(target=self.read, args=(i,), daemon=True) for i in range(self.config.workers)]
        for reader in self.readers:
            reader.start()
        if peers := initial_peers(self.config):
            self.tell_peers(peers, range(self.config.workers))

    def spawn(self, index: int) -> subprocess.Popen[str]:
        """Start one worker process. Its output other than events goes to its log."""
        threads = self.config.threads or cores.share_here(self.config.workers)
        folder = self.run_dir / "workers" / str(index)
        folder.mkdir(parents=True, exist_ok=True)
        command = ("worker", str(self.run_dir), str(index), str(self.resume_step))
        settings = {"OMP_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1", "PYTHONPATH": search_path()}
        with (folder / "log.txt").open("a") as log:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", "outerloop", *command],  # -P: not the outerloop.py of the current folder
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
                env=os.environ | settings,
            )

    def read(self, index: int) -> None:
        """Forward one worker's events. Any exception becomes an error event."""
        try:
            self.pass_on(index)
        except Exception as error:
            self.events.put(error_event(index, error))

    def pass_on(self, index: int) -> None:
        """Forward a worker's events until its output ends. Add a "died" event if it ended without leaving."""
        process, ended = self.processes[index], False
        assert process.stdout
        for line in process.stdout:
            event = json.loads(line)
            if event["event"] == "address" and index == 0 and not initial_peers(self.config):
                self.tell_peers(event["addresses"], range(1, self.config.workers))
            ended = ended or event["event"] in ("left", "error")
            self.events.put(event)
        code = process.wait()
        if not ended:
            log = self.run_dir / "workers" / str(index) / "log.txt"
            self.events.put(died(index, f"ended with code {code}, see {log}"))

    def tell_peers(self, addresses: list[str], indices: range) -> None:
        """Send these workers the addresses of the peers to join."""
        for index in indices:
            self.send(index, {"initial_peers": addresses})

    def send(self, index: int, message: dict[str, Any]) -> None:
        """Send one JSON line to a worker, unless it has already ended."""
        stdin = self.processes[index].stdin
        assert stdin
        try:
            stdin.write(json.dumps(message) + "\n")
            stdin.flush()
        except (BrokenPipeError, ValueError):
            pass

    def stop(self) -> None:
        """Ask all workers to leave by closing their standard input."""
        for process in self.processes:
            assert process.stdin
            try:
                process.stdin.close()
            except BrokenPipeError:
                pass

    def join(self) -> None:
        """Wait until all workers have left. Kill those that do not leave within LEAVE_S, and remove their sockets."""
        from outerloop.swarm.p2p.socket_dir import remove_orphans  # already imported if the workers are peers

        for process in self.processes:
            try:
                process.wait(LEAVE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for reader in self.readers:
            reader.join()
        remove_orphans()
