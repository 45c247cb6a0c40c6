"""Wait for a round or for the state of the run, and report progress."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, TimeoutError
from typing import TypeVar

from outerloop.exchange.swarm import SwarmPending
from outerloop.swarm.gather.committed_rounds import LogTruncated
from outerloop.swarm.timeouts import TELL_S
from outerloop.types import Contribution, QuorumLost, Round, RoundFailed, StateTransferRequired

OnStatus = Callable[[str], None]
Result = TypeVar("Result")


class PatientPending(SwarmPending):
    """A round in progress, whose `wait` reports what it is waiting for.

    waits_for   returns one line that states why the round has no outcome yet
    recover     downloads the run's state; passed on as `StateTransferRequired.state`
    """

    def __init__(
        self,
        future: Future[list[Contribution]],
        *,
        waits_for: Callable[[], str],
        on_status: OnStatus,
        recover: Callable[[int], tuple[Round, bytes]],
    ) -> None:
        super().__init__(future)
        self._waits_for = waits_for
        self._on_status = on_status
        self._recover = recover

    def wait(self, timeout_s: float) -> list[Contribution]:
        """Return the contributions. Raises QuorumLost if the round is not decided in time.

        Raises RoundFailed if this peer leaves, and StateTransferRequired if this peer is too far behind.
        """
        until_s, pause_s = time.monotonic() + timeout_s, TELL_S
        try:
            while True:
                try:
                    return self.future.result(min(pause_s, until_s - time.monotonic()))
                except TimeoutError:
                    if self.future.done():
                        return self.future.result()
                reason = self._waits_for()
                if time.monotonic() >= until_s:
                    raise QuorumLost(f"no round was decided for {timeout_s:g} s; {reason}")
                self._on_status(f"waiting: {reason}")
                pause_s *= 2
        except LogTruncated:
            raise StateTransferRequired(self._recover) from None
        except CancelledError:
            raise RoundFailed("the round was dropped: this peer is leaving") from None


def progress_to(
    on_status: OnStatus, *, what: str = "state of the run", done: str = "received"
) -> Callable[[int, int], None]:
    """Return a callback that reports progress at intervals. Its arguments are the bytes done and the total bytes.

    `what`: name of the content. `done`: past participle of what is done with the bytes, such as "received".
    """
    reported_s = time.monotonic()

    def progress(amount: int, size: int) -> None:
        nonlocal reported_s
        if amount == size or time.monotonic() - reported_s > TELL_S:
            reported_s = time.monotonic()
            on_status(f"{what}: {amount / 1e6:.1f} of {size / 1e6:.1f} MB {done}")

    return progress


def state_from_others(
    getting: Future[Result], *, silent_s: Callable[[], float], patience_s: float, on_status: OnStatus
) -> Result:
    """Wait for the result of `getting`, without a time limit, as long as peers send messages about the run.

    `silent_s` returns the seconds since the last such message. Raises QuorumLost once this exceeds `patience_s`.
    """
    pause_s = TELL_S
    try:
        while True:
            try:
                return getting.result(min(TELL_S, patience_s))
            except TimeoutError:
                if getting.done():
                    return getting.result()
            silent = silent_s()
            if silent > patience_s:
                raise QuorumLost(
                    f"no peer has sent anything about the run for {silent:.0f} s: the others may have finished"
                )
            if silent >= pause_s:
                on_status(f"waiting: no peer has sent anything about the run for {silent:.0f} s")
                pause_s *= 2
    finally:
        getting.cancel()
