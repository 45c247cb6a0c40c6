"""The timers of one round: grace period, deadline, and a timeout for the leader of each view.

    grace            starts when this peer holds enough payloads for the round to close at its end. It gives slow
                     peers and learners time to be counted. It ends at once if all missing peers are unreachable
    deadline         starts with the first payload
    leader timeout   starts when the leader could have proposed, or when more than a third of the roster has timed out.
                     It is restarted as long as the view lasts, and doubles from view to view. The time in which
                     payloads were moving to or from this peer is added, because they may take longer to the leader. At
                     most `deadline_s` is added, because some payloads never arrive

All timers start from what this peer sees, never from another peer's clock. While no payload is ready, no timer runs:
the duration of inner steps is not limited.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Hashable

from outerloop.swarm.consensus.chain import CommitChain
from outerloop.swarm.consensus.proposer import candidates, closes
from outerloop.swarm.gather.round_context import Event, RoundContext
from outerloop.swarm.gather.settings import GatherSettings
from outerloop.swarm.timeouts import LEAD_S
from outerloop.swarm.transfer.bulk import Bulk

LAST_DOUBLING = 3  # payloads keep arriving from view to view, so a view may be shorter than a transfer


class RoundTimers:
    """The running timers of the current round.

    Args:
        bulk: transfers the payloads.
        unreachable: the peers that are unreachable at the moment; its owner changes it.
    """

    def __init__(
        self, context: RoundContext, settings: GatherSettings, bulk: Bulk, *, unreachable: Collection[str]
    ) -> None:
        self._context, self._settings, self._bulk, self._unreachable = context, settings, bulk, unreachable
        self._moved_before_s = 0.0
        self._running: dict[Hashable, asyncio.TimerHandle] = {}

    def begin_round(self, number: int) -> None:
        """Cancel the timers of the last round."""
        self.cancel()
        self._moved_before_s = self._bulk.moving_s

    def cancel(self) -> None:
        """Cancel all timers."""
        for handle in self._running.values():
            handle.cancel()
        self._running = {}

    def look(self, chain: CommitChain) -> None:
        """Start the timers that are due to start. Timers that run already continue."""
        number, view, awaited = chain.number, chain.view, chain.awaited
        arrived, roster = len(candidates(chain.hard_state, chain.countable)), len(chain.hard_state.roster)
        if arrived:
            self._start("deadline", self._settings.deadline_s, lambda chain: chain.deadline(number))
        if arrived >= chain.gather_policy.needed(roster, awaited=len(awaited), grace=True, deadline=False):
            missing = chain.soft_state.asked.union(awaited) - {participant.peer for participant in chain.payloads}
            nobody_else = missing <= set(self._unreachable)
            grace_s = 0.0 if nobody_else else self._settings.grace_s
            self._start(("grace", nobody_else), grace_s, lambda chain: chain.grace(number))
        if chain.votes and awaits_its_leader(chain):
            moved_s = min(self._bulk.moving_s - self._moved_before_s, self._settings.deadline_s)
            patience_s = LEAD_S * 2 ** min(view, LAST_DOUBLING)
            self._start(("view", view), patience_s + moved_s, lambda chain: chain.timeout(number, view), again=True)

    def _start(self, key: Hashable, after_s: float, event: Event, *, again: bool = False) -> None:
        """Start a timer once per round and key. `again`: allow a restart after it expires, as messages may get lost."""

        def over() -> None:
            if again:
                del self._running[key]
            self._context.act(event)

        if key not in self._running:
            self._running[key] = asyncio.get_running_loop().call_later(after_s, over)


def awaits_its_leader(chain: CommitChain) -> bool:
    """Return whether the leader should have acted: a later view, a proposal, enough payloads, or others timed out."""
    soft_state = chain.soft_state
    under_way = chain.view > 0 or soft_state.proposal is not None or chain.hard_state.accepted is not None
    if under_way or chain.overdue:
        return True
    return closes(
        chain.hard_state, soft_state, chain.countable, awaited=chain.awaited, gather_policy=chain.gather_policy
    )
