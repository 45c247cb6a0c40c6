"""Run workers as processes of torchrun: the worker pool of rank 0, and the code that runs in each process.

A worker is one process, or an island of several ranks, of which only the first sends events (rank_layout.py).

Rank 0 runs its own worker in a thread, so that its process can supervise all workers. The other ranks send their events
through the store of torchrun's rendezvous. Each event gets a number when it is sent; rank 0 reads and deletes events in
this order.

An interrupted run can end with a checkpoint of all ranks (stop.py).
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

from outerloop.config.build import peers_to_dial
from outerloop.config.instantiate import make
from outerloop.config.rank_layout import RankLayout, current_layout
from outerloop.exchange.island_replicated import ReplicatedIsland
from outerloop.exchange.island_sharded import ShardedIsland
from outerloop.exchange.network_peer import NeedsQuorum
from outerloop.inner.events import Event
from outerloop.inner.stop_point import StopPoint
from outerloop.launcher import run_worker
from outerloop.launcher.torchrun.stop import LEAVE, STOP_AFTER, STOP_REQUESTED, following_stop
from outerloop.launcher.worker_pool import error_event, run_to_end, stopping_event
from outerloop.launcher.worker_process import Emit, agree_on_checkpoint, swarm_exchange, with_peer_status
from outerloop.protocols import Exchange
from outerloop.types import Stopped, UserError

POLL_S = 0.05
"""Seconds between two checks for events."""


class TorchrunPool:
    """The worker pool on rank 0. It runs one worker, and collects the events of all.

    Args:
        config, run_dir, resume_step: the settings, the run directory, and the inner step to resume from.
        store: the store through which the other ranks send their events.
    """

    def __init__(self, config: DictConfig, run_dir: Path, resume_step: int | None, *, store: dist.Store) -> None:
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.store, self.workers, self.stopped = store, config.workers, threading.Event()
        self.begun: dict[int, int] = {}
        self.waiting = False
        self.stop_point = StopPoint()
        self.run_own_worker = partial(
            run_rank,
            config,
            run_dir,
            resume_step,
            store=store,
            emit=self.events.put,
            stop_point=self.stop_point,
            check_stop=self.check_stop,
        )
        self.threads = [
            threading.Thread(target=target, daemon=True) for target in (self.run_worker, self.forward_events)
        ]

    def start(self) -> None:
        """Start the worker's thread and the thread that reads the other ranks' events."""
        for thread in self.threads:
            thread.start()

    def run_worker(self) -> None:
        """Run rank 0's own worker until it has sent its last event."""
        self.events.put(run_to_end(0, self.run_own_worker))

    def forward_events(self) -> None:
        """Forward the other ranks' events until the pool stops."""
        number = 1
        try:
            while not self.stopped.is_set():
                if self.store.check([f"{number}"]):
                    self.forward(json.loads(self.store.get(f"{number}")))
                    self.store.delete_key(f"{number}")
                    number += 1
                else:
                    time.sleep(POLL_S)
        except Exception as error:
            self.events.put(error_event(0, error))

    def forward(self, event: Event) -> None:
        """Forward an event. Hold back "stopping" events until all ranks have sent one.

        Only then is it known which of them has begun the most inner steps. That of a rank which cannot end its step is
        forwarded at once, because no checkpoint can be saved then.
        """
        if event["event"] != "stopping" or event["blocked"]:
            self.events.put(event)
            return
        self.begun[event["worker"]] = event["step"]
        if len(self.begun) == dist.get_world_size():
            for worker in range(self.workers):
                self.events.put(stopping_event(worker, max(self.begun.values())))

    def check_stop(self) -> None:
        """Raise Stopped if `stop` has been called."""
        if self.stopped.is_set():
            raise Stopped("the run was stopped")

    def request_stop(self) -> None:
        """Ask all ranks to wait for `stop_after` before their next inner step."""
        if not self.store.check([STOP_REQUESTED]):
            self.waiting = True
            self.store.set(STOP_REQUESTED, "")

    def stop_after(self, step: int) -> None:
        """Ask all ranks to train up to inner step `step`, save and leave."""
        self.waiting = False
        self.store.set(STOP_AFTER, f"{step}")

    def stop(self) -> None:
        """Ask rank 0's worker to leave at its next step, and ranks that wait for `stop_after` to leave at once.

        torchrun ends the other ranks.
        """
        if self.waiting:
            self.store.set(STOP_AFTER, LEAVE)
        self.stopped.set()
        self.stop_point.cancel()

    def join(self) -> None:
        """Wait until rank 0's worker has left."""
        for thread in self.threads:
            thread.join()


def run_rank(
    config: DictConfig,
    run_dir: Path,
    resume_step: int | None,
    *,
    store: dist.Store,
    emit: Emit,
    stop_point: StopPoint,
    check_stop: Callable[[], None] = lambda: None,
) -> None:
    """Run this rank's worker, or its part of an island's worker, to the end of the run."""
    if not (run_dir / "config.yaml").exists():
        raise UserError(
            f"rank {dist.get_rank()} does not see run_dir={run_dir}: set run_dir= to a folder that all machines share"
        )
    layout = current_layout(config)
    agreed = resume_step

    def join(exchange: Exchange) -> None:
        """Agree on a checkpoint with the peers of a swarm, and join. Only ranks with their own exchange call this."""
        nonlocal agreed
        if isinstance(exchange, NeedsQuorum):
            stop_point.blocked = exchange.lacks_quorum
        agreed = agree_on_checkpoint(exchange, run_dir, resume_step, layout.island, emit)
        run_worker.join_exchange(config, exchange, run_dir, agreed, layout.island)

    exchange, emit_event = rank_exchange(config, layout, run_dir, join, emit)
    try:
        resume_step = json.loads(layout.ranks.broadcast(json.dumps(agreed).encode()))
        with following_stop(store, stop_point):
            run_worker.run_worker(
                config,
                index=layout.island,
                run_dir=run_dir,
                resume_step=resume_step,
                exchange=exchange,
                emit=emit_event,
                check_stop=check_stop,
                stop_point=stop_point,
                layout=layout,
            )
        exchange.close()
    finally:
        exchange.abort()


def rank_exchange(
    config: DictConfig, layout: RankLayout, run_dir: Path, join: Callable[[Exchange], None], emit: Emit
) -> tuple[Exchange, Emit]:
    """Return this rank's exchange, already joined, and the function that emits this rank's events."""
    own_exchange = partial(join_islands, config, layout, run_dir, join, emit)
    in_swarm = config.workers_as != "ranks"
    if layout.kind == "single" or (layout.kind == "sharded" and not in_swarm):
        return own_exchange(), emit
    island_exchange = ShardedIsland if layout.kind == "sharded" else ReplicatedIsland
    exchange = island_exchange.joining(own_exchange, ranks=layout.ranks)
    if exchange.exchange and in_swarm:
        emit = with_peer_status(exchange.exchange, emit)
    if layout.kind == "gathered" and exchange.exchange:
        return exchange.exchange, emit  # only the leader uses the exchange; followers already know its capabilities
    return exchange, emit


def join_islands(
    config: DictConfig, layout: RankLayout, run_dir: Path, join: Callable[[Exchange], None], emit: Emit
) -> Exchange:
    """Create this rank's own exchange. Return it once all islands have joined. Raises UserError if they do not."""
    if config.workers_as == "ranks":
        exchange: Exchange = make(config.exchange, group=layout.lane_group)
    else:
        peers = peers_to_dial(config, run_dir, layout.island)
        exchange = swarm_exchange(config, run_dir, layout.island, peers, emit, lanes=layout.num_lanes)
    try:
        join(exchange)
    except BaseException:
        exchange.abort()
        raise
    return exchange
