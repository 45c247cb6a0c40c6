"""The timers of one round: grace period, deadline, and a timeout for the leader of each view.

    grace            starts when this peer holds enough payloads to close the round at the end of the grace period. It
                     gives slow peers and learners time to be counted, and ends at once if all missing peers are
                     unreachable, or learners for which this round does not wait (learner_patience.py)
    deadline         starts with the first payload
    leader timeout   starts when the leader could have proposed, or when at least a third of the roster has timed out.
                     It is zero if the leader has resigned (consensus/resignation.py).
                     When it expires, it starts again, as long as the view lasts. Its duration doubles with each of the
                     first views. With exchange.trust=nobody it grows by LEAD_S with each view instead, without a limit.
                     The time that payload transfers to or from this peer took in this round is added, because transfers
                     to the leader may take longer; at most `deadline_s` is added, because some payloads never arrive
    reports          with exchange.trust=nobody: how long the leader of view 1 or later waits for the locks of the other
                     peers (hotstuff/__init__.py). It grows by REPORTS_S with each view, and is a fraction of the leader
                     timeout

All timers start from events that this peer observes, never from another peer's clock. No timer runs before the first
payload is ready, so the duration of inner steps is not limited.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Hashable

from outerloop.swarm.consensus.chain import Chain
from outerloop.swarm.consensus.proposer import candidates, closes
from outerloop.swarm.gather.learner_patience import LearnerPatience
from outerloop.swarm.gather.round_context import Event, RoundContext
from outerloop.swarm.gather.settings import GatherSettings
from outerloop.swarm.timeouts import LEAD_S, REPORTS_S
from outerloop.swarm.transfer.bulk import Bulk

LAST_DOUBLING = 3  # the leader timeout doubles with each view up to this one; longer transfers continue in later views


class RoundTimers:
    """Runs the timers of the current round.

    Args:
        bulk: transfers the payloads; the time that this takes is added to the leader timeout.
        unreachable: the currently unreachable peers, a collection that PayloadRequests keeps up to date.
    """

    def __init__(
        self, context: RoundContext, settings: GatherSettings, bulk: Bulk, *, unreachable: Collection[str]
    ) -> None:
        self._context, self._settings, self._bulk, self._unreachable = context, settings, bulk, unreachable
        self._patience = LearnerPatience()
        self._moved_before_s = 0.0
        self._running: dict[Hashable, asyncio.TimerHandle] = {}

    def begin_round(self, number: int) -> None:
        """Cancel the timers of the previous round."""
        self.cancel()
        self._patience.begin_round()
        self._moved_before_s = self._bulk.moving_s

    def cancel(self) -> None:
        """Cancel all timers."""
        for handle in self._running.values():
            handle.cancel()
        self._running = {}

    def look(self, chain: Chain) -> None:
        """Start each timer whose condition now holds, unless it is already running."""
        number, view, awaited = chain.number, chain.view, chain.awaited
        arrived, roster = len(candidates(chain.hard_state, chain.countable)), len(chain.hard_state.remaining)
        asked, stored = chain.soft_state.asked, {participant.peer for participant in chain.payloads}
        self._patience.observe(asked, stored)
        if arrived:
            self._start("deadline", self._settings.deadline_s, lambda chain: chain.deadline(number))
        if arrived >= chain.gather_policy.needed(roster, awaited=len(awaited), grace=True, deadline=False):
            missing = self._patience.awaited(asked, number).union(awaited) - stored
            nobody_else = missing <= set(self._unreachable)
            grace_s = 0.0 if nobody_else else self._settings.grace_s
            self._start(("grace", nobody_else), grace_s, lambda chain: chain.grace(number))
        if chain.votes and awaits_its_leader(chain):
            moved_s = min(self._bulk.moving_s - self._moved_before_s, self._settings.deadline_s)
            patience_s = moved_s + LEAD_S * (1 + view if chain.byzantine else 2 ** min(view, LAST_DOUBLING))
            pointless = chain.leader_resigned and not chain.wants_next_view
            self._start(
                ("view", view, pointless),
                0.0 if pointless else patience_s,
                lambda chain: chain.timeout(number, view),
                again=True,
            )

        if chain.votes and chain.collects_reports:
            self._start(("reports", view), REPORTS_S * (1 + view), lambda chain: chain.reports_over(number, view))

    def _start(self, key: Hashable, after_s: float, event: Event, *, again: bool = False) -> None:
        """Start a timer, unless a timer with this key has been started in this round.

        `again`: the timer may be started again once it has expired.
        """

        def over() -> None:
            if again:
                del self._running[key]
            self._context.act(event)

        if key not in self._running:
            self._running[key] = asyncio.get_running_loop().call_later(after_s, over)


def awaits_its_leader(chain: Chain) -> bool:
    """Return whether the leader of the current view should already have acted.

    In view 0, this is the case once a proposal or enough payloads have arrived, or enough other peers have timed out.
    In later views, it is always the case.
    """
    soft_state = chain.soft_state
    under_way = chain.view > 0 or soft_state.pending is not None or chain.hard_state.accepted is not None
    if under_way or chain.overdue:
        return True
    return closes(
        chain.hard_state, soft_state, chain.countable, awaited=chain.awaited, gather_policy=chain.gather_policy
    )
