"""Real daemons on loopback: peers meet, gather, fail and leave."""

import asyncio
import shutil
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hivemind.p2p import P2P, PeerID
from hivemind.utils.multiaddr import Multiaddr

from outerloop.exchange.swarm_gather import SwarmGather
from outerloop.swarm.access.identity import ensure_identity
from outerloop.swarm.access.signatures import Signatures
from outerloop.swarm.consensus.commit import genesis
from outerloop.swarm.membership.run_settings import RunSettings
from outerloop.swarm.p2p.daemon import DaemonOptions
from outerloop.swarm.p2p.framing import BrokenStream
from outerloop.swarm.p2p.node import Node
from outerloop.swarm.p2p.stream_gate import TURNED_AWAY
from outerloop.swarm.validation import SIGNATURE_BYTES
from outerloop.types import Contribution, QuorumLost, Round, StateTransferRequired, UserError
from tests.support.swarm.loopback import Make, daemon_of, eventually, runs, together

NOBODY = "12D3KooWK99VoVxNE7XzyBwXEzW7xhK7Gpv85r9F3V3fyKSUKPH5"
WORKER = """
import sys, time
from outerloop.exchange.swarm_gather import SwarmGather
peer = SwarmGather(run="r", peers=1, identity_path=sys.argv[1])
print("ready", flush=True)
time.sleep(600)
"""


def test_three_peers_gather_and_leave_nothing_behind(make: Make, tmp_path: Path) -> None:
    threads_before = set(threading.enumerate())
    peers = [make(peers=3, grace_s=30.0) for _ in range(3)]  # nobody is left out, however slow this machine is
    daemons = [daemon_of(tmp_path / f"identity{index}") for index in range(3)]
    assert all(len(list(daemon.folder.glob("*.sock"))) == 2 for daemon in daemons), "all of its sockets"
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
    once = 600_000 + 6 * SIGNATURE_BYTES  # a transfer that stalls is asked for again, which counts as well
    assert all(peer.bytes_received >= once for peer in peers)
    assert sum(peer.bytes_sent for peer in peers) >= 3 * once  # some of a slow peer's copies come from another one
    assert all(peer.transfer_s > 0 for peer in peers)
    assert together(peers, SwarmGather.close) == [None] * 3
    assert not any(runs(daemon.pid) or daemon.folder.exists() for daemon in daemons)
    assert set(threading.enumerate()) <= threads_before
    peers[0].close()


def test_a_launch_waits_for_nothing(make: Make) -> None:
    """However long the network thread is busy with something else."""
    peer, busy = make(peers=1), threading.Event()
    peer.join()

    async def block() -> None:
        busy.wait(20)

    blocked = peer.node.spawn(block())
    assert not peer.decided(Round(0))
    pending = peer.start(b"x", Round(0))
    assert not blocked.done()
    busy.set()
    assert [c.blob for c in pending.wait(30)] == [b"x"]


def test_a_round_goes_on_without_a_late_member_which_lands_it_as_well(make: Make) -> None:
    trio = [make(peers=3, grace_s=0.3) for _ in range(3)]
    together(trio, SwarmGather.join)
    *early, late = trio
    landed = [one.start(one.peer.encode(), Round(0)) for one in early]
    assert [c.peer for c in landed[0].wait(30)] == [one.peer for one in early]
    assert landed[0].wait(30) == landed[1].wait(30)
    assert eventually(lambda: late.decided(Round(0)), limit_s=20) and not late.decided(Round(1))
    assert late.start(b"", Round(0)).wait(30) == landed[0].wait(30)
    for number in range(1, 11):  # on a busy machine one of them may miss the grace once more
        again = together(trio, lambda one, number=number: one.start(one.peer.encode(), Round(number)).wait(30))
        assert again[0] == again[1] == again[2]
        if len(again[0]) == 3:
            break
    assert [c.peer for c in again[0]] == [one.peer for one in trio]


def test_a_minority_is_told_what_it_waits_for_and_gives_up_in_the_end(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outerloop.exchange.swarm_waiting.TELL_S", 0.5)
    said: list[str] = []
    one, two = make(peers=2, on_status=said.append), make(peers=2)
    together([one, two], SwarmGather.join)
    two.abort()
    pending = one.start(b"alone", Round(0))
    said.clear()
    with pytest.raises(QuorumLost, match=f"no round was decided for 2 s; round 1.*{two.peer}"):
        pending.wait(2)
    assert len(said) == 2 and said[0].startswith("waiting: round 1")
    with pytest.raises(UserError, match="max_blob_bytes="):
        make(peers=2, max_blob_bytes=3).start(b"1234", Round(0))


def test_a_peer_that_returns_is_in_the_same_session(make: Make, tmp_path: Path) -> None:
    trio = [make(peers=3, grace_s=0.2) for _ in range(3)]
    together(trio, SwarmGather.join)
    first = together(trio, lambda one: one.start(one.peer.encode(), Round(0)).wait(30))[0]
    assert eventually(lambda: all(one.decided(Round(0)) for one in trio), limit_s=20)
    trio[2].abort()
    for number in (1, 2, 3):
        pair = [one.start(b"y%d" % number, Round(number)) for one in trio[:2]]
        assert len(pair[0].wait(30)) == 2 and pair[0].wait(30) == pair[1].wait(30)
    back = make(peers=3, worker=2, identity_path=str(tmp_path / "identity2"))
    back.join(Round(1))
    assert back.late_joiner and back.rank == 2 and not trio[0].late_joiner and not back.shares_rank
    assert eventually(lambda: back.decided(Round(3)), limit_s=20)
    assert back.start(b"", Round(3)).wait(30) == pair[0].wait(30) and back.start(b"", Round(0)).wait(30) == first


def test_all_peers_land_the_same_chain_of_commits(make: Make, tmp_path: Path) -> None:
    """However far the others are ahead of the one that lands. Each commit contains the hash of the one before it.

    The second peer lands no round until all are decided. Neither decides more than a round ahead of the other: each
    could decide alone, and keeps eight rounds for the other.
    """
    pair = [make(peers=2, min_peers=1, quorum="min_peers", grace_s=0.0) for _ in range(2)]
    together(pair, SwarmGather.join)
    rounds = [Round(number) for number in range(11)]
    start = genesis(pair[0].members.session, [one.peer for one in pair]).digest
    assert [one.first_commit for one in pair] == [start] * 2 and [one.landed_commit for one in pair] == [b""] * 2
    chains: list[list[bytes]] = [[], []]
    late = []
    for round in rounds:
        late.append(pair[1].start(b"", round))
        pair[0].start(b"x", round).wait(30)
        pair[0].landed(round, bytes)
        chains[0].append(pair[0].landed_commit)
        assert eventually(late[-1].arrived, limit_s=30)
    for round, pending in zip(rounds, late, strict=True):
        pending.wait(30)
        pair[1].landed(round, bytes)
        chains[1].append(pair[1].landed_commit)
    assert chains[0] == chains[1] and len({start, *chains[0]}) == 12 and {len(one) for one in chains[0]} == {32}
    pair[1].abort()
    back = make(peers=2, worker=1, identity_path=str(tmp_path / "identity1"))
    back.join(Round(10))
    assert back.late_joiner and (back.first_commit, back.landed_commit) == (chains[0][9], b"")


def test_a_late_joiner_gives_up_when_all_others_have_left(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outerloop.exchange.swarm_waiting.TELL_S", 0.5)
    monkeypatch.setattr("outerloop.exchange.swarm_gather.DONATE_S", 0.0)
    trio, said = [make(peers=3, grace_s=0.2) for _ in range(3)], list[str]()
    together(trio, SwarmGather.join)
    together(trio, lambda one: one.start(b"x", Round(0)).wait(30))
    newcomer = make(peers=3, patience_s=2.0, on_status=said.append)
    newcomer.join()
    together(trio, SwarmGather.abort)
    with pytest.raises(StateTransferRequired) as far:
        newcomer.decided(Round(0))
    with pytest.raises(
        QuorumLost, match=r"no peer has sent anything about the run for . s: the others may have finished"
    ):
        far.value.state(1 << 20)
    waiting = [line for line in said if line.startswith("waiting: no peer has sent anything about the run")]
    assert 1 <= len(waiting) <= 3


def test_a_newcomer_takes_over_the_state_and_is_counted_on(make: Make) -> None:
    trio, wanted = [make(peers=3, grace_s=30.0) for _ in range(3)], []
    together(trio, SwarmGather.join)
    together(trio, lambda one: one.start(b"x", Round(0)).wait(30))
    newcomer = make(peers=3, grace_s=30.0)
    newcomer.join()
    assert newcomer.late_joiner and newcomer.size == 3 and newcomer.rank in range(3) and newcomer.shares_rank
    with pytest.raises(StateTransferRequired) as far:
        newcomer.decided(Round(0))
    with ThreadPoolExecutor(1) as thread:
        taking = thread.submit(far.value.state, 1 << 20)
        assert eventually(lambda: all(one.state_transfer.wants(1) for one in trio), limit_s=20)
        for number in (1, 2):
            together(trio, lambda one, number=number: one.start(b"%d" % number, Round(number)).wait(30))
            for one in trio:
                one.landed(Round(number), lambda number=number: wanted.append(number) or b"state %d" % number)
            if number == 1:
                commits = {one.landed_commit for one in trio}
        assert taking.result(60) == (Round(1), b"state 1") and wanted == [1, 1, 1]
    assert {newcomer.landed_commit} == commits and newcomer.first_commit == b"" != trio[0].first_commit
    assert eventually(lambda: newcomer.decided(Round(2)), limit_s=20)
    assert [c.blob for c in newcomer.start(b"", Round(2)).wait(30)] == [b"2"] * 3
    for number in range(3, 13):
        all_four = together([*trio, newcomer], lambda one, number=number: one.start(b"y", Round(number)).wait(60))
        if len(all_four[0]) == 4:
            break
    assert all(landed == all_four[0] for landed in all_four) and newcomer.peer in {c.peer for c in all_four[0]}


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        (
            {"quorum": "most"},
            r"exchange.quorum=most must be one of majority, all, min_peers: set exchange.quorum=majority",
        ),
        ({"min_peers": 3}, r"exchange.min_peers=3 must be 1 .. peers=2: set exchange.min_peers=2"),
        ({"min_fraction": 2.0}, r"min_fraction=2.0 must be 0 .. 1: set exchange.min_fraction=0.5"),
        ({"min_fraction": 0.5, "quorum": "all"}, r"has no effect with quorum=all"),
        ({"grace_s": -1.0}, r"grace_s=-1.0 must be 0 or more"),
        (
            {"grace_s": 5.0, "deadline_s": 2.0},
            r"deadline_s=2.0 must be at least grace_s=5: set .*=5.0",
        ),
        ({"absent_rounds": 9}, r"absent_rounds=9 must be 1 .. 8"),
    ],
)
def test_rules_that_cannot_be_are_told_in_one_line(make: Make, rules: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=said):
        make(peers=2, **rules)


def test_a_stranger_may_not_pull(make: Make, tmp_path: Path) -> None:
    one = make(peers=1)
    one.join()
    one.start(b"secret", Round(0)).wait(30)
    stranger = Node(
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
            await stream.send_object({"number": 0, "after": -1})
            await stream.receive_object()

    try:
        for protocol in ("payload", "bulk", "ballot", "commits", "meeting"):
            with pytest.raises(BrokenStream):
                stranger.call(ask(f"outerloop/1/r/{protocol}"), timeout_s=30)
        stranger.call(ask("outerloop/1/r/members"), timeout_s=30)
    finally:
        stranger.close()


def test_an_unlisted_peer_is_refused_by_name_and_told_which_option_to_set(make: Make, tmp_path: Path) -> None:
    ids = [Signatures.of(ensure_identity(tmp_path / f"identity{index}")).peer_id for index in range(3)]
    listed = [make(peers=2, allow=ids[:2]), make(peers=2, allow=ids[:2])]
    with pytest.raises(UserError, match=f"rejects this peer, which is not in their exchange.allow: add {ids[2]} "):
        make(peers=2, worker=2, allow=ids, identity_path=str(tmp_path / "identity2"))
    assert together(listed, lambda peer: peer.join()) == [None, None]
    landed = together(listed, lambda peer: peer.start(b"x", Round(0)).wait(30))
    assert [[one.peer for one in contributions] for contributions in landed] == [sorted(one.peer for one in listed)] * 2
    assert listed[0].counters()["refused_outsiders"] > 0
    with pytest.raises(UserError, match=r"exchange.allow=.* is not a list: set exchange.allow=\["):
        make(peers=2, allow=ids[0])
    with pytest.raises(UserError, match="outerloop doctor --run-dir"):
        make(peers=2, allow=["me"])


def test_streams_of_a_stranger_that_are_held_keep_nobody_from_leaving(make: Make, tmp_path: Path) -> None:
    one = make(peers=1, allow=[Signatures.of(ensure_identity(tmp_path / "identity0")).peer_id])
    victim = PeerID.from_base58(one.peer.partition("-")[2])
    daemon, threads_before = daemon_of(tmp_path / "identity0").pid, threading.active_count()

    async def scene() -> None:
        stranger = await P2P.create(
            initial_peers=[Multiaddr(address) for address in one.address],
            dht_mode="client",
            auto_nat=False,
            nat_port_map=False,
            use_relay=False,
        )
        try:
            streams = [
                await stranger.call_binary_stream_handler(victim, "outerloop/1/probe")
                for _ in range(2 * int(TURNED_AWAY.burst))
            ]
            assert await streams[0][1].read(1), "the first streams are sent a refusal"
            await asyncio.to_thread(one.close)
        finally:
            await stranger.shutdown()

    asyncio.run(scene())
    assert not runs(daemon) and threading.active_count() < threads_before


def test_other_runs_do_not_meet(make: Make) -> None:
    pair = [make(run="r", peers=2, join_timeout_s=1.5), make(run="other", peers=2, join_timeout_s=1.5)]
    for peer, error in zip(pair, together(pair, SwarmGather.join), strict=True):
        assert isinstance(error, UserError) and f"1 of 2 peers are present ({peer.peer}), 1 missing" in str(error)


def test_other_settings_are_left_out_and_named_and_the_others_form(make: Make) -> None:
    """The first peer waits on; who joined by its address learns at once what to type."""
    said: list[str] = []
    rates = [RunSettings({"inner.lr": rate, "rounds": "5"}) for rate in ("0.002", "0.01")]
    first = make(peers=2, fingerprint="aaa", settings=rates[0], on_status=said.append)
    odd = make(peers=2, fingerprint="bbb", settings=rates[1])
    with ThreadPoolExecutor(1) as pool:
        joined = pool.submit(first.join)
        with pytest.raises(UserError, match=r"inner\.lr is 0\.01 here and 0\.002 at 000-.*: set inner\.lr=0\.002 or"):
            odd.join()
        assert eventually(lambda: bool(said), limit_s=20)
        second = make(peers=2, fingerprint="aaa", settings=rates[0])
        second.join()
        joined.result(30)
    assert said == [f"left out because of different settings: inner.lr is 0.002 here and 0.01 at {odd.peer}"]
    assert first.size == second.size == 2 and odd.peer not in first.members.names.values()
    late = make(peers=2, fingerprint="ccc", settings=RunSettings({"inner.lr": "0.002", "rounds": "9"}))
    with pytest.raises(UserError, match=r"rounds is 9 here and 5 at 000-.*: set rounds=5 or another exchange\.run"):
        late.join()


def test_an_unreachable_initial_peer_is_named(make: Make) -> None:
    address = f"/ip4/127.0.0.1/tcp/1/p2p/{NOBODY}"
    with pytest.raises(UserError, match=f"{address}.*initial_peers="):
        make(peers=2, initial_peers=[address])


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
        assert await asyncio.wait_for(worker.stdout.readline(), 60) == b"ready\n"
        daemon, folder = daemon_of(tmp_path / "identity")
        was_up = runs(daemon)
        worker.kill()
        await worker.wait()
        shutil.rmtree(folder)  # which the next peer would do, a minute later
        return daemon, was_up

    daemon, was_up = asyncio.run(scene())
    assert was_up and eventually(lambda: not runs(daemon), limit_s=2)
