"""Gossip over torch.distributed: only partners pass bytes, and it is the gossip of threads bit for bit."""

import pytest
import torch

import outerloop
from outerloop.exchange.inprocess_gossip import InProcessGossip
from outerloop.gossip_groups import group_of
from outerloop.methods.noloco import NoLoCo
from outerloop.types import Round, UserError
from tests.support import toy
from tests.support.process_group import together

SIZE, ROUNDS = 3, 4


def deal(rank, number):
    return group_of(rank, size=SIZE, group=2, seed=5, round_id=Round(number))


def message(rank, number):
    """Of another length in each, one of them empty."""
    return bytes([rank]) * (100 * rank + number) if rank + number else b""


def trained(exchange):
    """The hash of the slow weights after four rounds of NoLoCo on data of this worker's own."""
    net = toy.model()
    outer = toy.outer(net, exchange, method=NoLoCo(alpha=0.5, beta=0.7, gamma=None, consensus="inside"))
    inner = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(3 * ROUNDS):
        toy.inner_step(net, inner, exchange.rank, step)
        outer.after_inner_step(1)
    return outer.slow_hash


def met(rank):
    """Rounds of bytes all started at once, a meeting, then a training."""
    exchange = outerloop.DistributedGossip(together=2, seed=5, timeout_s=60.0)
    under_way = [exchange.start(message(rank, number), Round(number)) for number in range(ROUNDS)]
    all_met = [c.blob.decode() for c in exchange.all_gather(f"here is {rank}".encode(), 1, 60.0)]
    came = [[[c.peer, c.blob.decode()] for c in pending.wait(60.0)] for pending in under_way]
    counted = exchange.bytes_sent, exchange.bytes_received
    slow = trained(exchange)
    exchange.close()
    return [came, all_met, counted, slow]


def test_only_partners_get_bytes_and_noloco_is_that_of_threads_bit_for_bit(tmp_path):
    told = together(SIZE, met, tmp_path)
    for rank, (came, all_met, (sent, received), _) in enumerate(told):
        partners = [deal(rank, number) for number in range(ROUNDS)]
        assert came == [
            [[f"{p:06d}", message(p, number).decode()] for p in group] for number, group in enumerate(partners)
        ]
        assert all_met == ["here is 0", "here is 1", "here is 2"]
        assert sent == sum(len(message(rank, n)) * (len(group) - 1) for n, group in enumerate(partners))
        assert received == sum(len(message(p, n)) for n, group in enumerate(partners) for p in group if p != rank)
    assert any(len(deal(0, number)) == 1 for number in range(ROUNDS)), "an odd one out takes a solo step"

    def make(*, hub, rank):
        return InProcessGossip(hub=hub, rank=rank, group=2, seed=5)

    assert [slow for *_, slow in told] == toy.run_workers(SIZE, trained, make)


def test_a_group_needs_two():
    with pytest.raises(UserError, match=r"exchange\.together=1 must be at least 2"):
        outerloop.DistributedGossip(together=1, seed=0)
