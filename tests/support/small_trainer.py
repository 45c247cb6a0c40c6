"""A trainer of a small model, built from settings."""

from pathlib import Path

from outerloop.config import build, instantiate, load
from outerloop.exchange.inprocess import Hub

README = Path(__file__).parents[2] / "README.md"
SMALL = [
    *("exchange=inprocess", "workers=1", "inner.device=cpu", "model=nano"),
    *("data=text", f"data.files=[{README}]", "inner.seq_len=16"),
]

AUDITED_STEPS = 4
AUDITED = [
    *("assignment=by_round", f"schedule.sync_every={AUDITED_STEPS}"),
    *("inner.batch=2", "inner.accumulate=2", "seed=5"),
]
"""Options of a run whose inner steps can be audited, with AUDITED_STEPS per round."""


def trainer_of(*overrides, exchange=None):
    settings = load.load([*SMALL, *overrides])
    if exchange is None:
        exchange = instantiate.make(settings.exchange, hub=Hub(1), rank=0)
        exchange.join()
    return build.make_trainer(settings, instantiate.make(settings.data), exchange, 0)
