"""Two levels: DDP between the ranks of a region, the outer loop between the first ranks of the regions."""

import json
import logging
import time

import pytest
import torch
import torch.multiprocessing as processes
import toy
from ranks import live, together
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

import outerloop

H, ROUNDS = 3, 4
OPTIONS = [f"schedule.sync_every={H}", "method.optimizer.momentum=0.6"]


def train_region(model, region, shard, lead=None):
    """Rank r of a region trains on its own share of the data; who leads has an outer loop attached."""
    net = DistributedDataParallel(model, process_group=region)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    if lead:
        outerloop.attach(optimizer, lead)
    for step in range(H * ROUNDS):
        toy.inner_step(net, optimizer, shard, step)
        if step % H == H - 1:  # a round has landed where the region is led: all go on from there
            for p in model.parameters():
                dist.broadcast(p.data, group_src=0, group=region)
    return [p.tolist() for p in model.parameters()]


def in_one_cluster(rank):
    """Ranks 0 and 1 are a region, 2 and 3 another one; 0 and 2 lead them."""
    regions, leaders = [dist.new_group([0, 1]), dist.new_group([2, 3])], dist.new_group([0, 2])
    model, lead = toy.model(), None
    if rank % 2 == 0:
        lead = outerloop.from_recipe("diloco", model, *OPTIONS, exchange=outerloop.Distributed(group=leaders))
    return train_region(model, regions[rank // 2], rank, lead)


def whole_region(exchange):
    """One worker that takes the batches of both ranks of its region."""
    net = toy.model()
    outer = outerloop.from_recipe("diloco", net, *OPTIONS, exchange=exchange)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    outerloop.attach(optimizer, outer)
    for step in range(H * ROUNDS):
        xs, ys = zip(*(toy.batch(2 * exchange.rank + rank, step) for rank in range(2)), strict=True)
        optimizer.zero_grad()
        ((net(torch.cat(xs)) - torch.cat(ys)) ** 2).mean().backward()
        optimizer.step()
    return [p.detach() for p in net.parameters()]


def check(told):
    """All ranks hold one model bit for bit: that of two workers which do a whole region's work each, to rounding."""
    assert all(weights == told[0] for weights in told)
    for weights in toy.run_workers(2, whole_region):
        for ours, theirs in zip(told[0], weights, strict=True):
            torch.testing.assert_close(torch.tensor(ours), theirs, rtol=1e-4, atol=1e-6)


def test_regions_of_two_ranks_are_workers_of_twice_the_batch(tmp_path):
    check(together(4, in_one_cluster, tmp_path))


class ToFile(logging.Handler):
    """The address that the first peer tells, for the other region."""

    def __init__(self, path):
        super().__init__()
        self.path = path

    def emit(self, record):
        self.path.write_text(record.getMessage().split("'")[1])


class Region:
    """The processes of one region, which know nothing of the other one but its leader's address."""

    def __init__(self, place, folder):
        self.place, self.folder = place, folder

    def __call__(self, rank):
        model, lead, told = toy.model(), None, self.folder / "address"
        if rank == 0:
            options = [*OPTIONS, "exchange.peers=2"]
            if self.place == 0:
                logging.getLogger("outerloop").addHandler(ToFile(told))
            else:
                while not (told.exists() and told.read_text()):
                    time.sleep(0.05)
                options.append(told.read_text())
            lead = outerloop.from_recipe("diloco", model, *options, run_dir=self.folder / f"run-{self.place}")
        weights = train_region(model, None, 2 * self.place + rank, lead)
        if lead:
            lead.exchange.close()
        return weights


@pytest.mark.slow
def test_regions_meet_over_a_swarm(tmp_path):
    """One torch.distributed a region; the leaders are peers of a swarm."""
    folders = [tmp_path / name for name in ("a", "b")]
    for folder in folders:
        folder.mkdir()
    groups = [
        processes.spawn(live, (2, Region(place, tmp_path), folder), nprocs=2, join=False)
        for place, folder in enumerate(folders)
    ]
    for group in groups:
        while not group.join():
            pass
    check([json.loads((folder / f"{rank}.json").read_text()) for folder in folders for rank in range(2)])
