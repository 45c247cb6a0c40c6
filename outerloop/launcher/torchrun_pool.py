"""The workers of a run as processes of torchrun: the worker pool of rank 0, and the code that runs in each process.

A worker is one process, or the ranks of an island, of which only the first sends events (rank_layout.py).

Rank 0's own worker is a thread, so that the process can follow all workers. The other ranks send their events through
the store of torchrun's rendezvous: numbered as they are sent, and removed in that order.
"""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from omegaconf import DictConfig
from torch import distributed as dist

from outerloop.config.build import initial_peers, make
from outerloop.config.rank_layout import RankLayout, taken
from outerloop.exchange.island_replicated import ReplicatedIsland
from outerloop.exchange.island_sharded import ShardedIsland
from outerloop.inner.events import Event
from outerloop.launcher import run_worker
from outerloop.launcher.local_pool import error_event, last_word
from outerloop.launcher.worker_process import Emit, also_shown, peer_of
from outerloop.protocols import Exchange
from outerloop.types import Stopped, UserError

LOOK_S = 0.05
"""Seconds between two checks for events."""


class TorchrunPool:
    """The worker pool of rank 0.

    Args:
        config, run_dir, resume_step: as for the other pools.
        sent: the events of the other ranks.
    """

    def __init__(self, config: DictConfig, run_dir: Path, resume_step: int | None, *, sent: dist.Store) -> None:
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.sent, self.stopped = sent, threading.Event()
        self.life = partial(live, config, run_dir, resume_step, emit=self.events.put, check_stop=self.check_stop)
        self.threads = [threading.Thread(target=work, daemon=True) for work in (self.work, self.read)]

    def start(self) -> None:
        """Start the worker's thread and the thread that reads the other ranks' events."""
        for thread in self.threads:
            thread.start()

    def work(self) -> None:
        """Run rank 0's own worker until it has sent its last event."""
        self.events.put(last_word(0, self.life))

    def read(self) -> None:
        """Forward the other ranks' events until the pool stops."""
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
        """Raise Stopped after `stop`."""
        if self.stopped.is_set():
            raise Stopped("the run was stopped")

    def stop(self) -> None:
        """Ask rank 0's worker to leave at its next step. torchrun ends the others."""
        self.stopped.set()

    def join(self) -> None:
        """Wait until rank 0's worker has left."""
        for thread in self.threads:
            thread.join()


def send(sent: dist.Store, event: Event) -> None:
    """Send an event to rank 0."""
    sent.set(f"{sent.add('count', 1)}", json.dumps(event))


def live(
    config: DictConfig,
    run_dir: Path,
    resume_step: int | None,
    *,
    emit: Emit,
    check_stop: Callable[[], None] = lambda: None,
) -> None:
    """Run this rank's worker, or this rank's part of one, to its end."""
    if not (run_dir / "config.yaml").exists():
        raise UserError(
            f"rank {dist.get_rank()} does not see run_dir={run_dir}: set run_dir= to a folder that all machines share"
        )
    seat = taken(config)
    join = partial(run_worker.join, config, run_dir=run_dir, resume_step=resume_step, index=seat.island)
    exchange, tell = meeting(config, seat, run_dir, join, emit)
    try:
        run_worker.live(
            config,
            index=seat.island,
            run_dir=run_dir,
            resume_step=resume_step,
            exchange=exchange,
            emit=tell,
            check_stop=check_stop,
            seat=seat,
        )
        exchange.close()
    finally:
        exchange.abort()


def meeting(
    config: DictConfig, seat: RankLayout, run_dir: Path, join: Callable[[Exchange], None], emit: Emit
) -> tuple[Exchange, Emit]:
    """Return this rank's exchange with other islands, already joined, and the function that its events go to."""
    of_rank = partial(joined, config, seat, run_dir, join, emit)
    in_swarm = config.workers_as != "ranks"
    if seat.kind == "single" or (seat.kind == "sharded" and not in_swarm):
        return of_rank(), emit
    spoken_for = ShardedIsland if seat.kind == "sharded" else ReplicatedIsland
    exchange = spoken_for.joining(of_rank, ranks=seat.ranks)
    if exchange.exchange and in_swarm:
        emit = also_shown(exchange.exchange, emit)
    if seat.kind == "gathered" and exchange.exchange:
        return exchange.exchange, emit  # followers only learn its facts
    return exchange, emit


def joined(
    config: DictConfig, seat: RankLayout, run_dir: Path, join: Callable[[Exchange], None], emit: Emit
) -> Exchange:
    """Return this rank's own exchange after all other islands have joined it. Raises UserError if they do not."""
    if config.workers_as == "ranks":
        exchange: Exchange = make(config.exchange, group=seat.lane)
    else:
        exchange = peer_of(config, run_dir, seat.island, initial_peers(config), emit, lanes=seat.lanes)
    try:
        join(exchange)
    except BaseException:
        exchange.abort()
        raise
    return exchange
