"""States are kept by their hashes until their round expires, and a full disk leaves nothing behind."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from outerloop.swarm.audit.desk import AuditDesk, Record
from outerloop.swarm.audit.leaves import NO_ROOT, Leaf, root_of
from outerloop.swarm.audit.states import StateStore

LEAF = Leaf(b"a" * 32, b"b" * 32, b"c" * 32)


def held(store: StateStore, part: bytes) -> bool:
    content = store.get(hashlib.sha256(part).digest())
    return content is not None and bytes(content) == part


def test_a_part_is_kept_as_long_as_a_round_needs_it(tmp_path: Path) -> None:
    store = StateStore(tmp_path / "states")
    store.put(1, [b"weights", b"same"])
    store.put(2, [b"others", b"same"])
    assert held(store, b"weights") and held(store, b"others") and held(store, b"same")
    store.forget_before(2)
    assert not held(store, b"weights") and held(store, b"others") and held(store, b"same")
    store.forget_before(3)
    assert list((tmp_path / "states").iterdir()) == [] and not held(store, b"same")


def test_a_new_process_keeps_nothing_of_an_earlier_one(tmp_path: Path) -> None:
    StateStore(tmp_path).put(1, [b"weights"])
    assert not held(StateStore(tmp_path), b"weights")


def test_a_failed_write_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = StateStore(tmp_path)

    def fail(self: Path, content: bytes) -> None:
        self.touch()
        raise OSError(28, "no space left on device")

    with monkeypatch.context() as full:
        full.setattr(Path, "write_bytes", fail)
        with pytest.raises(OSError, match="no space"):
            store.put(1, [b"weights"])
    assert list(tmp_path.iterdir()) == []
    store.put(2, [b"weights"])
    assert held(store, b"weights"), "it is written once there is space"


def test_the_desk_serves_the_states_of_three_rounds_and_the_leaves_of_four(tmp_path: Path) -> None:
    desk = AuditDesk(StateStore(tmp_path), every=5)
    desk.machine = b"m" * 32
    assert desk.state_bytes == ()
    for number in range(5):
        desk.store.put(number, [b"%d" % number])
        desk.set_record(Record(number, (LEAF, LEAF), ((number, 6 - number, 1), (0, 0, 2))))
    assert [number for number in range(5) if desk.record(number)] == [1, 2, 3, 4]
    assert [number for number in range(5) if held(desk.store, b"%d" % number)] == [2, 3, 4]
    assert desk.header(3).root == root_of(3, [LEAF, LEAF]) and desk.header(3).leaves == 2
    assert (desk.header(9).root, desk.header(9).leaves, desk.header(9).machine) == (NO_ROOT, 0, b"m" * 32)
    assert desk.state_bytes == (4, 5, 2) and desk.take() is None
