"""A worker that costs next to nothing: exchange and outer loop are real, the model is a toy and training is a pause.

    python toy_worker.py '{options of SwarmGather}'

Tells what happens as JSON lines with the fields of a real worker's, and leaves when its standard input ends.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from typing import Any

import torch

from outerloop.core.initial_state import join_late
from outerloop.core.round import RoundReport
from outerloop.exchange.swarm_gather import SwarmGather
from tests.support import toy

INNER_S = 1.0


class Leave(Exception):
    """The parent has gone, or wants this worker to go."""


def tell(event: str, **fields: Any) -> None:
    print(json.dumps({"event": event, **fields}), flush=True)


def main(options: dict[str, Any]) -> None:
    signal.signal(signal.SIGTERM, leave)
    threading.Thread(target=watch_parent, daemon=True).start()
    exchange = SwarmGather(**options, on_status=lambda text: tell("status", text=text))
    try:
        tell("address", addresses=exchange.address)
        exchange.join()
        train(exchange)
    except Leave:
        tell("left")
    finally:
        exchange.abort()


def train(exchange: SwarmGather) -> None:
    """For ever: a pause, a random step, a round."""
    net = toy.model()
    outer = toy.outer(net, exchange, h=1)
    if exchange.late_joiner:
        join_late(outer)
    while True:
        time.sleep(INNER_S)
        with torch.no_grad():
            for parameter in net.parameters():
                parameter += 0.01 * torch.randn_like(parameter)
        for report in outer.after_inner_step(1):
            tell_round(report, exchange)


def tell_round(report: RoundReport, exchange: SwarmGather) -> None:
    tell(
        "round",
        round=report.round.number + 1,
        failed=report.failed,
        peers=len(report.peers),
        took_part=exchange.peer in report.peers,
        refused=report.refused,
        slow_hash=f"{report.slow_hash:016x}",
        wait_s=report.wait_s,
    )


def watch_parent() -> None:
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)


def leave(number: int, frame: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Leave


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
