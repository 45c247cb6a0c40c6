"""An exchange that leaves one peer out of rounds, and loops whose rounds run fused."""

import copy
from dataclasses import replace

from outerloop.exchange.inprocess import InProcess
from outerloop.methods.outer_optimizer import OuterOptimizer
from outerloop.types import Contribution
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


class Log(toy.Around):
    """Keeps what came of each round."""

    def __init__(self, inner):
        super().__init__(inner)
        self.rounds = {}

    def start(self, blob, round):
        return toy.Changed(self.inner.start(blob, round), lambda messages: self.rounds.setdefault(round, messages))


class Behind(toy.Around):
    """A peer that was away while others, whose log this is, went on; then it is alone."""

    info = replace(InProcess.info, replicated=True)
    peer, late_joiner = LATE, True

    def __init__(self, inner, log):
        super().__init__(inner)
        self.log = log

    def decided(self, round):
        return round in self.log

    def landed(self, round, state):
        pass

    def start(self, blob, round):
        if round not in self.log:
            self.log[round] = [Contribution(LATE, round, blob)]
        return Told(self.log[round])


class Told:
    def __init__(self, messages):
        self.messages = messages

    def wait(self, timeout_s):
        return self.messages
