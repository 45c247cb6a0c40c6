"""The timers of one round: grace, deadline, and the patience with the leader of each view.

    grace      begins when as many payloads are here as are enough at its end: who is slower than most is waited for,
               and so are learners; over at once when all that are missing are out of reach
    deadline   begins with the first payload
    patience   begins when a leader could have proposed, or more than a third of the roster has lost its own, and again
               as long as the view lasts; doubles from view to view; as long again as payloads were on their way to or
               from here, because they may take longer to the leader, and no longer than the deadline: some never come

All are counted from what this peer sees, never from a clock of others. A round in which nobody is ready yet has none:
inner steps take as long as they take.
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
LAST_DOUBLING = 3  # payloads go on coming from view to view, so that a view need not be as long as they take


class RoundTimers:
    """`act` gets the event of each timer that is over.

    `moving_s`: seconds so far that payloads were on their way. `gone`: the peers that are out of reach just now.
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
        """The round is over."""
        for handle in self._running.values():
            handle.cancel()
        self._running = {}
        self._moved_before_s = self._moving_s()

    def look(self, machine: CommitChain) -> None:
        """Start what begins now; what runs already goes on."""
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
        """`again`: what is over may begin once more, since what its event says may get lost."""

        def over() -> None:
            if again:
                del self._running[key]
            self._act(event)

        if key not in self._running:
            self._running[key] = asyncio.get_running_loop().call_later(after_s, over)


def awaits_its_leader(machine: CommitChain) -> bool:
    """Whether it is the leader's turn: a later view, a proposal under way, payloads enough, or others say so."""
    gathering = machine.gathering
    under_way = machine.view > 0 or gathering.proposal is not None or machine.memory.accepted is not None
    if under_way or machine.overdue:
        return True
    return closes(machine.memory, gathering, machine.countable, awaited=machine.awaited, closing=machine.closing)
