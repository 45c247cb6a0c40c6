"""Make a worker of attack_liar.py lie while the file of misbehave.py names a lie of its protocol.

The lies of consensus messages are in paxos_lies.py (exchange.trust=members) and hotstuff_lies.py (trust=nobody); their
docstrings state what each of them does. One more lie concerns the run's state:

states       serves newcomers a manifest with a wrong hash of the state's last chunk, and names it in its payloads

Each time that a lie changes what the worker sends, misbehave.py counts it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from faulty import hotstuff_lies, misbehave, paxos_lies
from faulty.forging import Forge, Memory, Messages

FORGES: dict[str, dict[str, Forge]] = {"members": paxos_lies.LIES, "nobody": hotstuff_lies.LIES}
"""exchange.trust -> lie -> the function that forges its messages."""
STATES = "states"
WITHOUT_LOG = ("histories", "hide")
"""The lies with which the liar answers requests for commits with no commits."""


@dataclass(frozen=True)
class Lie:
    """A lie of a run with exchange.trust=`trust`. `what`: one line about what it does."""

    name: str
    trust: str
    what: str


def lies(trust: str) -> tuple[Lie, ...]:
    """Return all lies of a run with this exchange.trust, in the order in which one run has them."""
    found = [Lie(name, trust, str(forge.__doc__).splitlines()[0]) for name, forge in FORGES[trust].items()]
    states = Lie(STATES, trust, "Serve newcomers a manifest with a wrong hash, and name this state in payloads.")
    return (*found, states)


class Liar:
    """A peer's lies.

    `now` returns the current lie, or "" if there is none. `note` is called with a lie each time that it changes what
    the peer sends.
    """

    def __init__(self, now: Callable[[], str], note: Callable[[str], None]) -> None:
        self._now, self._note = now, note
        self._memory = Memory()

    def messages(self, machine: Any, to: str, message: Any) -> Messages:
        """Return the (recipient, message) pairs to send in place of one consensus message.

        `machine`: the liar's consensus state machine, or None before the rounds have begun.
        """
        honest = [(to, message)]
        if machine is None:
            return honest
        out, lie = self._memory.outgoing(machine, to, message), self._now()
        forge = FORGES["nobody" if machine.byzantine else "members"].get(lie)
        return self._counted(lie, forge(out), honest) if forge else honest

    def log(self, found: Sequence[Any]) -> Sequence[Any]:
        """Return the commits to send in answer to a request for the commits `found`."""
        lie = self._now()
        return self._counted(lie, (), found) if lie in WITHOUT_LOG else found

    def state(self, content: bytes) -> bytes:
        """Return the content to hash in place of a copied state."""
        if self._now() != STATES or not content:
            return content
        return self._counted(STATES, bytes(content[:-1]) + bytes([content[-1] ^ 1]), content)

    def _counted(self, lie: str, forged: Any, honest: Any) -> Any:
        if forged != honest:
            self._note(lie)
        return forged


def install() -> None:
    """Replace the methods through which all messages pass, so that this process lies."""
    from outerloop.swarm.gather.ballot_rpc import BallotRpc
    from outerloop.swarm.gather.log_rpc import LogRpc
    from outerloop.swarm.state_transfer.manifest import Manifest

    send, of, start = BallotRpc.send, Manifest.of, LogRpc.__init__
    liar = Liar(misbehave.now, misbehave.note)

    def bad_send(self: Any, to: str, message: Any) -> None:
        for other in liar.messages(machine_of(self), to, message):
            send(self, *other)

    def bad_state(content: bytes, **kwargs: Any) -> Any:
        return of(liar.state(content), **kwargs)

    def bad_start(self: Any, *args: Any, **kwargs: Any) -> None:
        start(self, *args, **kwargs)
        lie_about_log(self, liar)

    BallotRpc.send, Manifest.of, LogRpc.__init__ = bad_send, staticmethod(bad_state), bad_start  # type: ignore[method-assign]


def lie_about_log(log_rpc: Any, liar: Liar) -> None:
    """Let a liar answer the requests for commits that one peer receives."""
    since = log_rpc._since
    log_rpc._since = lambda after: liar.log(since(after))


def machine_of(ballots: Any) -> Any:
    """Return the consensus state machine behind a BallotRpc, or None before the rounds have begun."""
    context = ballots._receive.__self__
    return context.chain if context.begun else None
