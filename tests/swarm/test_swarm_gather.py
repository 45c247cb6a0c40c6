"""Real daemons on loopback: peers meet, gather, fail and leave."""

import asyncio
import shutil
import sys
import threading
import time
from pathlib import Path

import pytest
from loopback import Make, eventually, runs, together

from outerloop.exchange.swarm_gather import SwarmGather
from outerloop.swarm.daemon import DaemonOptions
from outerloop.swarm.framing import BrokenStream
from outerloop.swarm.identity import ensure_identity
from outerloop.swarm.peer import Peer
from outerloop.types import Contribution, Round, RoundFailed, UserError

NOBODY = "12D3KooWK99VoVxNE7XzyBwXEzW7xhK7Gpv85r9F3V3fyKSUKPH5"
WORKER = """
import sys, time
from outerloop.exchange.swarm_gather import SwarmGather
peer = SwarmGather(run="r", peers=1, identity_path=sys.argv[1])
print(peer._node._daemon.pid, peer._node._folder.path, flush=True)
time.sleep(600)
"""


def test_three_peers_gather_and_leave_nothing_behind(make: Make) -> None:
    threads_before = threading.active_count()
    peers = [make(peers=3) for _ in range(3)]
    daemons = [peer._node._daemon.pid for peer in peers]  # type: ignore[union-attr]
    folders = [peer._node._folder.path for peer in peers]
    assert all(len(list(folder.glob("*.sock"))) == 2 for folder in folders)  # every socket lies in here
    assert together(peers, SwarmGather.join) == [None] * 3
    assert [(peer.rank, peer.size) for peer in peers] == [(0, 3), (1, 3), (2, 3)]
    for number in range(3):
        blobs = [bytes([number, index]) * 50_000 for index in range(3)]
        pending = [peer.start(blob, Round(number)) for peer, blob in zip(peers, blobs, strict=True)]
        landed = [one.wait(30) for one in pending]
        assert landed[0] == landed[1] == landed[2]
        assert landed[0] == [
            Contribution(peer.peer, Round(number), blob) for peer, blob in zip(peers, blobs, strict=True)
        ]
    assert [(peer.bytes_sent, peer.bytes_received) for peer in peers] == [(600_000, 600_000)] * 3
    assert together(peers, SwarmGather.close) == [None] * 3
    assert not any(map(runs, daemons)) and not any(folder.exists() for folder in folders)
    assert threading.active_count() == threads_before
    peers[0].close()


def test_a_missing_member_fails_the_round_and_nothing_else(make: Make) -> None:
    one, two = make(peers=2, deadline_s=1), make(peers=2, deadline_s=1)
    together([one, two], SwarmGather.join)
    with pytest.raises(RoundFailed, match=f"no payload after 1 s from {two.peer}"):
        one.start(b"alone", Round(0)).wait(30)
    with pytest.raises(RoundFailed, match=f"{one.peer} failed it"):
        two.start(b"late", Round(0)).wait(30)
    with pytest.raises(UserError, match="max_blob_bytes="):
        make(peers=2, max_blob_bytes=3).start(b"1234", Round(0))


def test_a_stranger_may_not_pull(make: Make, tmp_path: Path) -> None:
    one = make(peers=1)
    one.join()
    one.start(b"secret", Round(0)).wait(30)
    stranger = Peer(
        DaemonOptions(
            identity_path=ensure_identity(tmp_path / "stranger"),
            host="127.0.0.1",
            port=0,
            announce=(),
            initial_peers=one.address,
            open_internet=False,
        )
    )

    async def ask(protocol: str) -> None:
        async with stranger.open_stream(one.peer.partition("-")[2], protocol) as stream:
            await stream.send_object({"number": 0, "fragment": 0})
            await stream.receive_object()

    try:
        for protocol in ("payload", "bulk", "confirm"):
            with pytest.raises(BrokenStream):
                stranger.call(ask(f"outerloop/1/r/{protocol}"), timeout_s=30)
        stranger.call(ask("outerloop/1/r/members"), timeout_s=30)
    finally:
        stranger.close()


def test_other_runs_do_not_meet(make: Make) -> None:
    pair = [make(run="r", peers=2, join_timeout_s=1.5), make(run="other", peers=2, join_timeout_s=1.5)]
    for peer, error in zip(pair, together(pair, SwarmGather.join), strict=True):
        assert isinstance(error, UserError) and f"1 of 2 peers are there ({peer.peer}), 1 missing" in str(error)


def test_other_settings_are_named(make: Make) -> None:
    pair = [make(peers=2, fingerprint="aaa"), make(peers=2, fingerprint="bbb")]
    for other, error in zip(reversed(pair), together(pair, SwarmGather.join), strict=True):
        assert isinstance(error, UserError) and other.peer in str(error) and "other settings" in str(error)


def test_an_unreachable_initial_peer_is_named_soon(make: Make) -> None:
    address, begun = f"/ip4/127.0.0.1/tcp/1/p2p/{NOBODY}", time.monotonic()
    with pytest.raises(UserError, match=f"{address}.*initial_peers="):
        make(peers=2, initial_peers=[address])
    assert time.monotonic() - begun < 20


@pytest.mark.parametrize("option", [{"initial_peers": ["127.0.0.1:1"]}, {"host": "localhost"}, {"announce": ["x"]}])
def test_addresses_are_checked(make: Make, option: dict[str, object]) -> None:
    with pytest.raises(UserError, match=next(iter(option))):
        make(peers=2, **option)


def test_kill_9_leaves_no_daemon(tmp_path: Path) -> None:
    async def scene() -> tuple[int, bool]:
        worker = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", WORKER, str(tmp_path / "identity")), stdout=asyncio.subprocess.PIPE
        )
        assert worker.stdout is not None
        pid, folder = (await asyncio.wait_for(worker.stdout.readline(), 60)).decode().split()
        daemon = int(pid)
        was_up = runs(daemon)
        worker.kill()
        await worker.wait()
        shutil.rmtree(folder)  # which the next peer would do, a minute later
        return daemon, was_up

    daemon, was_up = asyncio.run(scene())
    assert was_up and eventually(lambda: not runs(daemon), limit_s=2)
