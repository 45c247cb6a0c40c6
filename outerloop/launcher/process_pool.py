"""Run workers as separate processes, each of which is a peer."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

import outerloop
from outerloop.config.build import initial_peers
from outerloop.inner.events import Event
from outerloop.launcher import cpu_share
from outerloop.launcher.worker_pool import died_event, error_event

LEAVE_S = 30
"""Seconds within which each worker process must leave. After that time, it is killed."""


def worker_pythonpath() -> str:
    """Return the PYTHONPATH with which workers import this copy of outerloop.

    It is needed if this copy is in the current folder, which workers do not search (python -P).
    """
    package_parent, inherited = str(Path(outerloop.__file__).parent.parent), os.environ.get("PYTHONPATH", "")
    return os.pathsep.join(filter(None, [package_parent if package_parent not in sys.path else "", inherited]))


class ProcessWorkerPool:
    """Runs workers as processes, each of which is a peer (exchange=swarm_*).

    Workers write events to standard output as JSON lines. Each worker process has its own session, so Ctrl-C reaches
    only the parent. A worker leaves when its standard input is closed, so no worker outlives a killed parent.
    """

    def __init__(self, config: DictConfig, run_dir: Path, resume_step: int | None) -> None:
        self.config, self.run_dir, self.resume_step = config, run_dir, resume_step
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.processes: list[subprocess.Popen[str]] = []
        self.readers: list[threading.Thread] = []

    def start(self) -> None:
        """Start all workers, and send them the configured initial peers.

        If no initial peers are configured, worker 0's address is sent to the other workers once it is known.
        """
        self.processes = [self.spawn(index) for index in range(self.config.workers)]
        self.readers = [
            threading.Thread(target=self.forward_events, args=(i,), daemon=True) for i in range(self.config.workers)
        ]
        for reader in self.readers:
            reader.start()
        if peers := initial_peers(self.config):
            self.send_initial_peers(peers, range(self.config.workers))

    def spawn(self, index: int) -> subprocess.Popen[str]:
        """Start one worker process. All of its output except events goes to its log file."""
        threads = self.config.threads or cpu_share.threads_per_process(self.config.workers)
        folder = self.run_dir / "workers" / str(index)
        folder.mkdir(parents=True, exist_ok=True)
        command = ("worker", str(self.run_dir), str(index), str(self.resume_step))
        settings = {"OMP_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1", "PYTHONPATH": worker_pythonpath()}
        with (folder / "log.txt").open("a") as log:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", "outerloop", *command],  # -P: ignore an outerloop.py in the current folder
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
                env=os.environ | settings,
            )

    def forward_events(self, index: int) -> None:
        """Forward one worker's events. Report any exception as an error event."""
        try:
            self.forward_until_end(index)
        except Exception as error:
            self.events.put(error_event(index, error))

    def forward_until_end(self, index: int) -> None:
        """Forward a worker's events until its output ends. Add a "died" event unless it sent "left" or "error"."""
        process, has_left = self.processes[index], False
        assert process.stdout
        for line in process.stdout:
            event = json.loads(line)
            if event["event"] == "address" and index == 0 and not initial_peers(self.config):
                self.send_initial_peers(event["addresses"], range(1, self.config.workers))
            has_left = has_left or event["event"] in ("left", "error")
            self.events.put(event)
        code = process.wait()
        if not has_left:
            log = self.run_dir / "workers" / str(index) / "log.txt"
            self.events.put(died_event(index, f"ended with code {code}, see {log}"))

    def send_initial_peers(self, addresses: list[str], indices: range) -> None:
        """Send the workers in `indices` the addresses of the peers to join."""
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

    def request_stop(self) -> None:
        """Ask all workers to wait for `stop_after` before their next inner step."""
        for index in range(self.config.workers):
            self.send(index, {"request_stop": True})

    def stop_after(self, step: int) -> None:
        """Ask all workers to save and leave after inner step `step`."""
        for index in range(self.config.workers):
            self.send(index, {"stop_after": step})

    def stop(self) -> None:
        """Ask all workers to leave by closing their standard input."""
        for process in self.processes:
            assert process.stdin
            try:
                process.stdin.close()
            except BrokenPipeError:
                pass

    def join(self) -> None:
        """Wait until all workers have left. Kill any that take longer than LEAVE_S, and remove leftover sockets."""
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
