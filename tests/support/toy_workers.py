"""Workers of a toy run: built, started and reported without a launcher."""

from pathlib import Path
from types import SimpleNamespace

import torch

from outerloop.core.round import RoundReport
from outerloop.inner.worker import Worker
from outerloop.inner.worker_settings import WorkerSettings
from outerloop.replica.rank_group import RankGroup
from outerloop.types import ReplicasDiverged, Round, UserError
from tests.support import toy

PLAN = WorkerSettings(
    index=0, run_dir=Path("runs/x"), rounds=4, eval_every=0, eval_batch=1, checkpoint_every=0,
    export_every=0, keep_payload_rounds=0, log_every=1, max_failed_rounds=3,
)  # fmt: skip


def worker_of(exchange, events=None):
    outer = toy.outer(toy.model(), exchange)
    emit = events.append if events is not None else lambda event: None
    trainer = SimpleNamespace(
        stream=SimpleNamespace(),
        outer=outer,
        ranks=RankGroup(None),
        tokens=0,
        evaluate=lambda windows, weights, batch: 2.0,
    )
    return Worker(
        PLAN,
        trainer=trainer,
        outer=outer,
        exchange=exchange,
        validation=torch.zeros(1, 2),
        emit=emit,
        check_stop=lambda: None,
    )


def outcomes(work):
    """What each of two workers returns or raises."""

    def caught(exchange):
        try:
            return work(exchange)
        except (UserError, ReplicasDiverged) as error:
            return error

    return toy.run_workers(2, caught)


def report(number, failed):
    return RoundReport(
        round=Round(number), samples=1, payload_bytes=10, launch_s=0.0, wait_s=0.5, delta_norm=1.0, slow_hash=0,
        failed=failed,
    )  # fmt: skip
