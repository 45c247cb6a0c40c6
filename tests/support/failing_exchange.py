"""An exchange whose rounds fail on demand."""

from outerloop.types import RoundFailed
from tests.support import toy


class Failing(toy.Around):
    """An exchange whose rounds fail when it is told so, for all workers alike."""

    def __init__(self, inner, failing):
        super().__init__(inner)
        self.failing = failing

    def start(self, blob, round):
        return NeverComes() if round.number in self.failing else self.inner.start(blob, round)


class NeverComes:
    def wait(self, timeout_s):
        raise RoundFailed("told so")
