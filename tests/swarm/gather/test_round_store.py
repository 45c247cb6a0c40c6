"""Payloads on disk: found again after a crash, damaged ones not, and gone when their time is over."""

import asyncio
import mmap
from pathlib import Path

from outerloop.swarm.consensus.commit import Participant
from outerloop.swarm.gather.round_store import RoundStore
from outerloop.swarm.storage import Folder
from outerloop.swarm.transfer.signed_payload import strip_signatures
from outerloop.swarm.validation import SIGNATURE_BYTES
from tests.support.swarm.gather_scene import MemoryDisk
from tests.support.swarm.virtual_clock import virtual


def test_stored_payloads_are_found_again_after_a_crash(tmp_path: Path) -> None:
    store = RoundStore(Folder(tmp_path / "rounds"))
    ours, theirs, empty = (Participant.of(peer, blob) for peer, blob in [("a", b"ours"), ("b", b"theirs"), ("c", b"")])
    for number, one, blob in [(3, ours, b"ours"), (3, theirs, b"theirs"), (4, ours, b"ours"), (4, empty, b"")]:
        asyncio.run(store.put(number, one, blob))
    (tmp_path / "rounds" / ".half").write_bytes(b"written when the power went")
    for found in (store, RoundStore(Folder(tmp_path / "rounds"))):
        assert found.since(3) == [(3, ours), (3, theirs), *found.since(4)] and found.since(4) == [(4, ours), (4, empty)]
        assert bytes(found.take(3, theirs)) == b"theirs" and bytes(found.take(4, empty)) == b""
        assert bytes(found.get(theirs.digest) or b"") == b"theirs" and found.get(bytes(32)) is None
    store.forget_before(4)
    assert (3, theirs) not in store and store.get(theirs.digest) is None and bytes(store.take(4, ours)) == b"ours"
    store.clear()
    assert RoundStore(Folder(tmp_path / "rounds")).since(0) == []


def test_a_damaged_payload_is_not_held(tmp_path: Path) -> None:
    store, one = RoundStore(Folder(tmp_path)), Participant.of("a", b"content")
    asyncio.run(store.put(3, one, b"content"))
    [file] = tmp_path.iterdir()
    file.write_bytes(b"contemt")
    for damaged in (RoundStore(Folder(tmp_path)), RoundStore(Folder(tmp_path))):
        assert (3, one) not in damaged and damaged.since(0) == [] and damaged.get(one.digest) is None
        assert damaged.has_signed("a", 3) and not damaged.has_signed("a", 2) and not damaged.has_signed("b", 3)
    damaged.forget_before(3)
    asyncio.run(damaged.put(3, one, b"content"))
    assert bytes(damaged.take(3, one)) == b"content" and (3, one) in RoundStore(Folder(tmp_path))
    file.write_bytes(b"contemt")
    for end in (lambda found: found.forget_before(4), lambda found: found.clear()):
        found = RoundStore(Folder(tmp_path))
        end(found)
        assert not found.has_signed("a", 3) and not any(tmp_path.iterdir())
        file.write_bytes(b"contemt")


def test_a_payload_that_is_being_uploaded_outlives_its_time(tmp_path: Path) -> None:
    store, one = RoundStore(Folder(tmp_path)), Participant.of("a", b"content")
    asyncio.run(store.put(3, one, b"content"))
    content = store.get(one.digest)
    store.forget_before(9)
    assert isinstance(content, mmap.mmap) and bytes(content) == b"content"


def test_the_newest_round_lies_in_memory_until_it_is_landed(tmp_path: Path) -> None:
    store, contents = RoundStore(Folder(tmp_path)), [b"old", b"new", b"late"]
    old, new, late = (Participant.of("a", content) for content in contents)
    for number, one, content in zip((3, 4, 3), (old, new, late), contents, strict=True):
        asyncio.run(store.put(number, one, content))
    assert [type(store.take(*key)) for key in ((3, old), (3, late))] == [mmap.mmap] * 2
    assert store.take(4, new) is contents[1] and bytes(store.take(4, new)) == b"new", "given away, and still on disk"


def test_the_landed_bytes_are_the_received_ones_or_a_copy(tmp_path: Path) -> None:
    content, file = bytes(SIGNATURE_BYTES) + b"payload", tmp_path / "content"
    file.write_bytes(content)
    mapped = Folder(tmp_path).read(file.name)
    (_, view), (_, copied) = asyncio.run(strip_signatures([("a", content), ("b", mapped)]))
    file.write_bytes(bytes(len(content)))
    assert view == copied == b"payload" and type(copied) is bytes
    assert isinstance(view, memoryview) and view.readonly and view.obj is content


class Threaded(MemoryDisk):
    """Writes as in a thread: a write that is cancelled while it runs has written the file all the same."""

    async def write(self, name: str, content: bytes) -> None:
        self[name] = bytes(content)
        await asyncio.sleep(1)


async def cancelled_put(store: RoundStore) -> Participant:
    """Begin to store a payload of round 3, and cancel that while it is written. Return its participant."""
    one = Participant.of("a", b"content")
    writing = asyncio.create_task(store.put(3, one, b"content"))
    await asyncio.sleep(0.5)
    writing.cancel()
    await asyncio.wait([writing])
    assert writing.cancelled() and (3, one) not in store
    return one


@virtual
async def test_a_payload_whose_download_is_dropped_while_it_is_written_is_removed_with_its_round() -> None:
    disk = Threaded()
    store = RoundStore(disk)
    one = await cancelled_put(store)
    await asyncio.sleep(1)
    assert (3, one) in store
    store.forget_before(4)
    assert not disk


@virtual
async def test_a_payload_that_is_being_written_is_not_written_a_second_time_meanwhile() -> None:
    disk = Threaded()
    store = RoundStore(disk)
    one = await cancelled_put(store)
    disk.write = None  # type: ignore[method-assign, assignment]
    await store.put(3, one, b"content")
    assert (3, one) in store
