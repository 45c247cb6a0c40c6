"""Land recorded messages as another machine would: the same bytes and inner updates, other vector units and threads.

`recorded` trains three workers in this process and keeps what worker 0 received. As a script, simulated_machine.py FILE
lands that again, as worker 0, for each number of threads, and prints the hashes of the slow weights after every round.
What the environment says of vector units (ATEN_CPU_CAPABILITY) holds for the whole process; `FILE definitions` does
without compiled loops.
"""

import json
import pickle
import sys
from dataclasses import replace
from pathlib import Path

if sys.argv[2:] == ["definitions"]:
    sys.modules["numba"] = None  # what imports it takes the definitions in plain torch

import torch
from omegaconf import OmegaConf
from torch import nn

from outerloop.config import build, load
from outerloop.exchange.inprocess import Hub, InProcess
from outerloop.exchange.inprocess_gossip import InProcessGossip
from outerloop.types import Contribution
from tests.support import toy

WORKERS, ROUNDS, THREADS = 3, 3, (1, 2, 7)
SHAPES = [(190, 200), (47, 90), (33, 40), (5,)]
"""Of the layers: large enough for several threads, ragged chunks, small, and a vector."""


class Net(nn.Module):
    """Parameters and a buffer, and nothing that computes."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.ParameterDict({"weight": drawn(shape, i)}) for i, shape in enumerate(SHAPES))
        self.register_buffer("running", torch.ones(5))


def drawn(shape, *seed):
    """Multiples of 2^-12 within ±1: whole numbers are drawn alike on all machines."""
    draw = torch.Generator().manual_seed(sum(number * 1009**i for i, number in enumerate(seed)))
    return torch.randint(-4096, 4097, shape, generator=draw) / 4096


def driven(settings, exchange):
    """One worker through all rounds: the hash of the slow weights after each landing."""
    net = Net()
    loop = build.make_outer_loop(settings, net, exchange, rounds=None)
    hashes, step = [], 0
    while len(hashes) < ROUNDS:
        for i, p in enumerate(net.parameters()):
            update = drawn(p.shape, i, step, exchange.rank)
            if loop.method.reads == "gradients":
                p.grad = update
            else:
                p.data += update / 64
        net.running += drawn((5,), 9, step, exchange.rank)
        reports = loop.after_inner_step(exchange.rank + 1)
        assert not any(report.failed for report in reports), reports
        hashes += [f"{report.slow_hash:016x}" for report in reports]
        step += 1
    return hashes


def recorder(kind):
    """An exchange that keeps what its worker received."""

    class Recorder(kind):
        def __init__(self, **settings):
            super().__init__(**settings)
            self.received = []

        def wait(self, round, partners, timeout_s):
            contributions = super().wait(round, partners, timeout_s)
            self.received.append([(one.peer, bytes(one.blob)) for one in contributions])
            return contributions

    return Recorder


class Recorded(InProcess):
    """Worker 0 of a run whose messages are recorded."""

    def __init__(self, received, agrees):
        super().__init__(hub=Hub(WORKERS), rank=0)
        self.received, self.info = iter(received), replace(InProcess.info, agrees=agrees)

    def start(self, blob, round):
        return Arrived(self, round)

    def decode_shared(self, round, read):
        return read({})


class Arrived:
    """A recorded round."""

    def __init__(self, exchange, round):
        self.exchange, self.round = exchange, round

    def wait(self, timeout_s):
        return [Contribution(peer, self.round, blob) for peer, blob in next(self.exchange.received)]

    def arrived(self):
        return False


def recorded(options):
    """What a run of three workers with these options was: to be landed again."""
    settings = load.compose_config(options)
    gossip = settings.exchange._target_.endswith("Gossip")
    kind = recorder(InProcessGossip if gossip else InProcess)
    make = (lambda hub, rank: kind(hub=hub, rank=rank, group=2, seed=0)) if gossip else kind
    workers = toy.run_workers(WORKERS, lambda e: (driven(settings, e), e.received), make)
    return {
        "settings": OmegaConf.to_container(settings, resolve=True),
        "received": workers[0][1],
        "agrees": not gossip,
        "hashes": [hashes for hashes, _ in workers],
    }


def landed(case):
    """Hashes after each round, by the number of threads."""
    found = {}
    for count in THREADS:
        torch.set_num_threads(count)
        found[count] = driven(OmegaConf.create(case["settings"]), Recorded(case["received"], case["agrees"]))
    return found


if __name__ == "__main__":
    cases = pickle.loads(Path(sys.argv[1]).read_bytes())
    capability = torch.backends.cpu.get_cpu_capability()
    print(json.dumps({"capability": capability, "cases": {name: landed(case) for name, case in cases.items()}}))
