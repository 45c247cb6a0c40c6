"""Verify a round in the background as soon as its messages have arrived, while inner steps continue.

Verification decodes the messages of all peers, so it takes time in proportion to their number. Without this module, all
of it happens when the round lands, while inner steps are stopped.

Verification reads state that landings change, and changes nothing itself. So a landing first cancels queued
verifications, waits for the running one, and drops the results of other rounds. The result is therefore the same, bit
for bit.

A round is verified early only if its schedule lets inner steps continue while it is in flight, if the exchange reports
the arrival of its messages (ReportsArrival), if the outer state is on a CPU, where memory is not as scarce during inner
steps as on a GPU, and if the decoded messages are small (RoundPipeline.decoded_is_small).
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from contextlib import suppress

from outerloop.core.launch import RoundLauncher
from outerloop.core.round import InFlight, ReceivedRound
from outerloop.core.verify import RoundVerifier, VerifiedRound
from outerloop.protocols import ReportsArrival
from outerloop.types import Contribution, Round


class EarlyVerifier:
    """Verifies rounds in the launcher's thread before they land.

    Args:
        launcher: its thread does the work. If it has none, rounds are verified when they land.
        verifier: verifies one round.

    Attributes:
        expected: rounds to verify once their messages arrive.
        results: the verifications that have been submitted to the thread.
    """

    def __init__(self, launcher: RoundLauncher, verifier: RoundVerifier) -> None:
        self.launcher, self.verifier = launcher, verifier
        self.lock = threading.Lock()
        self.expected: set[Round] = set()
        self.results: dict[Round, Future[VerifiedRound]] = {}

    def expect(self, round: Round) -> None:
        """Arrange that a round, which the thread is launching, is verified when its messages arrive, if possible."""
        launch = self.launcher.pending.get(round)
        if launch is None or self.launcher.replica.device.type != "cpu":
            return
        if self.launcher.pipeline.decoded_is_small(self.launcher.names(round)):
            self.expected.add(round)
            launch.ready.add_done_callback(self.watch)

    def watch(self, launched: Future[InFlight]) -> None:
        """Submit the verification of a launched round when its messages arrive. Do nothing if the launch has failed."""
        if launched.cancelled() or launched.exception():
            return
        flight = launched.result()
        if isinstance(flight.pending, ReportsArrival):
            flight.pending.on_arrival(lambda contributions: self.submit(flight, contributions))

    def submit(self, flight: InFlight, contributions: list[Contribution]) -> None:
        """Verify a round in the thread, unless it is landing already, or another one has landed since its launch."""
        assert self.launcher.thread
        with self.lock, suppress(RuntimeError):  # the interpreter is exiting, and the thread accepts no work
            if flight.round in self.expected:
                self.expected.remove(flight.round)
                self.results[flight.round] = self.launcher.thread.submit(
                    self.verifier.verify_round, flight, contributions
                )

    def verify(self, flight: InFlight, received: ReceivedRound) -> VerifiedRound:
        """Return the verified form of a round that lands now. If it was not verified early, verify it now.

        Raises the errors of RoundVerifier.verify_round.
        """
        early = self.end(flight.round)
        return early.result() if early else self.verifier.verify_round(flight, received.contributions)

    def end(self, round: Round | None = None) -> Future[VerifiedRound] | None:
        """Cancel queued verifications and wait for a running one: the state that they read is about to change.

        No other verification begins before the next call of `expect`.

        Returns the finished verification of `round`, or None if it has not begun.
        """
        with self.lock:
            results, self.results = self.results, {}
            self.expected.clear()
        begun = {of: result for of, result in results.items() if not result.cancel()}
        for result in begun.values():
            result.exception()  # waits until it is done
        return begun.get(round) if round else None
