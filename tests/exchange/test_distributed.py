"""The exchange over torch.distributed: processes with gloo, each with a training loop of its own."""

import os
import signal
import time

import pytest
from torch import distributed as dist

import outerloop
from outerloop.types import Round, RoundFailed, UserError
from tests.support import tiny_gpt
from tests.support.process_group import started, together

TEXT = bytes(range(32, 127)) * 40


def exchanged(rank):
    """Two rounds and a meeting, messages of unequal length, one of them empty."""
    exchange = outerloop.Distributed(timeout_s=20.0)
    first = exchange.start(bytes([rank]) * (rank * 1000), Round(0))
    second = exchange.start(b"x" * (3 - rank), Round(1))
    met = exchange.all_gather(f"here is {rank}".encode(), 1, 20.0)
    rounds = [[[c.peer, c.round.number, len(c.blob)] for c in pending.wait(20.0)] for pending in (first, second)]
    exchange.close()
    return [
        rounds,
        [c.blob.decode() for c in met],
        exchange.bytes_sent,
        exchange.bytes_received,
        met_in_a_group(rank),
    ]


def met_in_a_group(rank):
    """The processes of a smaller group meet on their own, under ranks of their own; then one leaves, and lives on."""
    group = dist.new_group([0, 2])
    if rank == 1:
        return []
    exchange = outerloop.Distributed(group=group, timeout_s=60.0)
    came = exchange.start(f"from {rank}".encode(), Round(0)).wait(20.0)
    if rank == 2:
        exchange.abort()
    else:
        with pytest.raises(RoundFailed, match=r"between 2 processes failed: .*onnection"):
            exchange.start(b"more", Round(1)).wait(60.0)
    dist.barrier(group)
    exchange.abort()
    return [exchange.rank, exchange.size, exchange.peer, [[c.peer, c.blob.decode()] for c in came]]


def test_all_get_the_same_bytes_in_the_order_of_ranks(tmp_path):
    told = together(3, exchanged, tmp_path)
    came = [["000000", "from 0"], ["000001", "from 2"]]
    assert [group for *_, group in told] == [[0, 2, "000000", came], [], [1, 2, "000001", came]]
    for rank, (rounds, met, sent, received, _) in enumerate(told):
        assert rounds[0] == [[f"{r:06d}", 0, 1000 * r] for r in range(3)]
        assert rounds[1] == [[f"{r:06d}", 1, 3 - r] for r in range(3)]
        assert met == ["here is 0", "here is 1", "here is 2"]
        own = 1000 * rank + 3 - rank
        assert (sent, received) == (2 * own, 3000 + 6 - own)


def trained(rank):
    """A training loop of one's own with SparseLoCo between the processes."""

    def add(model, optimizer):
        add.outer = outerloop.from_recipe("sparseloco", model, "schedule.sync_every=3", "exchange=distributed")
        outerloop.attach(optimizer, add.outer)

    losses, _ = tiny_gpt.train(TEXT, steps=9, shard=rank, add=add)
    add.outer.exchange.close()
    return [losses[0], losses[-1], add.outer.slow_hash, add.outer.exchange.bytes_sent]


def test_two_processes_train_one_model(tmp_path):
    (first, last, slow, sent), (_, _, other, _) = together(2, trained, tmp_path)
    assert last < first and slow == other and sent > 0


def lost(rank):
    """One process dies; the other one's round fails, with a reason."""
    exchange = outerloop.Distributed(timeout_s=20.0)
    if rank == 1:
        (exchange.all_gather(b"", 0, 20.0), os.kill(os.getpid(), signal.SIGKILL))
    exchange.all_gather(b"", 0, 20.0)
    with pytest.raises(RoundFailed, match="between 2 processes failed"):
        exchange.start(b"message", Round(0)).wait(30.0)
    exchange.abort()


def test_a_lost_process_fails_the_round(tmp_path):
    with started(2, lost, tmp_path) as group:
        survivor, dead = group.processes
        for process in (dead, survivor):
            process.join()
    assert (dead.exitcode, survivor.exitcode) == (-signal.SIGKILL, 0)


def late(rank):
    """One process is late for a round: the round of the other one fails, and so do its later rounds."""
    exchange = outerloop.Distributed(timeout_s=20.0)
    exchange.all_gather(b"", 0, 20.0)
    if rank == 1:
        time.sleep(1.0)
        assert len(exchange.start(b"late", Round(0)).wait(20.0)) == 2
        with pytest.raises(RoundFailed, match="between 2 processes failed"):
            exchange.start(b"alone", Round(1)).wait(20.0)
        exchange.abort()
        return
    first, second = exchange.start(b"in time", Round(0)), exchange.start(b"no longer sent", Round(1))
    with pytest.raises(RoundFailed, match=r"failed: TimeoutError: resume the run on all of them"):
        first.wait(0.1)
    first.future.result(20.0)
    for pending in (first, second, exchange.start(b"nor this", Round(2))):
        assert pending.arrived()
        with pytest.raises(RoundFailed, match="resume the run on all of them"):
            pending.wait(20.0)
    exchange.abort()


def test_after_a_round_that_came_too_late_all_later_rounds_fail(tmp_path):
    together(2, late, tmp_path)


def test_without_a_process_group_it_says_what_to_do():
    with pytest.raises(UserError, match="init_process_group"):
        outerloop.Distributed()
