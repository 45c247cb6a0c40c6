"""Payloads on disk: found again after a crash, damaged ones not, and gone when their time is over."""

import asyncio
import mmap
from pathlib import Path

from outerloop.swarm.commits import Participant
from outerloop.swarm.disk import Folder
from outerloop.swarm.store import Store


def test_what_is_held_is_found_again_after_a_crash(tmp_path: Path) -> None:
    store = Store(Folder(tmp_path / "rounds"))
    ours, theirs, empty = (Participant.of(peer, blob) for peer, blob in [("a", b"ours"), ("b", b"theirs"), ("c", b"")])
    for number, one, blob in [(3, ours, b"ours"), (3, theirs, b"theirs"), (4, ours, b"ours"), (4, empty, b"")]:
        asyncio.run(store.put(number, one, blob))
    (tmp_path / "rounds" / ".half").write_bytes(b"written when the power went")
    for found in (store, Store(Folder(tmp_path / "rounds"))):
        assert found.since(3) == [(3, ours), (3, theirs), *found.since(4)] and found.since(4) == [(4, ours), (4, empty)]
        assert bytes(found.read(3, theirs)) == b"theirs" and bytes(found.read(4, empty)) == b""
        assert bytes(found.get(theirs.digest) or b"") == b"theirs" and found.get(bytes(32)) is None
    store.forget_before(4)
    assert (3, theirs) not in store and store.get(theirs.digest) is None and bytes(store.read(4, ours)) == b"ours"
    store.clear()
    assert Store(Folder(tmp_path / "rounds")).since(0) == []


def test_a_damaged_payload_is_not_held(tmp_path: Path) -> None:
    store, one = Store(Folder(tmp_path)), Participant.of("a", b"content")
    asyncio.run(store.put(3, one, b"content"))
    [file] = tmp_path.iterdir()
    file.write_bytes(b"contemt")
    assert (3, one) not in Store(Folder(tmp_path)) and not any(tmp_path.iterdir())


def test_what_is_being_given_away_outlives_its_time(tmp_path: Path) -> None:
    store, one = Store(Folder(tmp_path)), Participant.of("a", b"content")
    asyncio.run(store.put(3, one, b"content"))
    content = store.get(one.digest)
    store.forget_before(9)
    assert isinstance(content, mmap.mmap) and bytes(content) == b"content"
