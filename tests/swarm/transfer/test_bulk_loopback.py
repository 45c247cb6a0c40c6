"""Bulk transfer between real daemons: one of two holders is killed in the middle of it."""

import os
import signal
from pathlib import Path

import pytest

from outerloop.swarm.transfer.bulk import Bulk
from outerloop.swarm.transfer.content_store import ContentStore
from outerloop.swarm.transfer.sources import ContentUnavailable
from outerloop.swarm.transfer.uploads import RateLimiter
from tests.support.swarm.bulk_scene import some_bytes
from tests.support.swarm.loopback import Make, daemon_of

pytestmark = pytest.mark.long

SIZE = 16_000_000


def test_a_transfer_outlives_a_killed_holder(make: Make, tmp_path: Path) -> None:
    asker, first, second = (make(peers=3).node for _ in range(3))
    content, stores = some_bytes(SIZE), [ContentStore(), ContentStore(), ContentStore()]
    bulks = [
        Bulk(node, store, run="r2", allowed=asker.peer_id.__eq__, limiter=RateLimiter(cap))
        for node, store, cap in zip((asker, first, second), stores, (None, 4e6, None), strict=True)
    ]
    sha, _ = [store.put(content) for store in stores[1:]]
    for node, bulk in zip((first, second), bulks[1:], strict=True):
        node.call(bulk.serve(), timeout_s=10)

    killed: list[int] = []

    def kill_the_first(arrived: int, length: int) -> None:
        if arrived > length // 4 and not killed:
            killed.append(daemon_of(tmp_path / "identity1").pid)
            os.kill(killed[0], signal.SIGKILL)

    holders = [first.peer_id, second.peer_id]
    get = bulks[0].get(sha, SIZE, holders, at_most=SIZE, timeout_s=60, progress=kill_the_first)
    assert asker.call(get, timeout_s=60) == content
    assert bulks[0].bytes_received == SIZE
    assert SIZE // 2 < bulks[2].bytes_sent < SIZE
    with pytest.raises(ContentUnavailable, match=first.peer_id):
        asker.call(bulks[0].get(sha, SIZE, holders[:1], at_most=SIZE, timeout_s=1), timeout_s=30)
