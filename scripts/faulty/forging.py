"""Forge parts of consensus messages, and describe the message that a liar is about to send.

Forged messages are well-formed and signed with the liar's own key, so peers must refuse them for their content. A
forged certificate holds the liar's signatures under the names of others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from outerloop.swarm.consensus.commit import Commit, Participant, max_faulty, next_demoted
from outerloop.swarm.consensus.messages import ViewChange
from outerloop.swarm.consensus.roster_change import next_roster
from outerloop.swarm.consensus.statements import Statement, wish

FAR = 1000
"""Number of rounds or views by which some lies are ahead of the run."""
ALIASES = 4
ROUNDS_LED = 3
"""Number of rounds whose messages a liar remembers."""
Messages = list[tuple[str, Any]]
"""(recipient, message) pairs."""


@dataclass(frozen=True)
class Outgoing:
    """One message that a liar is about to send.

    machine    the liar's consensus state machine
    to         the recipient
    message    the honest message
    earlier    up to two honest proposals or prepare certificates that the liar had as leader of earlier rounds, oldest
               first
    first      whether this is the liar's first message of its kind in the current view. Lies that send further messages
               to all peers do so only if it is. Otherwise two liars would answer each other's lies without end
    """

    machine: Any
    to: str
    message: Any
    earlier: tuple[Any, ...] = ()
    first: bool = True

    @property
    def honest(self) -> Messages:
        return [(self.to, self.message)]

    @property
    def own(self) -> str:
        return str(self.machine.hard_state.peer)

    @property
    def others(self) -> list[str]:
        """The other peers of the roster, sorted."""
        return [name for name in self.machine.hard_state.roster if name != self.own]

    @property
    def few(self) -> list[str]:
        """The last f of the other peers, if f peers of the roster may lie: the others can decide without them."""
        return self.others[len(self.others) - max_faulty(self.machine.hard_state.roster) :]

    def sign(self, statement: Statement) -> bytes:
        """Return the liar's signature over a statement in this session."""
        return bytes(self.machine.signer.sign(statement))

    def view_change(self, number: int, view: int) -> ViewChange:
        """Return the liar's signed wish for a view of a round."""
        head = self.machine.hard_state.head.digest
        return ViewChange(number, head, view, self.sign(wish(number, head, view)))

    def with_more(self, *messages: Any) -> Messages:
        """Return the honest message, and these messages to all other peers."""
        more = [(name, message) for name in self.others for message in messages] if self.first else []
        return self.honest + more


Forge = Callable[[Outgoing], Messages]
"""A lie: returns the messages that are sent in place of the honest one."""


@dataclass
class Memory:
    """A liar's memory of its own messages.

    led     round -> kind -> the last honest message of the liar as the leader of this round
    seen    the kinds of messages that it has sent in the current view
    """

    led: dict[int, dict[str, Any]] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)
    _where: tuple[int, int] = (-1, -1)

    def outgoing(self, machine: Any, to: str, message: Any) -> Outgoing:
        """Return the message with what the liar remembers, and remember it."""
        if self._where != (machine.number, machine.view):
            self._where, self.seen = (machine.number, machine.view), set()
        kind = type(message).__name__
        first = kind not in self.seen
        self.seen.add(kind)
        if kind in ("ProposalMessage", "Prepared"):
            self.led.setdefault(message.number, {})[kind] = message
            self.led = dict(sorted(self.led.items())[-ROUNDS_LED:])
        earlier = [one for number in sorted(self.led) if number < machine.number for one in self.led[number].values()]
        return Outgoing(machine, to, message, tuple(earlier[-2:]), first)


def another_commit(machine: Any, participants: Iterable[Participant], *, view: int) -> Commit:
    """Return a commit of the current round that counts these payloads, and that honest peers cannot refuse."""
    hard_state, min_peers = machine.hard_state, machine.gather_policy.min_peers
    counted = tuple(participants)
    roster = next_roster(
        [decided.commit for decided in hard_state.log],
        counted,
        session=hard_state.session,
        view=view,
        absent_rounds=machine._absent_rounds,
        quorum=machine.quorum,
        resigned=hard_state.resigned,
        min_peers=min_peers,
    )
    demoted = next_demoted(hard_state.session, hard_state.head, view, roster)
    return Commit(machine.number, hard_state.head.digest, view, counted, roster, (), demoted)


def with_aliases(commit: Commit, own: str) -> Commit:
    """Return the commit with a forged next roster: aliases of the peer `own`, and an id that does not exist."""
    aliases = {f"{900 + i}-{own.partition('-')[2]}" for i in range(ALIASES)} | {"999-nobody"}
    return replace(commit, roster=tuple(sorted({*commit.roster, *aliases})))
