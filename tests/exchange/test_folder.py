"""Peers that exchange messages as files in a folder: rounds, restarts, a lost peer, cleaning up, and a whole run."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from outerloop.config import load
from outerloop.exchange.folder import KEPT, SharedFolder
from outerloop.launcher.train import train
from outerloop.types import Round, RoundFailed, UserError
from tests.support.run_output import summary_of

SMALL = ["model=nano", "workers=2", "eval.sequences=16", "inner.seq_len=32", "inner.batch=4", "threads=1"]
SMALL += ["recipe=sparseloco", "rounds=3", "schedule.sync_every=2"]


def peer(folder, worker, *, peers=2, **options):
    return SharedFolder(folder=str(folder), worker=worker, peers=peers, **{"join_timeout_s": 20.0, **options})


def joined(exchanges):
    """The exchanges, after all of them have joined, each in a thread of its own."""
    with ThreadPoolExecutor(len(exchanges)) as pool:
        list(pool.map(SharedFolder.join, exchanges))
    return exchanges


def test_every_peer_gets_all_messages_in_the_order_of_ranks(tmp_path):
    trio = joined([peer(tmp_path, worker, peers=3) for worker in range(3)])
    blobs = [b"zero", b"", b"two"]
    pending = [one.start(blob, Round(5, 1)) for one, blob in zip(trio, blobs, strict=True)]
    for one, round in zip(trio, pending, strict=True):
        received = round.wait(10.0)
        assert [bytes(c.blob) for c in received] == blobs and [c.round for c in received] == [Round(5, 1)] * 3
        assert [c.peer for c in received] == sorted(other.peer for other in trio)
        assert one.bytes_sent + one.bytes_received == 7 and one.transfer_s > 0
    with ThreadPoolExecutor(3) as pool:
        met = list(pool.map(lambda one: one.all_gather(one.peer.encode(), 1, 10.0), trio))
    assert met[0] == met[1] == met[2] and [bytes(c.blob).decode() for c in met[0]] == [c.peer for c in met[0]]


def test_a_round_has_arrived_once_every_message_is_there(tmp_path):
    first, second = joined([peer(tmp_path, worker) for worker in range(2)])
    pending = first.start(b"a", Round(0))
    assert not pending.arrived()
    second.start(b"b", Round(0))
    assert pending.arrived()


def test_files_are_deleted_after_a_few_rounds(tmp_path):
    pair = joined([peer(tmp_path, worker) for worker in range(2)])
    for number in range(3 * KEPT):
        for pending in [one.start(b"message", Round(number)) for one in pair]:
            pending.wait(10.0)
    assert len(list(tmp_path.rglob("*.round-*"))) == 2 * KEPT


def test_no_message_of_an_earlier_session_is_read(tmp_path):
    """The first peer comes back before the second, whose files of last time are all still there."""
    for life in (b"first", b"second"):
        with ThreadPoolExecutor(1) as pool:
            early = peer(tmp_path, 0)
            joining = pool.submit(early.join)
            late = peer(tmp_path, 1)
            late.join()
            joining.result()
        pending = early.start(life, Round(0))
        assert not pending.arrived()
        late.start(life, Round(0))
        assert {bytes(c.blob) for c in pending.wait(10.0)} == {life}
    assert len(list(tmp_path.rglob("*.round-*"))) == 2, "those of the earlier session are deleted"


def test_after_a_round_without_a_peer_every_later_one_fails_and_nothing_more_is_offered(tmp_path):
    first, second = joined([peer(tmp_path, worker) for worker in range(2)])
    with pytest.raises(RoundFailed, match=rf"no message from {second.peer} within 0.05 s: resume the run on all peers"):
        first.start(b"a", Round(0)).wait(0.05)
    second.start(b"b", Round(0))
    later = first.start(b"a", Round(1))
    other = second.start(b"b", Round(1))
    assert later.arrived() and not other.arrived()
    with pytest.raises(RoundFailed):
        later.wait(10.0)


def test_a_message_over_the_limit_fails_the_round(tmp_path):
    pair = joined([peer(tmp_path, worker, max_blob_bytes=10) for worker in range(2)])
    pending = [one.start(b"x" * 11, Round(0)) for one in pair]
    with pytest.raises(RoundFailed, match="more than 10 bytes"):
        pending[0].wait(10.0)


def test_who_does_not_come_is_named(tmp_path):
    with pytest.raises(UserError, match=r"000001 did not join within 0\.1 s"):
        peer(tmp_path, 0, join_timeout_s=0.1).join()


@pytest.mark.parametrize(
    ("options", "words"),
    [({"run": "../other"}, "exchange.run"), ({"run": ""}, "exchange.run"), ({"first_worker": 2}, "first_worker")],
)
def test_options_that_cannot_be_are_refused(tmp_path, options, words):
    with pytest.raises(UserError, match=words):
        peer(tmp_path, 0, **options)


def test_two_processes_train_to_the_same_bits_as_two_threads(tmp_path):
    command = [sys.executable, "-m", "outerloop", "train", *SMALL, "exchange=folder"]
    command += [f"exchange.folder={tmp_path}/shared", f"run_dir={tmp_path}/run"]
    ended = subprocess.run(command, capture_output=True, text=True, env=os.environ, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    train(load.load([*SMALL, "exchange=inprocess", f"run_dir={tmp_path}/threads"]))
    files, threads = summary_of(tmp_path / "run"), summary_of(tmp_path / "threads")
    assert files["rounds_failed"] == 0 and files["slow_hash"] == threads["slow_hash"]
    assert files["val_loss"] < files["val_loss_initial"]
