"""Loops of a peer that is told which rounds the others have decided."""

from dataclasses import replace

from outerloop.compress.index.rice import Rice
from outerloop.compress.topk import TopK
from outerloop.compress.two_bit import TwoBit
from outerloop.exchange.inprocess import InProcess
from outerloop.feedback.ef import ErrorFeedback
from tests.support import toy


class Pending:
    """A round whose contributions are known."""

    def __init__(self, contributions):
        self.contributions = contributions

    def wait(self, timeout_s):
        return self.contributions


class Decided:
    """An exchange in which every round was decided elsewhere: `told` holds its contributions."""

    info = replace(InProcess.info, waits_for_all=False, replicated=True)
    size, rank, peer = 2, 0, "000"

    def __init__(self):
        self.told = {}

    def start(self, blob, round):
        return Pending(self.told.get(round, []))

    def decided(self, round):
        return False

    def landed(self, round, state):
        pass

    def recover(self, max_bytes):
        raise AssertionError("no replica needs another's state")


def loop_of(kind, schedule=None, exchange=None, **options):
    parts = {"schedule": schedule} if schedule else {}
    parts |= {"method": toy.sgd(0.7, 0.9, True)} if "momentum" in kind else {}
    if "sparse" in kind:
        codec = TopK(chunk=16, k=4, values=TwoBit(chunk=None), index=Rice())
        parts |= {"compress": codec, "feedback": ErrorFeedback(beta=0.9)}
    return toy.outer(toy.model(**options), exchange or Decided(), **parts)
