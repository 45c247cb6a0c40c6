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
from collections.abc import Callable, Collection, Hashable

from outerloop.swarm.consensus.chain import CommitChain
from outerloop.swarm.consensus.effects import Output
from outerloop.swarm.consensus.proposer import candidates, closes
from outerloop.swarm.gather.settings import GatherSettings
from outerloop.swarm.timeouts import LEAD_S

Event = Callable[[CommitChain], list[Output]]
LAST_DOUBLING = 3  # payloads keep arriving from view to view, so a view may be shorter than a transfer


class RoundTimers:
    """The running timers of the current round.

    Args:
        act: called with the event of each timer that expires.
        moving_s: returns the seconds so far in which payloads were being transferred.
        gone: the peers that are unreachable at the moment.
    """

    def __init__(
        self,
        act: Callable[[Event], None],
        rules: GatherSettings,
        *,
        moving_s: Callable[[], float],
        gone: Collection[str],
    ) -> None:
        self._act, self._rules, self._gone = act, rules, gone
        self._moving_s = moving_s
        self._moved_before_s = 0.0
        self._running: dict[Hashable, asyncio.TimerHandle] = {}

    def clear(self) -> None:
        """Cancel all timers, because the round is over."""
        for handle in self._running.values():
            handle.cancel()
        self._running = {}
        self._moved_before_s = self._moving_s()

    def look(self, machine: CommitChain) -> None:
        """Start the timers that are due to start. Timers that run already continue."""
        number, view, awaited = machine.number, machine.view, machine.awaited
        here, roster = len(candidates(machine.memory, machine.countable)), len(machine.memory.roster)
        if here:
            self._start("deadline", self._rules.deadline_s, lambda m: m.deadline(number))
        if here >= machine.closing.needed(roster, awaited=len(awaited), grace=True, deadline=False):
            missing = machine.gathering.asked.union(awaited) - {one.peer for one in machine.payloads}
            nobody_else = missing <= set(self._gone)
            self._start(("grace", nobody_else), 0.0 if nobody_else else self._rules.grace_s, lambda m: m.grace(number))
        if machine.votes and awaits_its_leader(machine):
            moved_s = min(self._moving_s() - self._moved_before_s, self._rules.deadline_s)
            patience_s = LEAD_S * 2 ** min(view, LAST_DOUBLING)
            self._start(("view", view), patience_s + moved_s, lambda m: m.timeout(number, view), again=True)

    def _start(self, key: Hashable, after_s: float, event: Event, *, again: bool = False) -> None:
        """Start a timer once per round and key. `again`: allow a restart after it expires, as messages may get lost."""

        def over() -> None:
            if again:
                del self._running[key]
            self._act(event)

        if key not in self._running:
            self._running[key] = asyncio.get_running_loop().call_later(after_s, over)


def awaits_its_leader(machine: CommitChain) -> bool:
    """Return whether the leader should have acted: a later view, a proposal, enough payloads, or others timed out."""
    gathering = machine.gathering
    under_way = machine.view > 0 or gathering.proposal is not None or machine.memory.accepted is not None
    if under_way or machine.overdue:
        return True
    return closes(machine.memory, gathering, machine.countable, awaited=machine.awaited, closing=machine.closing)
