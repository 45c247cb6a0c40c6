"""One peer of a run sends messages that are valid and out of all proportion: the others go on, and say whose they were."""

import functools

import forged
import pytest
import torch
import toy
import toy_routes

from outerloop import wire
from outerloop.aggregate.senders import Senders
from outerloop.compress.by_size import BySize
from outerloop.compress.cast import Cast
from outerloop.feedback.ef import ErrorFeedback
from outerloop.types import Contribution

LARGEST = (0x7F7F).to_bytes(2, "little")
"""bfloat16."""
FROM, ROUNDS = 2, 7
"""Rounds: the first with a hostile message, and all."""


def times(factor, dtype):
    """Every level of a payload so many times as large, its positions and codes as they were."""

    def change(draft):
        for section in draft.sections():
            if wire.DTYPES[section.dtype] == dtype and len(section.data):
                x = torch.frombuffer(bytearray(section.data), dtype=dtype) * factor
                section.data = bytes(wire.view_of(x))

    return change


def largest(draft):
    for section in draft.sections():
        if wire.DTYPES[section.dtype] == torch.bfloat16:
            section.data = LARGEST * (len(section.data) // 2)


def flipped(draft):
    """The other direction: codes of two bits hold the sign in their higher bit; values that are sent as they are."""
    for section in draft.sections():
        name = draft.names[section.name].decode()
        if name.endswith("code"):
            section.data = bytes(byte ^ 0b10101010 for byte in section.data)
        elif name == "value":
            x = -torch.frombuffer(bytearray(section.data), dtype=torch.bfloat16)
            section.data = bytes(wire.view_of(x))
    times(10, torch.bfloat16)(draft)


def many_samples(draft):
    draft.numbers[3] = 2**63


HOSTILE = {
    "largest": largest,
    "ten times": times(10, torch.bfloat16),
    "flipped": flipped,
    "samples": many_samples,
}


class Hostile(toy.Around):
    """What the last worker sends is changed, the same for everybody, from a round on."""

    waits_for_all = False

    def __init__(self, inner, change, *, first=FROM):
        super().__init__(inner)
        self.change, self.first = change, first

    def start(self, blob, round):
        pending = self.inner.start(blob, round)
        return toy.Changed(pending, self.forge) if self.change and round.number >= self.first else pending

    def forge(self, messages):
        *rest, last = messages
        draft = forged.apart(last.blob)
        self.change(draft)
        return [*rest, Contribution(last.peer, last.round, draft.assembled())]


def parts():
    """Of the default recipe, its chunks as small as the model."""
    compress = BySize(below=10, small=Cast(dtype="bfloat16"), large=toy_routes.topk("sparseloco"))
    return {"compress": compress, "feedback": ErrorFeedback(beta=0.95), "aggregate": Senders()}


def train(exchange, change, *, first=FROM, rounds=ROUNDS, **other):
    """The loop of one worker, and the reports of its rounds."""
    loop = toy.outer(toy.model(width=20), Hostile(exchange, change, first=first), h=3, **parts() | other)
    inner, reports = torch.optim.SGD(loop.model.parameters(), lr=0.2), []
    for step in range(3 * rounds):
        step_of(loop.model, inner, exchange.rank, step)
        reports += loop.after_inner_step(4)
    return loop, reports


def step_of(net, optimizer, worker, step):
    """One inner step on data that depends on worker and step, about one target."""
    draw = torch.Generator().manual_seed(1000 * worker + step)
    x = torch.randn(8, 20, generator=draw)
    optimizer.zero_grad()
    ((net(x) - x[:, :3].tanh()) ** 2).mean().backward()
    optimizer.step()


def loss(slow):
    """Of slow weights on data that nobody trained on."""
    net = toy.model(width=20).requires_grad_(False)
    net.load_state_dict(slow)
    x = torch.randn(4096, 20, generator=torch.Generator().manual_seed(99))
    return float(((net(x) - x[:, :3].tanh()) ** 2).mean())


@functools.cache
def calm(peers):
    """The loss of a run of so many without the hostile one's messages from when on they are hostile."""

    def leave(messages):
        return messages[:-1]

    class Without(Hostile):
        def forge(self, messages):
            return leave(messages)

    def work(exchange):
        loop = toy.outer(toy.model(width=20), Without(exchange, leave), h=3, **parts())
        inner = torch.optim.SGD(loop.model.parameters(), lr=0.2)
        for step in range(3 * ROUNDS):
            step_of(loop.model, inner, exchange.rank, step)
            loop.after_inner_step(4)
        return loss(loop.slow)

    return toy.run_workers(peers, work)[0]


@pytest.mark.parametrize("peers", [2, 3, 10])
@pytest.mark.parametrize("kind", HOSTILE)
def test_training_goes_on_without_it_and_it_is_named(peers, kind):
    def work(exchange):
        loop, reports = train(exchange, HOSTILE[kind])
        assert bool(loop.routes.split(loop.slow)[0]), "the fused route"
        return [report.slow_hash for report in reports], reports, loop

    results = toy.run_workers(peers, work)
    hashes, reports, loop = results[0]
    assert all(other == hashes for other, _, _ in results) and len(set(hashes)) == ROUNDS
    name = f"{peers - 1:03d}"
    for report in reports:
        assert not report.failed
        hostile = report.round.number >= FROM
        assert (name in report.peers) != hostile and len(report.refused) == hostile
        assert all(why.startswith(f"{name}: it") for why in report.refused)
    assert loss(loop.slow) < 1.02 * calm(peers) < loss(toy.model(width=20).state_dict()) / 1.5
