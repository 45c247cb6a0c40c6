"""Send requests to another peer's invite service (invite_service.py)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import msgpack

from outerloop.swarm.access.access_control import INVITES
from outerloop.swarm.access.admissions import Statement
from outerloop.swarm.access.invites import Binding, Token
from outerloop.swarm.access.register_files import MAX_ROWS, packed, parsed
from outerloop.swarm.p2p.framing import Stream, Unreadable
from outerloop.swarm.p2p.transport import Request, Transport
from outerloop.swarm.timeouts import HISTORY_S, SEND_S, VIEW_S, limit
from outerloop.swarm.validation import MalformedMessage, checked_int, items, unpacked

PROTOCOL = f"outerloop/1/{INVITES}"
"""The name contains no run, so that a peer can answer a token for another run with a refusal."""
STATEMENT_BYTES = 1024
"""Maximum size of a statement. The largest, an admission to a run with a name of 64 characters, has about 700 bytes."""
MAX_WORD = 16
"""Maximum length of the word with which a peer refuses an invite."""


class InviteRefused(Exception):
    """A peer does not accept an invite. The message is one of the words that InviteService.objection returns."""


async def look(transport: Transport, receiver: str, token: Token, *, peer: str) -> list[str]:
    """Show a token to a listed peer, and return that peer's exchange.allow.

    After that, the listed peer lets this peer read the settings of the run.

    `peer`: id of the peer that will use the token, if it has a key already, or "".

    Raises InviteRefused, or BrokenStream, Unreachable or TimeoutError if the peer does not send a valid answer.
    """
    proof = token.look(transport.peer_id)
    async with limit(VIEW_S), transport.open_stream(receiver, PROTOCOL) as stream:
        await stream.send_object({"look": token.invite.to_list(), "proof": proof, "peer": peer})
        answer = _accepted(await stream.receive_object())
    try:
        listed = items(answer.get("listed"), "the allow-list", minimum=1)
    except MalformedMessage as error:
        raise Unreadable(str(error)) from error
    if not all(type(one) is str for one in listed):
        raise Unreadable("the allow-list must be a list of peer ids")
    return listed


async def use(transport: Transport, receiver: str, binding: Binding) -> list[Statement]:
    """Use an invite for the peer named in `binding`. Return the statements in the answer, unchecked.

    Raises InviteRefused, or BrokenStream, Unreachable or TimeoutError if the peer does not send a valid answer.
    """
    async with limit(HISTORY_S), transport.open_stream(receiver, PROTOCOL) as stream:
        await stream.send_object({"use": binding.to_list()})
        return await _receive_all(_accepted(await stream.receive_object()), stream)


async def ask(transport: Transport, peer: str, *, known: bytes) -> list[Statement]:
    """Return the statements that another peer knows, unchecked, or [] if `digest_of` them is `known`.

    Raises BrokenStream, Unreachable or TimeoutError if the peer does not send a valid answer.
    """
    async with limit(HISTORY_S), transport.open_stream(peer, PROTOCOL) as stream:
        await stream.send_object({"known": known})
        return await _receive_all(await stream.receive_object(), stream)


async def tell(transport: Transport, peer: str, statement: Statement) -> None:
    """Send a statement to another peer.

    Raises BrokenStream, Unreachable or TimeoutError if that fails.
    """
    async with limit(SEND_S), transport.open_stream(peer, PROTOCOL) as stream:
        await stream.send_object({"tell": packed(statement)})
        await stream.ended()


def digest_of(statements: Iterable[Statement]) -> bytes:
    """Return the sha256 of these statements, which must be in the order of InvitedPeers.shared."""
    return hashlib.sha256(msgpack.packb([packed(one) for one in statements])).digest()


async def _receive_all(answer: Request, stream: Stream) -> list[Statement]:
    try:
        count = checked_int(answer.get("count"), "the number of statements", maximum=MAX_ROWS)
        return [parsed(unpacked(await stream.receive(at_most=STATEMENT_BYTES), "a statement")) for _ in range(count)]
    except MalformedMessage as error:
        raise Unreadable(str(error)) from error


def _accepted(answer: Request) -> Request:
    """Return `answer` unchanged. Raises InviteRefused if it is a refusal."""
    refused = answer.get("refused")
    if refused is not None:
        raise InviteRefused(refused if type(refused) is str and len(refused) <= MAX_WORD else "")
    return answer
