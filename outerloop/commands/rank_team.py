"""The workers of a run as the processes of torchrun: the team as rank 0 has it, and the life of one of them.

Rank 0's own worker is a thread, so that the process can follow all of them. The events of the others come through the
store of torchrun's rendezvous: numbered as they are sent, taken out in that order.
"""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from torch import distributed as dist

from outerloop.commands.build import run_worker
from outerloop.commands.team import error_event, last_word
from outerloop.inner.worker import Event
from outerloop.types import Stopped, UserError

LOOK_S = 0.05
"""Between two looks for events."""


class RankTeam:
    """The team of rank 0.

    Args:
        config, run_dir, resume_step: as for the other teams.
        exchange: this process's; all ranks have made theirs.
        sent: the events of the other ranks.
    """

    def __init__(
        self, config: DictConfig, run_dir: Path, resume_step: int | None, *, exchange: Any, sent: dist.Store
    ) -> None:
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.sent, self.stopped = sent, threading.Event()
        self.life = partial(
            live, config, run_dir, resume_step, exchange=exchange, emit=self.events.put, check_stop=self.check_stop
        )
        self.threads = [threading.Thread(target=work, daemon=True) for work in (self.work, self.read)]

    def start(self) -> None:
        """Begin."""
        for thread in self.threads:
            thread.start()

    def work(self) -> None:
        """Rank 0's own worker, until it has said its last word."""
        self.events.put(last_word(0, self.life))

    def read(self) -> None:
        """Pass the others' events on, until the team stops."""
        number = 1
        try:
            while not self.stopped.is_set():
                if self.sent.check([f"{number}"]):
                    self.events.put(json.loads(self.sent.get(f"{number}")))
                    self.sent.delete_key(f"{number}")
                    number += 1
                else:
                    time.sleep(LOOK_S)
        except Exception as error:
            self.events.put(error_event(0, error))

    def check_stop(self) -> None:
        """Raises Stopped after `stop`."""
        if self.stopped.is_set():
            raise Stopped("the run was stopped")

    def stop(self) -> None:
        """Ask the own worker to leave at its next step. The others are torchrun's to end."""
        self.stopped.set()

    def join(self) -> None:
        """Until the own worker has left."""
        for thread in self.threads:
            thread.join()


def send(sent: dist.Store, event: Event) -> None:
    """To rank 0."""
    sent.set(f"{sent.add('count', 1)}", json.dumps(event))


def live(
    config: DictConfig,
    run_dir: Path,
    resume_step: int | None,
    *,
    exchange: Any,
    emit: Callable[[Event], None],
    check_stop: Callable[[], None] = lambda: None,
) -> None:
    """The life of this rank's worker."""
    if not (run_dir / "config.yaml").exists():
        raise UserError(
            f"rank {exchange.rank} does not see run_dir={run_dir}: type run_dir= with a folder that all machines share"
        )
    try:
        run_worker(
            config,
            index=exchange.rank,
            run_dir=run_dir,
            resume_step=resume_step,
            exchange=exchange,
            emit=emit,
            check_stop=check_stop,
        )
        exchange.close()
    finally:
        exchange.abort()
