"""Make a worker of attack_liar.py lie while the file of misbehave.py names one of the following lies.

equivocate   with every accept message, sends all peers a second one for the same round and view, correctly signed
rosters      adds four aliases of itself, and an id that does not exist, to the next roster in each of its proposals
views        with every message, sends view changes for views up to 2^31 - 1
certificates with every message, sends a later, undecided commit with its own signature under all names
histories    answers requests for commits with no commits; with every message, claims a round far ahead
states       serves newcomers a manifest with a wrong hash of the state's last chunk
silence      sends nothing

Lies are correctly signed with this peer's key, like honest statements. A malformed message would be refused for its
form alone, so nothing else would be tested.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

from outerloop.swarm.consensus.statements import accept, wish

FAR = 1000
VIEWS = (1, 2, 1000, (1 << 31) - 1)
ALIASES = 4
LIES = ("equivocate", "rosters", "views", "certificates", "histories", "states", "silence")


def now() -> str:
    """Return the current lie, read from the same file as the misbehaviours of misbehave.py."""
    import misbehave

    return misbehave.now()


def install() -> None:
    """Replace the methods through which all messages pass."""
    from outerloop.swarm.gather.ballot_rpc import BallotRpc
    from outerloop.swarm.gather.log_rpc import LogRpc
    from outerloop.swarm.state_transfer.manifest import Manifest

    send, since, of = BallotRpc.send, LogRpc.__init__, Manifest.of

    def bad_send(self: Any, to: str, message: Any) -> None:
        if now() == "silence":
            return
        for other in others(self, to, message, now()):
            send(self, *other)

    def bad_history(self: Any, *args: Any, **kwargs: Any) -> None:
        tell = kwargs["since"]
        since(self, *args, **kwargs | {"since": lambda after: () if now() == "histories" else tell(after)})

    def bad_state(content: bytes, **kwargs: Any) -> Any:
        if now() == "states":
            content = bytes(content[:-1]) + bytes([content[-1] ^ 1]) if content else content
        return of(content, **kwargs)

    BallotRpc.send, LogRpc.__init__, Manifest.of = bad_send, bad_history, staticmethod(bad_state)  # type: ignore[method-assign]


def others(post: Any, to: str, message: Any, lie: str) -> list[tuple[str, Any]]:
    """Return the (recipient, message) pairs that the liar sends in place of `message`."""
    machine = machine_of(post)
    kind = type(message).__name__
    if machine is None:
        return [(to, message)]
    everybody = [name for name in machine.hard_state.roster if name != machine.hard_state.peer]
    if lie == "equivocate" and kind == "Accept":
        other = hashlib.sha256(message.digest).digest()
        said = sign(post, accept(message.number, message.head, message.view, other))
        forged = replace(message, digest=other, signature=said)
        return [(to, message)] + [(name, one) for name in everybody for one in (message, forged)]
    if lie == "rosters" and kind == "Propose":
        return [(to, with_roster(post, message))]
    more = made_up(post, message, machine, lie)
    return [(to, message), *((name, one) for name in everybody for one in more)]


def made_up(post: Any, message: Any, machine: Any, lie: str) -> list[Any]:
    """Return the forged messages that this lie adds to every message; most lies add none."""
    from outerloop.swarm.consensus.messages import CommitCertificate, ViewChange

    number, head = machine.number, machine.hard_state.head

    def here(number: int, view: int) -> ViewChange:
        return ViewChange(number, head.digest, view, sign(post, wish(number, head.digest, view)))

    if lie == "views":
        return [here(number, view) for view in VIEWS]
    if lie == "histories":
        return [here(number + FAR, 0)]
    if lie == "certificates":
        commit = replace(head, number=number, parent=head.digest)
        signature = sign(post, accept(number, head.digest, 0, commit.digest))
        return [CommitCertificate(commit, 0, tuple((name, signature) for name in machine.hard_state.roster))]
    return []


def with_roster(post: Any, message: Any) -> Any:
    """Return the proposal with extra names in the next roster: aliases of this peer, and an id that does not exist."""
    accepted = message.accepted
    own = machine_of(post).hard_state.peer
    aliases = {f"{900 + i}-{own.partition('-')[2]}" for i in range(ALIASES)} | {"999-nobody"}
    commit = replace(accepted.commit, roster=tuple(sorted({*accepted.commit.roster, *aliases})))
    *links, last = accepted.links
    signature = sign(post, accept(commit.number, commit.parent, accepted.view, commit.digest))
    return replace(
        message, accepted=replace(accepted, commit=commit, links=(*links, last._replace(signature=signature)))
    )


def sign(post: Any, statement: Any) -> bytes:
    """Return this peer's signature over a statement in this session."""
    return machine_of(post).signer.sign(statement)


def machine_of(post: Any) -> Any:
    """Return the consensus state machine behind a BallotRpc, or None before the rounds have begun."""
    context = post._receive.__self__
    return context.chain if context.begun else None
