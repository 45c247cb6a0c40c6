"""State for late comers: from all donors at once, the same for whoever asks; a donor's death costs its open chunks."""

import asyncio
import contextlib
import random
from itertools import pairwise

import pytest

from outerloop.swarm.p2p.framing import BrokenStream
from outerloop.swarm.state_transfer.donor import COPY_EVERY, FURTHEST_AHEAD, Donor, next_common, protocol_of
from outerloop.swarm.state_transfer.download import Download
from outerloop.swarm.state_transfer.manifest import CHUNK_BYTES, Manifest, cut
from outerloop.swarm.timeouts import LATE_OFFER_S, POLL_S, STATE_KEPT_S
from outerloop.swarm.transfer.sources import ContentUnavailable
from outerloop.swarm.validation import MAX_NUMBER, MalformedMessage
from tests.support.swarm.gather_scene import MemoryDisk
from tests.support.swarm.memory_network import MemoryNetwork, MemoryTransport
from tests.support.swarm.virtual_clock import now_s, virtual

HEAD = b"h" * 32
SESSION = "r/1"
SIZES = [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES + 5]
MOST = 1 << 26


def state(size, seed=0):
    return random.Random(seed).randbytes(size)


async def donors(network, names):
    made = {
        name: Donor(
            MemoryTransport(network, name), run="r", session=lambda: SESSION, allowed=lambda peer: peer != "stranger"
        )
        for name in names
    }
    for donor in made.values():
        await donor.serve()
    return made


class Joiner(Download):
    """One that takes at most 64 MiB, unless it is told otherwise."""

    async def get(self, number, donors, progress, *, at_most=MOST, certified=None):
        return await super().get(number, donors, progress, at_most=at_most, certified=certified)


def joiner(network, disk=None, *, name="j"):
    disk = MemoryDisk() if disk is None else disk
    return Joiner(MemoryTransport(network, name), run="r", session=lambda: SESSION, disk=disk)


async def land(donor, number, content, *, after_s=0.0):
    """What the trainer does at a landing."""
    await asyncio.sleep(after_s)
    wanted = donor.wants(number)
    donor.landed(number, copied=wanted)
    if wanted:
        donor.hold(content, Manifest.of(content, number=number, head=HEAD))


def ignore(here, size):
    pass


@pytest.mark.parametrize("size", SIZES)
@virtual
async def test_every_size_comes_whole_from_all_donors(size):
    network, content, seen = MemoryNetwork(delay_s=(0.001, 0.01)), state(size), []
    made, disk = await donors(network, "abc"), MemoryDisk()
    get = asyncio.create_task(joiner(network, disk).get(5, list(made), lambda here, size: seen.append((here, size))))
    for number in (4, 5, 6):
        await asyncio.gather(*(land(donor, number, content, after_s=1 + i) for i, donor in enumerate(made.values())))
    manifest, came = await get
    assert came == content and (manifest.number, manifest.head) == (5, HEAD) and not disk
    assert seen == sorted(seen) and (not size or seen[-1] == (size, size))
    gave = [donor.bulk.bytes_sent for donor in made.values()]
    assert sum(gave) == size + len(manifest.to_bytes())
    assert size <= 2 * CHUNK_BYTES or min(gave) >= CHUNK_BYTES // 2, "all donors give"


@virtual
async def test_a_donor_that_does_not_answer_delays_a_download_by_seconds_only():
    """It accepts the request, but never lands the commit."""
    network, content = MemoryNetwork(), state(CHUNK_BYTES)
    made = await donors(network, "abcd")
    began = now_s()
    get = asyncio.create_task(joiner(network).get(0, list(made), ignore))
    await asyncio.gather(*(land(made[name], 0, content, after_s=0.1) for name in "abc"))
    assert (await get)[1] == content
    assert LATE_OFFER_S <= now_s() - began < LATE_OFFER_S + 1.0


@virtual
async def test_progress_is_reported_within_a_chunk():
    network, content, seen = MemoryNetwork(), state(CHUNK_BYTES), []
    made = await donors(network, "a")
    get = asyncio.create_task(joiner(network).get(0, ["a"], lambda here, size: seen.append((here, size))))
    await land(made["a"], 0, content, after_s=0.1)
    await get
    assert len({here for here, _ in seen}) >= 10 and {size for _, size in seen} == {CHUNK_BYTES}


@virtual
async def test_a_link_that_all_donors_share_out_is_filled():
    """Three donors of 1 MB/s each, a joiner of 100: near to three times as fast as one."""
    network, content = MemoryNetwork(), state(24 * CHUNK_BYTES // 4)
    network.bytes_s |= {"a": 1e6, "b": 1e6, "c": 1e6, "j": 1e8}
    made = await donors(network, "abc")
    get = asyncio.create_task(joiner(network).get(0, list(made), ignore))
    await asyncio.gather(*(land(donor, 0, content, after_s=0.1) for donor in made.values()))
    began = now_s()
    await get
    assert now_s() - began < len(content) / 3e6 / 0.6, "60 % of what the links can do"


@virtual
async def test_a_donor_that_dies_costs_its_open_chunks():
    network, content = MemoryNetwork(), state(8 * CHUNK_BYTES)
    network.bytes_s |= {"a": 4e6, "b": 4e6}
    made, at = await donors(network, "ab"), joiner(network)
    get = asyncio.create_task(at.get(0, list(made), ignore))
    await asyncio.gather(*(land(donor, 0, content, after_s=0.1) for donor in made.values()))
    await asyncio.sleep(4)
    network.kill("a")
    assert (await get)[1] == content
    assert at.bulk.bytes_received <= len(content) + 8 * CHUNK_BYTES + 1000, "chunks that were open, at most eight"


@virtual
async def test_a_broken_off_download_goes_on_where_it_was():
    """Of the chunks on disk, only one that was damaged meanwhile is downloaded again."""
    network, content, disk = MemoryNetwork(), state(6 * CHUNK_BYTES), MemoryDisk()
    network.bytes_s["a"] = 4e6
    made = await donors(network, "a")
    first = asyncio.create_task(joiner(network, disk).get(0, ["a"], ignore))
    await land(made["a"], 0, content, after_s=0.1)
    while len(disk) < 3:
        await asyncio.sleep(0.1)
    first.cancel()
    here, again = len(disk), joiner(network, disk)
    damaged = next(iter(disk))
    disk[damaged] = bytes([disk[damaged][0] ^ 1]) + disk[damaged][1:]
    disk["0" * 64] = b"a chunk of an older state"
    assert (await again.get(0, ["a"], ignore))[1] == content
    chunks = 6 - (here - 1)
    assert chunks * CHUNK_BYTES < again.bulk.bytes_received <= chunks * CHUNK_BYTES + 1000 and not disk


@pytest.mark.long
@virtual
async def test_a_state_may_take_longer_than_a_chunk_and_than_a_copy_that_nobody_asks_for_stays(monkeypatch):
    monkeypatch.setattr("outerloop.swarm.state_transfer.download.CHUNK_S", 60.0)
    monkeypatch.setattr("outerloop.swarm.state_transfer.held_states.STATE_KEPT_S", 60.0)
    network, content = MemoryNetwork(), state(20 * CHUNK_BYTES)
    network.bytes_s["j"] = CHUNK_BYTES / 4
    made = await donors(network, "ab")
    get = asyncio.create_task(joiner(network).get(0, list(made), ignore, at_most=len(content)))
    await asyncio.gather(*(land(donor, 0, content, after_s=0.1) for donor in made.values()))
    assert (await get)[1] == content and now_s() > 75


@virtual
async def test_equal_chunks_come_once_and_are_counted_as_often_as_they_are_there():
    network, seen = MemoryNetwork(), []
    content = bytes(3 * CHUNK_BYTES) + state(CHUNK_BYTES) + bytes(2 * CHUNK_BYTES + 1)
    made, at = await donors(network, "a"), joiner(network)
    get = asyncio.create_task(at.get(0, ["a"], lambda here, size: seen.append(here)))
    await land(made["a"], 0, content, after_s=0.1)
    assert (await get)[1] == content
    assert at.bulk.bytes_received <= 2 * CHUNK_BYTES + 1000 and seen[-1] == len(content)
    assert seen == sorted(set(seen)), "no amount is reported twice"


@virtual
async def test_a_request_for_a_past_state_is_answered_and_the_copy_is_dropped_later():
    network, content = MemoryNetwork(), state(10)
    made = await donors(network, "a")
    await land(made["a"], 7, content)
    with pytest.raises(ContentUnavailable, match="0 of 1 peers offer the same state; more than half are needed"):
        await joiner(network).get(7, ["a"], ignore)
    assert now_s() < 1
    get = asyncio.create_task(joiner(network).get(8, ["a"], ignore))
    await land(made["a"], 8, content, after_s=1)
    assert (await get)[1] == content
    assert (await joiner(network, name="k").get(8, ["a"], ignore))[1] == content, "a second joiner has it at once"
    await asyncio.sleep(STATE_KEPT_S + 1)
    with pytest.raises(ContentUnavailable):
        await joiner(network).get(8, ["a"], ignore)


@virtual
async def test_a_state_that_is_held_already_is_named_at_once():
    """It may be of no commit that is ever landed: the state that a run begins with."""
    network, content = MemoryNetwork(delay_s=(0.001, 0.01)), state(CHUNK_BYTES)
    made = await donors(network, "ab")
    for donor in made.values():
        donor.hold(content, Manifest.of(content, number=MAX_NUMBER, head=bytes(32)))
    began_s = now_s()
    assert (await joiner(network).get(MAX_NUMBER, list(made), ignore))[1] == content
    assert now_s() - began_s < POLL_S and not made["a"].wants(MAX_NUMBER)


@virtual
async def test_the_state_of_most_donors_is_taken():
    network = MemoryNetwork()
    made = await donors(network, "abc")
    get = asyncio.create_task(joiner(network).get(0, list(made), ignore))
    for name, seed in zip("abc", (1, 2, 2), strict=True):
        await land(made[name], 0, state(100, seed), after_s=0.1)
    assert (await get)[1] == state(100, 2) and not made["a"].bulk.bytes_sent


@virtual
async def test_strangers_get_nothing_and_too_much_is_refused_before_it_comes():
    network, content = MemoryNetwork(), state(3 * CHUNK_BYTES)
    made = await donors(network, "a")
    for who, at_most in (("stranger", MOST), ("j", 2 * CHUNK_BYTES)):
        get = asyncio.create_task(joiner(network, name=who).get(0, ["a"], ignore, at_most=at_most))
        await asyncio.sleep(0.1)
        if who == "j":
            await land(made["a"], 0, content)
        with pytest.raises(ContentUnavailable):
            await get
    assert made["a"].bulk.bytes_sent < 1000


@pytest.mark.parametrize(
    "broken",
    [
        b"",
        b"\xc1",
        b"\x90",
        Manifest(0, HEAD, 5, ()).to_bytes(),
        Manifest(0, b"short", 0, ()).to_bytes(),
        Manifest(0, HEAD, CHUNK_BYTES + 1, (HEAD, HEAD)).to_bytes(),
    ],
    ids=["empty", "no msgpack", "no fields", "no chunks", "no head", "one name for two lengths"],
)
def test_a_manifest_that_is_none_is_refused(broken):
    with pytest.raises(MalformedMessage):
        Manifest.from_bytes(broken)


def test_a_manifest_comes_back():
    manifest = Manifest.of(state(2 * CHUNK_BYTES + 1), number=3, head=HEAD)
    assert Manifest.from_bytes(manifest.to_bytes()) == manifest and len(manifest.chunks) == 3
    assert list(map(len, cut(state(manifest.size_bytes)))) == [CHUNK_BYTES, CHUNK_BYTES, 1]


async def demand(network, who, donor, number, *, for_s=0.5):
    """Ask a donor for a state, and hang up after a while."""
    with contextlib.suppress(BrokenStream, TimeoutError):
        async with asyncio.timeout(for_s), MemoryTransport(network, who).open_stream(donor, protocol_of("r")) as stream:
            await stream.send_object({"number": number})
            await stream.receive_object(patience_s=for_s)


async def land_all(made, number):
    """Every donor lands a commit; the letters of those that have copied their state for it."""
    copied = "".join(name for name, donor in made.items() if donor.wants(number))
    await asyncio.gather(*(land(donor, number, b"state %d" % number) for donor in made.values()))
    return copied


@virtual
async def test_only_states_of_the_next_two_commits_are_wanted():
    network = MemoryNetwork()
    [donor] = (await donors(network, "a")).values()
    for number in (3000, FURTHEST_AHEAD + 8, MAX_NUMBER, (1 << 64) - 1, 7, 0, -1):
        await land(donor, 7, b"")
        await demand(network, "l", "a", number)
        assert not donor.wants(number)
    for number in (8, 9):
        await demand(network, "l", "a", number)
        assert donor.wants(number)
    assert not donor.wants(8), "one demand a peer, the last one"
    with pytest.raises(ContentUnavailable):
        await joiner(network).get(3000, ["a"], ignore)
    assert now_s() >= POLL_S, "it waits and is told to ask again"


@virtual
async def test_a_demand_that_is_too_early_is_wanted_once_its_commit_is_near():
    network = MemoryNetwork()
    made = await donors(network, "ab")
    get = asyncio.create_task(joiner(network).get(7, list(made), ignore))
    for number in range(8):
        await asyncio.sleep(1)
        assert made["a"].wants(7) == (number >= 7 - FURTHEST_AHEAD + 1)
        await land_all(made, number)
    assert (await get)[1] == b"state 7"


@pytest.mark.parametrize("liars", ["l", "lmno"])
@virtual
async def test_however_many_ask_for_all_states_few_are_copied(liars):
    network, copies = MemoryNetwork(), []
    made = await donors(network, "a")
    for number in range(60):
        asked = [demand(network, who, "a", number + i % FURTHEST_AHEAD) for i, who in enumerate(liars)]
        await asyncio.gather(*asked, *(demand(network, who, "a", number) for who in liars))
        copies += [number] * len(await land_all(made, number))
    windows = [sum(first <= number < first + COPY_EVERY for number in copies) for first in range(60)]
    assert len(copies) >= 60 // COPY_EVERY and max(windows) <= 2
    assert all(number % COPY_EVERY == 0 or number - before >= COPY_EVERY for before, number in pairwise(copies))


@virtual
async def test_a_liar_that_makes_each_donor_copy_at_another_commit_cannot_keep_a_newcomer_out():
    network = MemoryNetwork()
    made = await donors(network, "abc")
    together = []
    for number in range(30):
        await asyncio.gather(*(demand(network, f"l{i}", d, number) for i, d in enumerate(made) if number % 3 == i))
        await asyncio.gather(*(demand(network, "j", d, next_common(number)) for d in made))
        if await land_all(made, number) == "abc":
            together.append(number)
    assert together and {number % COPY_EVERY for number in together} == {0}
    assert together == list(range(0, 30, COPY_EVERY))


@pytest.mark.parametrize("held_by_the_liar", [False, True])
@virtual
async def test_a_liar_that_demands_every_state_takes_none_from_a_joiner(monkeypatch, held_by_the_liar):
    """It asks for the next state all the time, and for the first one that it has got."""
    monkeypatch.setattr("outerloop.swarm.state_transfer.manifest.CHUNK_BYTES", 1 << 16)
    network = MemoryNetwork()
    network.bytes_s["j"] = 1 << 16
    made = await donors(network, "ab")
    first = COPY_EVERY if held_by_the_liar else 0
    for number in range(24):
        if number == first:
            get = asyncio.create_task(joiner(network).get(first, list(made), ignore))
        await asyncio.gather(*(demand(network, "l", donor, next_common(number), for_s=0.1) for donor in made))
        await asyncio.gather(*(demand(network, "l", donor, 0, for_s=0.1) for donor in made if number))
        await asyncio.gather(*(land(donor, number, state(20 << 16, number)) for donor in made.values()))
        await asyncio.gather(*(demand(network, "l", donor, 0, for_s=0.8) for donor in made))
        assert all(sum(map(donor.holds, range(24))) <= 2 for donor in made.values())
    assert (await get)[1] == state(20 << 16, first) and now_s() > 20
    assert all(donor.holds(20) for donor in made.values()), "it was copied at each multiple"


@virtual
async def test_a_copy_that_two_peers_download_stays_until_both_have_asked_for_a_later_one():
    network = MemoryNetwork()
    (donor,) = (await donors(network, "a")).values()
    for number, who in ((0, "jk"), (4, "l"), (8, "j"), (12, "k"), (16, "")):
        assert donor.holds(0) == (number in (4, 8, 12)), number
        donor.landed(number - 1, copied=False)
        for peer in who:
            await demand(network, peer, "a", number)
        donor.landed(number, copied=True)
        donor.hold(state(10, number), Manifest.of(state(10, number), number=number, head=HEAD))
    assert donor.holds(8) and donor.holds(16) and not donor.holds(4) and not donor.holds(12)


@virtual
async def test_a_state_that_is_being_hashed_is_awaited_while_another_one_is_served_or_hashed():
    network = MemoryNetwork()
    (donor,) = (await donors(network, "a")).values()
    donor.landed(6, copied=False)
    gets = [asyncio.create_task(joiner(network, name=f"j{n}").get(n, ["a"], ignore)) for n in (7, 8)]
    for number in (7, 8):
        await asyncio.sleep(1)
        assert donor.wants(number)
        donor.landed(number, copied=True)
    for number in (7, 8):
        await asyncio.sleep(1)
        donor.hold(state(10, number), Manifest.of(state(10, number), number=number, head=HEAD))
    assert [content for _, content in await asyncio.gather(*gets)] == [state(10, 7), state(10, 8)]


@virtual
async def test_a_manifest_is_signed_for_the_session():
    network = MemoryNetwork()
    made = await donors(network, "a")
    made["a"].hold(b"state", Manifest.of(b"state", number=3, head=HEAD))
    link = MemoryTransport(network, "j")
    at = Download(link, run="r", session=lambda: "r/2", disk=MemoryDisk())
    with pytest.raises(ContentUnavailable):
        await at.get(3, ["a"], ignore, at_most=MOST)
    assert link.trust.rejections.of_kind["manifests"] == 1
    assert (await joiner(network).get(3, ["a"], ignore))[1] == b"state"


@virtual
async def test_a_state_as_of_another_commit_than_the_requested_one_is_refused():
    network, content = MemoryNetwork(), state(100)
    made = await donors(network, "a")
    given = Manifest.of(content, number=6, head=HEAD)

    class AsOfCommit5(Manifest):
        def to_bytes(self):
            return given.to_bytes()

    made["a"].hold(content, AsOfCommit5(5, HEAD, given.size_bytes, given.chunks))
    with pytest.raises(ContentUnavailable, match="too large or for another commit: 100 bytes, commit 6"):
        await joiner(network).get(5, ["a"], ignore)


@pytest.mark.parametrize(("named", "taken"), [("112", 1), ("12", None), ("1--", None), ("11--", None), ("111--", 1)])
@virtual
async def test_without_a_certificate_more_than_half_of_all_donors_have_to_name_a_state(named, taken):
    """What each donor names; who gives nothing counts as well."""
    network = MemoryNetwork()
    made = await donors(network, "abcdef"[: len(named)])
    for donor, seed in zip(made.values(), named, strict=True):
        donor.landed(3, copied=False)
        if seed != "-":
            donor.hold(state(100, int(seed)), Manifest.of(state(100, int(seed)), number=3, head=HEAD))
    get = joiner(network).get(3, list(made), ignore)
    if taken is None:
        with pytest.raises(ContentUnavailable, match="offer the same state; more than half are needed"):
            await get
    else:
        assert (await get)[1] == state(100, taken)


@virtual
async def test_the_certified_state_is_taken_however_few_name_it():
    network = MemoryNetwork()
    made = await donors(network, "abc")
    manifests = {seed: Manifest.of(state(100, seed), number=3, head=HEAD) for seed in (1, 2)}
    for donor, seed in zip(made.values(), (1, 2), strict=False):
        donor.hold(state(100, seed), manifests[seed])
    made["c"].landed(3, copied=False)

    async def certified():
        await asyncio.sleep(100)
        return manifests[2].sha

    manifest, came = await joiner(network).get(3, list(made), ignore, certified=certified)
    assert came == state(100, 2) and manifest.sha == manifests[2].sha and now_s() > 100
