"""An answer to a call that has just ended does not end hivemind's client, and later calls are answered."""

import asyncio
from operator import methodcaller
from uuid import UUID, uuid4

import pytest
from hivemind.p2p.p2p_daemon_bindings.control import ControlClient
from hivemind.p2p.p2p_daemon_bindings.utils import write_unsigned_varint
from hivemind.proto import p2pd_pb2
from hivemind.utils.multiaddr import Multiaddr

from outerloop.swarm.p2p.node import PendingCalls


class Written(list):
    """What is written to a stream, as a list of bytes."""

    write = list.append

    async def drain(self) -> None:
        pass


async def answer(call: UUID, text: bytes) -> bytes:
    """The daemon's answer to a call, as it arrives at the client."""
    message = p2pd_pb2.PersistentConnectionResponse(callId=call.bytes)
    message.callUnaryResponse.response = text
    written = Written()
    await write_unsigned_varint(written, message.ByteSize())
    return b"".join(written) + message.SerializeToString()


async def answered(calls: dict) -> asyncio.Future:
    """Read an answer to a call that was cancelled, and one to a call that waits. Return the future of the latter."""
    control = ControlClient(None, Multiaddr("/unix/none"), _initialized_with_create=True)
    vars(control)["_pending_calls"] = calls
    ended, waits = uuid4(), uuid4()
    for call in (ended, waits):
        calls[call] = asyncio.get_running_loop().create_future()
    calls[ended].cancel()
    reader = asyncio.StreamReader()
    reader.feed_data(await answer(ended, b"late") + await answer(waits, b"in time"))
    reader.feed_eof()
    await methodcaller("_read_from_persistent_conn", reader)(control)
    return calls[waits]


def test_an_answer_to_a_cancelled_call_is_ignored():
    assert asyncio.run(answered(PendingCalls())).result() == b"in time"


def test_hivemind_alone_stops_reading():
    """When this fails, hivemind has mended it, and PendingCalls can go."""
    with pytest.raises(asyncio.InvalidStateError):
        asyncio.run(answered({}))
