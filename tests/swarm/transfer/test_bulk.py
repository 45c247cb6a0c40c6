"""Content arrives whole and right, whatever breaks; nothing that arrived is asked for again; who lies is found."""

import asyncio
import logging
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outerloop.swarm.p2p.framing import PIECE_BYTES, BrokenStream, Stream
from outerloop.swarm.p2p.transport import Request
from outerloop.swarm.timeouts import GONE_AFTER_S, STALL_S
from outerloop.swarm.transfer.assembler import ContentAssembler
from outerloop.swarm.transfer.content_store import ContentStore, GrowingBuffer
from outerloop.swarm.transfer.sources import ContentUnavailable
from outerloop.swarm.transfer.uploads import RateLimiter, limiter_for
from outerloop.types import UserError
from tests.support.swarm.bulk_scene import MANY, PROTOCOL, Node, liar, nodes, sha_of, some_bytes, zeros
from tests.support.swarm.memory_network import MemoryNetwork, MemoryTransport
from tests.support.swarm.memory_pipe import WINDOW_BYTES
from tests.support.swarm.virtual_clock import now_s, run, virtual

SIZES = [0, 1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 3_000_017]
OVERHEAD = 200  # bytes of an answer that are not content, at most


@pytest.mark.parametrize("size", SIZES)
@virtual
async def test_every_size_arrives_and_is_counted(size: int) -> None:
    content, seen = some_bytes(size), [0]
    a, b = await nodes(MemoryNetwork(), "ab", content)
    assert await a.get(content, ["b"], progress=lambda arrived, length: seen.append(arrived)) == content
    assert a.bulk.bytes_received == b.bulk.bytes_sent == size == seen[-1]
    assert seen == sorted(seen)


@settings(max_examples=60, deadline=None)
@given(
    size=st.sampled_from(SIZES) | st.integers(0, 1_000_000),
    breaks=st.lists(st.integers(0, 1_000_000) | st.sampled_from([0, 1, PIECE_BYTES]), max_size=12),
    holders=st.sampled_from(["b", "bc", "bcd"]),
)
@virtual
async def test_any_pattern_of_breaks_costs_no_byte_twice(size: int, breaks: list[int], holders: str) -> None:
    content, network = some_bytes(size), MemoryNetwork()
    a, *others = await nodes(network, "a" + holders, content)
    network.breaks.extend(breaks)
    assert await a.get(content, list(holders)) == content
    assert a.bulk.bytes_received == size
    sent = sum(other.bulk.bytes_sent for other in others)
    assert size <= sent <= size + len(breaks) * (WINDOW_BYTES + 2 * PIECE_BYTES), "what was under way is lost"


def test_cut_at_every_byte_of_the_protocol() -> None:
    async def scene(cut: int) -> bool:
        content, network = some_bytes(100), MemoryNetwork()
        a, _ = await nodes(network, "ab", content)
        network.breaks.append(cut)
        assert await a.get(content, ["b"]) == content
        return network.opened > 1

    needed_another = [run(scene(cut)) for cut in range(100 + OVERHEAD)]
    assert all(needed_another[:100]) and not any(needed_another[-20:])
    assert needed_another == sorted(needed_another, reverse=True)


@pytest.mark.parametrize("seed", range(5))
def test_a_bad_network_between_six_peers(seed: int) -> None:
    async def scene() -> None:
        network = MemoryNetwork(seed=seed, delay_s=(0.01, 0.3), break_chance=0.02)
        contents = [some_bytes(400_000 + index, index) for index in range(6)]
        peers = await nodes(network, "abcdef")
        for peer, content in zip(peers, contents, strict=True):
            peer.store.put(content)
            network.bytes_s[chr(97 + peers.index(peer))] = 100_000 * (1 + seed)
        gets = [
            peer.get(content, ["abcdef"[owner]])
            for peer in peers
            for owner, content in enumerate(contents)
            if peer is not peers[owner]
        ]
        got = await asyncio.gather(*gets)
        assert sorted(got) == sorted(contents * 5)
        assert [peer.bulk.bytes_received for peer in peers] == [sum(map(len, contents)) - len(c) for c in contents]
        assert not any(peer.bulk.reputation.wrong for peer in peers)

    run(scene(), limit_s=5000)


@pytest.mark.parametrize("size", [1, 1_000_000])
def test_wrong_bytes_are_found_named_and_not_asked_for_again(size: int, caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        content, network = some_bytes(size), MemoryNetwork()
        a, _ = await nodes(network, "ac", content)
        asked = await liar(network, "b", zeros(size), claims=size)
        for _ in range(2):
            assert await a.get(content, ["b", "c"]) == content
        assert len(asked) == 1 and a.bulk.reputation.wrong == {"b": 1}
        with pytest.raises(ContentUnavailable, match="b sent wrong bytes"):
            await a.get(content, ["b"])
        other = some_bytes(size, 1)
        a_holder_too = Node(network, "c")
        await a_holder_too.bulk.serve()
        a_holder_too.store.put(other)
        assert await a.get(other, ["b", "c"]) == other
        assert len(asked) == 1, "who sent wrong bytes once is asked last"

    with caplog.at_level(logging.WARNING, "outerloop"):
        run(scene())
    assert [record.getMessage().split(" for")[0] for record in caplog.records] == ["b sent wrong bytes"]


@pytest.mark.parametrize("lies", [1, 70_000, PIECE_BYTES, 500_000])
@virtual
async def test_a_liar_among_several_is_told_from_the_honest(lies: int) -> None:
    """It gives some wrong bytes and breaks; the honest give the rest."""
    content, network = some_bytes(1_000_000), MemoryNetwork()
    a, *_ = await nodes(network, "acd", content)
    await liar(network, "b", lambda request: bytes(lies), claims=len(content))
    network.breaks.extend([lies + OVERHEAD // 2, 300_000])
    assert await a.get(content, ["b", "c", "d"]) == content
    assert a.bulk.reputation.wrong == {"b": 1}
    assert a.bulk.bytes_received <= 3 * len(content)


@virtual
async def test_only_liars() -> None:
    network, content = MemoryNetwork(), some_bytes(300_000)
    (a,) = await nodes(network, "a")
    for name in "bcd":
        await liar(network, name, zeros(len(content)), claims=len(content))
    with pytest.raises(ContentUnavailable, match="b sent wrong bytes; c sent wrong bytes; d sent wrong bytes"):
        await a.get(content, ["b", "c", "d"])
    assert now_s() < 1


@virtual
async def test_a_frozen_holder_costs_one_stall_in_a_life() -> None:
    network, content = MemoryNetwork(), some_bytes(1_000_000)
    a, *others = await nodes(network, "abc", content)
    network.freeze("b")
    assert await a.get(content, ["b", "c"]) == content
    assert STALL_S <= now_s() < STALL_S + 0.1
    for seed in range(5):
        others[1].store.put(some_bytes(1000, seed))
        assert await a.get(some_bytes(1000, seed), ["b", "c"])
    assert now_s() < STALL_S + 0.1


async def half_way():
    """A network in which "a" has got half of some content from "b", and "c" has it, too."""
    network, content = MemoryNetwork(), some_bytes(4_000_000)
    a, *_ = await nodes(network, "abc", content)
    network.bytes_s["b"] = 1_000_000
    getting = asyncio.create_task(a.get(content, ["b", "c"]))
    await asyncio.sleep(2)
    return network, content, a, getting


@virtual
async def test_a_holder_that_freezes_in_the_middle_costs_one_stall_and_no_byte() -> None:
    network, content, a, getting = await half_way()
    network.freeze("b")
    assert await getting == content and a.bulk.bytes_received == len(content)
    assert 2 + STALL_S - 1 < now_s() < 2 + STALL_S + 1


@virtual
async def test_a_killed_holder_is_followed_by_the_next_and_the_last_one_is_named() -> None:
    network, content, a, getting = await half_way()
    network.kill("b")
    assert await getting == content and a.bulk.bytes_received == len(content) and now_s() < 2.1
    network.kill("c")
    with pytest.raises(ContentUnavailable, match=r"b is gone .*; c is gone"):
        await a.get(content, ["b", "c"])
    assert GONE_AFTER_S < now_s() - 2 < 3 * GONE_AFTER_S


@virtual
async def test_a_partition_is_waited_out() -> None:
    network, content = MemoryNetwork(), some_bytes(2_000_000)
    a, _ = await nodes(network, "ab", content)
    network.bytes_s["b"] = 1_000_000
    getting = asyncio.create_task(a.get(content, ["b"]))
    await asyncio.sleep(1)
    network.part("a", "b")
    await asyncio.sleep(100)
    network.heal()
    assert await getting == content and a.bulk.bytes_received == len(content)


@virtual
async def test_a_content_that_no_peer_can_give_raises_in_time() -> None:
    network, content = MemoryNetwork(), some_bytes(1000)
    a, *_ = await nodes(network, "abc")
    with pytest.raises(ContentUnavailable, match="b does not have it; c does not have it"):
        await a.get(content, ["b", "c"])
    with pytest.raises(ContentUnavailable, match="no holder"):
        await a.get(content, [])
    assert now_s() == 0
    network.freeze("b")
    with pytest.raises(ContentUnavailable, match=r"0 of 1000 bytes received.* within 100 s: b nothing was received"):
        await a.get(content, ["b"], timeout_s=100)
    assert now_s() == 100


@virtual
async def test_a_length_that_is_not_the_holders_is_nobodys_lie() -> None:
    content = some_bytes(1000)
    a, _ = await nodes(MemoryNetwork(), "ab", content)
    with pytest.raises(ContentUnavailable, match="b has it with another length"):
        await a.bulk.get(sha_of(content), 999, ["b"], at_most=1000, timeout_s=10)
    assert not a.bulk.reputation.wrong and await a.get(content, ["b"]) == content


@virtual
async def test_no_holder_is_blamed_for_a_hash_that_no_empty_content_has() -> None:
    network = MemoryNetwork()
    a, *_ = await nodes(network, "abc")
    with pytest.raises(ContentUnavailable, match="its sha256 must be that of empty content"):
        await a.bulk.get(bytes(32), 0, ["b", "c"], at_most=1000, timeout_s=10)
    assert not a.bulk.reputation.wrong and network.opened == 0


@virtual
async def test_the_bound_holds_before_anybody_is_asked() -> None:
    network, content = MemoryNetwork(), some_bytes(1000)
    a, _ = await nodes(network, "ab", content)
    with pytest.raises(ContentUnavailable, match="0 to 999 bytes"):
        await a.get(content, ["b"], at_most=999)
    with pytest.raises(ContentUnavailable, match="0 to 999 bytes"):
        await a.bulk.get(sha_of(content), -1, ["b"], at_most=999, timeout_s=10)
    assert network.opened == 0


def test_a_claimed_tebibyte_costs_what_arrives() -> None:
    async def scene() -> int:
        network = MemoryNetwork()
        (a,) = await nodes(network, "a")
        await liar(network, "b", lambda request: bytes(100_000), claims=1 << 40)
        tracemalloc.start()
        with pytest.raises(ContentUnavailable, match="of 1099511627776 bytes received"):
            await a.bulk.get(bytes(32), 1 << 40, ["b"], at_most=MANY, timeout_s=5 * STALL_S)
        return a.bulk.bytes_received

    try:
        received = run(scene())
        assert received >= 400_000 and tracemalloc.get_traced_memory()[1] < 4_000_000 + 3 * received
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("cap", "askers"), [(1_000_000, 1), (1_000_000, 20), (40_000, 3), (20_000, 12)])
def test_the_upload_cap_holds_for_all_together_and_queueing_is_no_failure(cap: int, askers: int) -> None:
    async def scene() -> None:
        network, content = MemoryNetwork(), some_bytes(2_000_000)
        giver, *_ = await nodes(network, "g", limiter=RateLimiter(cap))
        giver.store.put(content)
        others = await nodes(network, "abcdefhijklmnopqrstuvwxyz"[:askers])
        await asyncio.gather(*(other.get(content, ["g"]) for other in others))
        assert giver.bulk.bytes_sent == askers * len(content), "nothing is sent twice"
        assert network.opened == askers or cap <= 40_000, "a turn suffices, except on slow links"
        ideal_s = askers * len(content) / cap
        assert 0.97 * ideal_s - PIECE_BYTES / cap < now_s() < 1.03 * ideal_s

    run(scene(), limit_s=10_000)


@virtual
async def test_one_cap_for_payloads_and_state() -> None:
    """Two givers of one peer, as the rounds and the handover are."""
    network, limiter, contents = (
        MemoryNetwork(),
        RateLimiter(1_000_000),
        [some_bytes(2_000_000, seed) for seed in range(2)],
    )
    for name, content in zip("gh", contents, strict=True):
        (await nodes(network, name, limiter=limiter))[0].store.put(content)
    others = await nodes(network, "ab")
    await asyncio.gather(*(a.get(c, [g]) for a, c, g in zip(others, contents, "gh", strict=True)))
    assert 3.5 < now_s() < 4.1, "alone each would take 2 s"


@pytest.mark.parametrize("cap", [0.1, 0, -5, "fast", float("nan")])
def test_a_cap_that_stalls_others_is_refused(cap: Any) -> None:
    with pytest.raises(UserError, match=f"exchange.max_mbit={cap} .*set exchange.max_mbit=0.14 or more"):
        limiter_for(cap)


def test_a_cap_in_megabits_a_second() -> None:
    assert limiter_for(None).bytes_per_s is None and limiter_for(8).bytes_per_s == 1e6


@virtual
async def test_a_peer_with_another_holder_does_not_queue_for_long() -> None:
    network, content = MemoryNetwork(), some_bytes(3_000_000)
    busy, *_ = await nodes(network, "g", limiter=RateLimiter(20_000))
    busy.store.put(content)
    a, *_ = await nodes(network, "abh", content)
    other, *_ = await nodes(network, "z")
    first = asyncio.create_task(other.get(content, ["g"]))
    await asyncio.sleep(1)
    assert await a.get(content, ["g", "h"]) == content
    assert STALL_S <= now_s() - 1 < STALL_S + 1 and not first.done()


@virtual
async def test_no_more_than_eight_transfers_at_once_each_way_and_one_from_each_holder() -> None:
    network, letters = MemoryNetwork(), "bcdefghijklmnopqrstu"
    contents = [some_bytes(100_000, seed) for seed in range(20)]
    a, *givers = await nodes(network, "a" + letters)
    for giver, letter in zip(givers, letters, strict=True):
        network.bytes_s[letter] = 100_000
        for content in contents:
            giver.store.put(content)
    gets = [
        asyncio.create_task(a.get(content, [letter]))
        for content, letter in zip(contents, letters, strict=True)
        for _ in range(2)
    ]
    await asyncio.sleep(0.4)
    assert network.opened == a.bulk.slots.taken == 8
    assert [giver.bulk.uploads.slots.free for giver in givers[:8]] == [7] * 8
    gets += [asyncio.create_task(other.get(contents[0], ["b"])) for other in givers[9:19]]
    await asyncio.sleep(0.4)
    assert network.opened == 18 and givers[0].bulk.uploads.slots.free == 0
    await asyncio.gather(*gets)
    await asyncio.sleep(0.4)
    assert givers[0].bulk.uploads.slots.free == 8 and a.bulk.slots.taken == 0


@virtual
async def test_slots_come_back_from_askers_that_leave_or_freeze() -> None:
    network, content = MemoryNetwork(), some_bytes(4_000_000)
    a, *_ = await nodes(network, "azyxwvuts", content)
    giver, *_ = await nodes(network, "g", limiter=RateLimiter(200_000))
    giver.store.put(content)
    for name in "zyxwvuts":
        asker, *_ = await nodes(network, name)
        getting = asyncio.create_task(asker.get(content, ["g"]))
        if name > "v":
            asyncio.get_running_loop().call_later(15, getting.cancel)
    await asyncio.sleep(10)
    assert giver.bulk.uploads.slots.free == 0
    for name in "vuts":
        network.freeze(name)
    await asyncio.sleep(100)
    assert giver.bulk.uploads.slots.free == 8
    assert await a.get(content, ["g"]) == content


@virtual
async def test_a_stranger_gets_nothing_and_nothing_is_read() -> None:
    network, content = MemoryNetwork(), some_bytes(1000)
    _, b = await nodes(network, "ab", content)
    async with MemoryTransport(network, "stranger").open_stream("b", PROTOCOL) as stream:
        with pytest.raises(BrokenStream, match="refuses requests"):
            await stream.receive_object()
    assert b.bulk.bytes_sent == 0


NUMBERS = st.booleans() | st.integers(-(1 << 63), 1 << 63) | st.floats() | st.just(1000.0)
WEIRD = st.none() | NUMBERS | st.binary(max_size=40) | st.text(max_size=5)


@settings(max_examples=60, deadline=None)
@given(sha=WEIRD | st.binary(min_size=32, max_size=32), offset=WEIRD | st.integers(0, 2000))
@virtual
async def test_a_strange_request_gets_no_content(sha: object, offset: object) -> None:
    network, content = MemoryNetwork(), some_bytes(1000)
    _, b = await nodes(network, "ab", content)
    async with MemoryTransport(network, "a").open_stream("b", PROTOCOL) as stream:
        await stream.send_object({"sha": sha, "offset": offset})
        try:
            assert await stream.receive_object() == {}
        except BrokenStream:
            pass
    await asyncio.sleep(1)
    assert b.bulk.bytes_sent == 0 and b.bulk.uploads.slots.free == 8


@settings(max_examples=60, deadline=None)
@given(answer=st.dictionaries(st.sampled_from(["length", "wait", "x"]), WEIRD), rest=st.binary(max_size=2000))
@virtual
async def test_a_strange_answer_is_survived(answer: dict[str, object], rest: bytes) -> None:
    """From a holder that says and sends anything; the honest one gives the content."""
    network, content = MemoryNetwork(), some_bytes(1000)
    a, _ = await nodes(network, "ac", content)

    async def give(remote: str, request: Request, stream: Stream) -> None:
        await stream.send_object(answer)
        await stream.write(rest)

    await MemoryTransport(network, "b").serve(PROTOCOL, allowed=lambda peer_id: True, handler=give)
    assert await a.get(content, ["b", "c"]) == content


def test_content_put_twice_is_dropped_twice() -> None:
    store = ContentStore()
    sha = store.put(b"same")
    assert store.put(b"same") == sha == sha_of(b"same")
    store.drop(sha)
    assert store.get(sha) == b"same"
    store.drop(sha)
    assert store.get(sha) is None


@virtual
async def test_the_same_content_for_several_at_once_and_dropped_under_way() -> None:
    network, content = MemoryNetwork(), some_bytes(3_000_000)
    a, b, _ = await nodes(network, "abc", content)
    network.bytes_s["b"] = 1_000_000
    getting = asyncio.gather(*(asker.get(content, ["b"]) for asker in [a, *await nodes(network, "de")]))
    await asyncio.sleep(1)
    b.store.drop(sha_of(content))
    assert await getting == [content] * 3
    with pytest.raises(ContentUnavailable, match="b does not have it"):
        await a.get(content, ["b"])


@virtual
async def test_a_content_that_is_dropped_before_its_turn_is_not_kept_for_it() -> None:
    network, content, dropped = MemoryNetwork(), some_bytes(500_000), some_bytes(500_000, 1)
    (giver,) = await nodes(network, "g", limiter=RateLimiter(20_000))
    for held in (content, dropped):
        giver.store.put(held)
    a, b = await nodes(network, "ab")
    first = asyncio.create_task(a.get(content, ["g"]))
    await asyncio.sleep(1)
    second = asyncio.create_task(b.get(dropped, ["g"]))
    await asyncio.sleep(1)
    giver.store.drop(sha_of(dropped))
    with pytest.raises(ContentUnavailable, match="g does not have it"):
        await second
    assert await first == content and giver.bulk.bytes_sent == len(content)


def test_hashing_in_a_thread_does_not_block_a_growing_buffer() -> None:
    content, room = some_bytes(10_000_000), GrowingBuffer()

    async def arrive() -> bool:
        partial = ContentAssembler(sha_of(content), len(content), room)
        partial.attribute_to("b")
        for start in range(0, len(content), 100_000):
            await partial.add(content[start : start + 100_000])
        return partial.matches_hash()

    assert asyncio.run(arrive()) and room.getvalue() == content
