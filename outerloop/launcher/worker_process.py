"""`outerloop worker RUN_DIR INDEX STEP`: one local worker process, started by `outerloop train`, not by hand.

The parent sends JSON lines on standard input: first {"initial_peers": [...]}, which worker 0 gets only if initial peers
are configured. To end with a checkpoint, it sends {"request_stop": true} and {"stop_after": STEP} (stop_point.py). When
standard input is closed, the worker leaves at once. It writes one JSON line per event to standard output, and its log
to standard error.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import FrameType

from omegaconf import DictConfig, OmegaConf

from outerloop.config import build
from outerloop.config.user_code import enable_user_code, names_in
from outerloop.exchange.network_peer import NeedsQuorum, NetworkPeer
from outerloop.inner.events import Event
from outerloop.inner.stop_point import StopPoint
from outerloop.launcher.run_worker import join_exchange, run_worker
from outerloop.launcher.worker_pool import run_to_end, stopping_event
from outerloop.protocols import Exchange
from outerloop.sinks.peer_status import PeerStatusSink
from outerloop.state import checkpoint
from outerloop.types import Stopped, UserError

Emit = Callable[[Event], None]
REQUEST_S = 2
"""Seconds that the parent has after SIGTERM to request a checkpoint; clusters send SIGTERM to the worker too."""


def main(arguments: list[str]) -> int:
    """Run one worker until it finishes, is stopped or fails. Return exit code 1 if it failed, else 0.

    Raises UserError if the arguments are not the three in the module docstring.
    """
    if len(arguments) != 3 or not arguments[1].isdigit():
        raise UserError("outerloop worker RUN_DIR INDEX STEP is started by outerloop train: run outerloop train")
    emit, run_dir, index = take_standard_output(), Path(arguments[0]), int(arguments[1])
    resume_step = None if arguments[2] == "None" else int(arguments[2])
    stop_point = StopPoint()
    leave_on_signals(stop_point)
    config = OmegaConf.load(run_dir / "config.yaml")
    assert isinstance(config, DictConfig)
    enable_user_code(names_in(config))
    with ExitStack() as resources:
        event = run_to_end(
            index, partial(join_and_train, config, run_dir, index, resume_step, emit, resources, stop_point)
        )
        ignore_signals()  # on the event, the parent closes standard input; the resulting signal would interrupt `abort`
        emit(event)
    return int(event["event"] == "error")


def take_standard_output() -> Emit:
    """Return a function that writes events to standard output. Redirect all other output to standard error."""
    events, lock = os.fdopen(os.dup(1), "w", buffering=1), threading.Lock()
    os.dup2(2, 1)

    def emit(event: Event) -> None:
        with lock:
            events.write(json.dumps(event) + "\n")

    return emit


def join_and_train(
    config: DictConfig,
    run_dir: Path,
    index: int,
    resume_step: int | None,
    emit: Emit,
    resources: ExitStack,
    stop_point: StopPoint,
) -> None:
    """Join the other peers, train, and leave. At the end, `resources` aborts the exchange if it is still open."""
    exchange = make_exchange(config, run_dir, index, emit, stop_point)
    resources.callback(exchange.abort)
    if isinstance(exchange, NeedsQuorum):
        stop_point.blocked = exchange.lacks_quorum
    resume_step = agree_on_checkpoint(exchange, run_dir, resume_step, index, emit)
    join_exchange(config, exchange, run_dir, resume_step, index)
    run_worker(
        config,
        index=index,
        run_dir=run_dir,
        resume_step=resume_step,
        exchange=exchange,
        emit=with_peer_status(exchange, emit),
        check_stop=lambda: None,
        stop_point=stop_point,
    )
    exchange.close()


def make_exchange(config: DictConfig, run_dir: Path, index: int, emit: Emit, stop_point: StopPoint) -> Exchange:
    """Create this worker's exchange, and emit its addresses. Start following the parent's requests.

    If exchange.port is set, worker i of this machine listens on exchange.port + i.
    """
    if config.exchange.get("port"):
        config.exchange.port += index
    is_first = index == 0 and not build.initial_peers(config)
    initial_peers = [] if is_first else parse_initial_peers(sys.stdin.readline())
    threading.Thread(target=follow_parent, args=(index, emit, stop_point), daemon=True).start()
    return swarm_exchange(config, run_dir, index, initial_peers, emit)


def agree_on_checkpoint(
    exchange: Exchange, run_dir: Path, resume_step: int | None, index: int, emit: Emit
) -> int | None:
    """Agree with the other peers on a checkpoint. Return the inner step to resume from, or None to start from scratch.

    Emit a "back" event if this step is earlier than `resume_step`. A start from scratch needs none, because this worker
    then holds no checkpoint after step 0. If the exchange uses no network, return `resume_step`.

    Raises UserError if peers are missing, or if they have no checkpoint in common.
    """
    if not isinstance(exchange, NetworkPeer):
        return resume_step
    step = exchange.form(checkpoint.resumable_steps(run_dir, index, newest=resume_step))
    if step is not None and step != resume_step:
        emit({"event": "back", "worker": index, "step": step})
    return step


def swarm_exchange(
    config: DictConfig, run_dir: Path, index: int, initial_peers: list[str], emit: Emit, *, lanes: int = 1
) -> Exchange:
    """Create a worker's exchange, emit its addresses, and return it. `lanes`: number of shards of the island."""
    exchange = build.make_peer_exchange(
        config,
        run_dir,
        worker=index,
        initial_peers=initial_peers,
        lanes=lanes,
        on_status=lambda text: emit({"event": "status", "worker": index, "step": 0, "text": f"worker {index} {text}"}),
    )
    addresses = list(exchange.address) if isinstance(exchange, NetworkPeer) else []
    emit({"event": "address", "worker": index, "step": 0, "addresses": addresses})
    return exchange


def with_peer_status(exchange: Exchange, emit: Emit) -> Emit:
    """Wrap `emit` so that it also publishes this peer's status, derived from the events, to other machines."""
    if not isinstance(exchange, NetworkPeer):
        return emit
    status_sink = PeerStatusSink(exchange.publish_status)

    def emit_and_publish(event: Event) -> None:
        emit(event)
        status_sink.write(event)

    return emit_and_publish


def parse_initial_peers(line: str) -> list[str]:
    """Return the addresses in a line from the parent. Raises Stopped if it is empty: the parent has ended."""
    if not line:
        raise Stopped("the parent has ended")
    return list(json.loads(line)["initial_peers"])


def follow_parent(index: int, emit: Emit, stop_point: StopPoint) -> None:
    """Follow the parent's requests on standard input. Leave when standard input is closed, or if `emit` fails.

    `emit` raises BrokenPipeError if the parent was killed after its request.
    """
    try:
        for message in map(json.loads, sys.stdin):
            if "stop_after" in message:
                stop_point.set_target(message["stop_after"])
            else:
                emit(stopping_event(index, stop_point.request(), blocked=stop_point.blocked()))
    finally:
        os.kill(os.getpid(), signal.SIGINT)


def leave_on_signals(stop_point: StopPoint, *, request_s: int = REQUEST_S) -> None:
    """Install signal handlers that make the worker leave by raising Stopped in the main thread.

    On SIGINT it leaves at once. On SIGTERM it leaves after `request_s` seconds, unless a checkpoint has been requested.
    """

    def wait_for_request(number: int, frame: FrameType | None) -> None:
        signal.alarm(request_s)

    def leave_unless_requested(number: int, frame: FrameType | None) -> None:
        if not stop_point.requested:
            raise_stopped(number, frame)

    signal.signal(signal.SIGINT, raise_stopped)
    signal.signal(signal.SIGTERM, wait_for_request)
    signal.signal(signal.SIGALRM, leave_unless_requested)


def raise_stopped(number: int, frame: FrameType | None) -> None:
    """Handle a signal: raise Stopped in the main thread and ignore further signals."""
    ignore_signals()
    raise Stopped(signal.Signals(number).name)


def ignore_signals() -> None:
    """Ignore all signals on which the worker leaves, because it is leaving already."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)
