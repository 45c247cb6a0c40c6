"""Who is proven to have lied by signed statements alone: pairs that no honest peer signs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from outerloop.swarm.consensus import statements
from outerloop.swarm.consensus.commit import Commit
from outerloop.swarm.consensus.messages import Accept, Message, Promise
from outerloop.swarm.consensus.statements import Statement
from outerloop.swarm.consensus.votes import Accepted, ChainLink, CommitCertificate
from tests.support.swarm.toy_signatures import ToySigner

SIGNER = ToySigner("judge")


def convicted(messages: Iterable[tuple[str, Message]], peers: Iterable[str]) -> set[str]:
    """Return who signed two accepts of one view, or an accept and a later promise that leaves it out.

    `messages`: with whom they came from, whoever that was. `peers`: whose signatures are looked for.
    """
    peers, accepts, promises = list(peers), defaultdict(set), defaultdict(set)
    for sender, message in set(messages):
        for peer, (kind, *said) in signed(sender, message, peers):
            (accepts if kind == "accept" else promises)[peer].add(tuple(said))
    return {peer for peer in peers if lied(accepts[peer], promises[peer])}


def lied(accepts: set[tuple], promises: set[tuple]) -> bool:
    by_view = defaultdict(set)
    for *where, digest in accepts:
        by_view[tuple(where)].add(digest)
    left_out = (
        told_view < accepted_view or (told_view == accepted_view and told != digest)
        for number, head, view, told_view, told in promises
        for of, after, accepted_view, digest in accepts
        if (of, after) == (number, head) and accepted_view < view
    )
    return any(len(digests) > 1 for digests in by_view.values()) or any(left_out)


def signed(sender: str, message: Message, peers: list[str]) -> Iterator[tuple[str, Statement]]:
    """The accepts and promises in a message whose signatures are right."""
    if isinstance(message, Accept):
        said = statements.accept(message.number, message.head, message.view, message.digest)
        yield from _right([sender], said, message.signature)
    if isinstance(message, Promise):
        said = statements.promise(message.number, message.head, message.view, message.vote)
        yield from _right([sender], said, message.signature)
    proposal = message if isinstance(message, CommitCertificate) else getattr(message, "accepted", None)
    if isinstance(proposal, Accepted | CommitCertificate):
        yield from _of_links(proposal.commit, proposal.links, peers)
    if isinstance(message, CommitCertificate):
        said = statements.accept(message.commit.number, message.commit.parent, message.view, message.commit.digest)
        for peer, signature in message.accepts:
            yield from _right([peer], said, signature)


def _of_links(commit: Commit, links: tuple[ChainLink, ...], peers: list[str]) -> Iterator[tuple[str, Statement]]:
    for link in links:
        said = statements.accept(commit.number, commit.parent, link.view, commit.digest)
        yield from _right(peers, said, link.signature)
        for one in link.pledges:
            said = statements.promise(commit.number, commit.parent, link.view, one.accepted)
            yield from _right([one.peer], said, one.signature)


def _right(peers: list[str], said: Statement, signature: bytes) -> Iterator[tuple[str, Statement]]:
    yield from ((peer, said) for peer in peers if SIGNER.verify(peer, said, signature))
