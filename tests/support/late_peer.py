"""An exchange that leaves one peer out of rounds, and loops whose rounds run fused."""

import copy
from dataclasses import replace

from outerloop.exchange.inprocess import InProcess
from outerloop.methods.outer_optimizer import OuterOptimizer
from tests.support import toy, toy_pipelines
from tests.support.toy_pipelines import FUSED

LATE = "001"


class WithoutLate(toy.Around):
    """Everybody gets the messages of all but one worker, in the rounds that are given."""

    info = replace(InProcess.info, waits_for_all=False)

    def __init__(self, inner, rounds):
        super().__init__(inner)
        self.rounds = rounds

    def start(self, blob, round):
        pending = self.inner.start(blob, round)
        return toy.Changed(pending, without_late) if round.number in self.rounds else pending


def without_late(messages):
    return [one for one in messages if one.peer != LATE]


def fused(recipe):
    make, feedback, aggregate = FUSED[recipe]
    parts = {"method": OuterOptimizer(optimizer=make), "aggregate": aggregate, "compress": toy_pipelines.topk(recipe)}
    return parts | {"feedback": copy.deepcopy(feedback)}
