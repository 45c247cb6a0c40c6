"""Two levels: DDP inside a region, each with a torch.distributed of its own, and a swarm between the regions."""

import logging
import time
from contextlib import ExitStack

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import outerloop
from tests.support import toy
from tests.support.process_group import LIMIT_S, results, started
from tests.support.run_output import address_in

H, ROUNDS = 3, 4
OPTIONS = [f"schedule.sync_every={H}", "method.optimizer.momentum=0.6", "clip=none"]  # no screen, as in threads


def train_region(shard, *options, run_dir):
    """A rank of a region trains on a share of the data that is its own."""
    net = DistributedDataParallel(toy.model())
    outer = outerloop.from_recipe("diloco", net, *OPTIONS, *options, run_dir=run_dir)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    outerloop.attach(optimizer, outer)
    for step in range(H * ROUNDS):
        toy.inner_step(net, optimizer, shard, step)
    outer.exchange.close()
    return [p.tolist() for p in net.parameters()]


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


class ToFile(logging.Handler):
    """The address that the first peer tells, for the other region."""

    def __init__(self, path):
        super().__init__()
        self.path = path

    def emit(self, record):
        if address := address_in(record.getMessage()):
            whole = self.path.with_suffix(".whole")
            whole.write_text(address)
            whole.replace(self.path)


def once_there(path):
    """The text of a file that another process writes."""
    ends_s = time.monotonic() + LIMIT_S
    while not path.exists():
        assert time.monotonic() < ends_s, f"no {path} after {LIMIT_S} s"
        time.sleep(0.05)
    return path.read_text()


class Region:
    """The processes of one region, which know nothing of the other one but its leader's address."""

    def __init__(self, place, folder):
        self.place, self.folder = place, folder

    def __call__(self, rank):
        options, told = ["exchange.peers=2"], self.folder / "address"
        if rank == 0 and self.place == 0:
            logging.getLogger("outerloop").addHandler(ToFile(told))
        elif rank == 0:
            options.append(once_there(told))
        return train_region(2 * self.place + rank, *options, run_dir=self.folder / f"run-{self.place}")


@pytest.mark.slow
def test_regions_of_two_ranks_are_workers_of_twice_the_batch(tmp_path):
    """All ranks hold one model bit for bit: that of two workers which do a whole region's work each, to rounding."""
    folders = [tmp_path / name for name in ("a", "b")]
    for folder in folders:
        folder.mkdir()
    with ExitStack() as stack:
        regions = [started(2, Region(place, tmp_path), folder) for place, folder in enumerate(folders)]
        groups = [stack.enter_context(region) for region in regions]
        told = [one for group, folder in zip(groups, folders, strict=True) for one in results(group, folder)]
    assert all(weights == told[0] for weights in told)
    for weights in toy.run_workers(2, whole_region):
        for ours, theirs in zip(told[0], weights, strict=True):
            torch.testing.assert_close(torch.tensor(ours), theirs, rtol=1e-4, atol=1e-6)
