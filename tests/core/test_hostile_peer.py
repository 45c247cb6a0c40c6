"""One peer of a run sends valid messages out of all proportion: the others go on, and say whose they were."""

import copy
import functools
from dataclasses import replace

import pytest
import torch

from outerloop import wire
from outerloop.aggregate.senders import Senders
from outerloop.aggregate.weighted import Weighted
from outerloop.compress.by_size import BySize
from outerloop.compress.cast import Cast
from outerloop.compress.identity import Identity
from outerloop.compress.index.rice import Rice
from outerloop.compress.topk import TopK
from outerloop.exchange.inprocess import InProcess
from outerloop.feedback.ef import ErrorFeedback
from outerloop.feedback.local_error import LocalError
from outerloop.feedback.none import NoFeedback
from outerloop.schedule.every_h import EveryH
from outerloop.types import Contribution, Round
from tests.support import forged_payloads, toy, toy_pipelines

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
                section.data = bytes(wire.bytes_view(x))

    return change


def largest(draft):
    for section in draft.sections():
        if wire.DTYPES[section.dtype] == torch.bfloat16:
            section.data = LARGEST * (len(section.data) // 2)


def flipped(draft):
    """The other direction: codes of two bits hold the sign in their higher bit; values that are sent as they are.

    The last byte of codes stays, because it may end with padding, which must be zero.
    """
    for section in draft.sections():
        name = draft.names[section.name].decode()
        if name.endswith("code"):
            section.data = bytes(byte ^ 0b10101010 for byte in section.data[:-1]) + section.data[-1:]
        elif name == "value":
            x = -torch.frombuffer(bytearray(section.data), dtype=torch.bfloat16)
            section.data = bytes(wire.bytes_view(x))
    times(100, torch.bfloat16)(draft)


def many_samples(draft):
    draft.numbers[3] = 2**63


HOSTILE = {
    "largest": largest,
    "hundred times": times(100, torch.bfloat16),
    "flipped": flipped,
    "samples": many_samples,
}


class Hostile(toy.Around):
    """What the last worker sends is changed, the same for everybody, from a round on."""

    info = replace(InProcess.info, waits_for_all=False)

    def __init__(self, inner, change, *, first=FROM):
        super().__init__(inner)
        self.change, self.first = change, first

    def start(self, blob, round):
        pending = self.inner.start(blob, round)
        return toy.Changed(pending, self.forge) if self.change and round.number >= self.first else pending

    def forge(self, messages):
        *rest, last = messages
        draft = forged_payloads.apart(last.blob)
        self.change(draft)
        return [*rest, Contribution(last.peer, last.round, draft.assembled())]


def parts():
    """Of the default recipe, its chunks as small as the model."""
    compress = BySize(below=10, small=Cast(dtype="bfloat16"), large=toy_pipelines.topk("sparseloco"))
    return {"compress": compress, "feedback": ErrorFeedback(beta=0.95), "aggregate": Senders()}


def train(exchange, change, *, first=FROM, rounds=ROUNDS, fused=True, **other):
    """The loop of one worker, and the reports of its rounds."""
    loop = toy.outer(toy.model(width=20), Hostile(exchange, change, first=first), h=3, **parts() | other)
    loop.pipeline.fused.fits &= fused
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
        assert bool(loop.pipeline.split(loop.slow)[0]), "the fused route"
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


def test_the_norms_of_other_routes_are_the_same():
    """Dense tensors are measured, refused and shortened as the kernels' are."""

    def work(exchange, fused):
        _, reports = train(exchange, HOSTILE["hundred times"], fused=fused)
        return [report.slow_hash for report in reports]

    assert toy.run_workers(3, lambda e: work(e, True)) == toy.run_workers(3, lambda e: work(e, False))


@pytest.mark.parametrize("merge_local", [0.0, 0.5])
def test_a_refused_peer_begins_again_from_the_slow_weights(merge_local):
    """It follows the same rule, so it knows that its round did not count."""

    def work(exchange):
        loop, [*_, before] = train(exchange, HOSTILE["hundred times"], rounds=FROM, merge_local=merge_local)
        residual = norm_of(loop.feedback.state_dict()["residual"])
        inner = torch.optim.SGD(loop.model.parameters(), lr=0.2)
        for step in range(3):
            step_of(loop.model, inner, exchange.rank, step)
            reports = loop.after_inner_step(4)
        delta = norm_of({name: loop.slow[name] - p.detach() for name, p in loop.model.named_parameters()})
        now = norm_of(loop.feedback.state_dict()["residual"])
        return len(before.refused), len(reports[0].refused), loop.samples, delta > 0, residual > 0, now > 0

    *honest, hostile = toy.run_workers(3, work)
    assert hostile == (0, 1, 0, False, True, False)
    assert honest == [(0, 1, 0, merge_local > 0, True, True)] * 2


def test_a_refused_peer_is_not_credited_for_its_steps_since_the_launch():
    """It discards them. The others keep theirs: one step of four samples."""

    def work(exchange):
        late = {"schedule": EveryH(sync_every=3, delay=1), "merge_local": "carry"}
        loop, reports = train(exchange, HOSTILE["hundred times"], rounds=FROM, **late)
        inner = torch.optim.SGD(loop.model.parameters(), lr=0.2)
        for step in range(4):
            step_of(loop.model, inner, exchange.rank, step)
            reports += loop.after_inner_step(4)
        return len(reports[-1].refused), loop.samples

    *honest, hostile = toy.run_workers(3, work)
    assert hostile == (1, 0) and honest == [(1, 4)] * 2


def norm_of(tensors):
    return sum(float(x.norm()) for x in tensors.values())


class Vector(torch.nn.Module):
    """Sixteen parameters whose progress a test sets."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(16))

    def move(self, progress):
        with torch.no_grad():
            self.weight[: len(progress)] -= torch.tensor(progress)


def counted(progress, feedback, **other):
    """Whether the payload of the last of four peers counts in each round. `progress(rank, round)`, of each peer."""

    def work(exchange):
        net, found = Vector(), []
        loop = toy.outer(net, Hostile(exchange, None), h=1, feedback=feedback(), **other)
        for number in range(5):
            net.move(progress(exchange.rank, number))
            [report] = loop.after_inner_step(4)
            found.append("003" in report.peers)
        return found

    return toy.run_workers(4, work)[0]


@pytest.mark.parametrize("make", [NoFeedback, lambda: ErrorFeedback(beta=1.0), lambda: LocalError(beta=1.0)])
def test_a_peer_of_which_one_payload_was_too_long_counts_again(make):
    """Others move by 1 in each round, it moves by 10 once. Its progress is kept nowhere, or each payload is refused."""
    found = counted(lambda rank, number: [10.0 if (rank, number) == (3, 1) else 1.0], make)
    assert found == [True, False, True, True, True]


@pytest.mark.parametrize("make", [lambda: ErrorFeedback(beta=1.0), lambda: LocalError(beta=1.0)])
def test_a_residual_that_was_too_long_is_not_sent_again(make):
    """It moves by 4 in all directions and sends one, then moves by an eighth of the rest, as the others do."""

    def progress(rank, number):
        return [4.0] * 16 if (rank, number) == (3, 0) else [1.0 if number == 0 else 0.5]

    compress = TopK(chunk=16, k=1, values=Identity(), index=Rice())
    assert counted(progress, make, compress=compress) == [True, False, True, True, True]


def test_a_round_of_messages_that_are_all_too_long_fails_and_changes_nothing():
    def work(exchange):
        loop = toy.outer(toy.model(width=20), All(exchange, largest, first=1), h=3, **parts())
        inner, reports = torch.optim.SGD(loop.model.parameters(), lr=0.2), []
        for step in range(6):
            step_of(loop.model, inner, exchange.rank, step)
            reports += loop.after_inner_step(4)
        return reports

    class All(Hostile):
        def forge(self, messages):
            return [super(All, self).forge([one])[0] for one in messages]

    for first, second in toy.run_workers(2, work):
        assert not first.failed and second.failed.startswith("000: its norm is") and "; 001: " in second.failed
        assert first.slow_hash == second.slow_hash


def test_samples_that_nobody_saw_weigh_four_times_the_median():
    """Three went 7 on 4 samples, one 3.5 on a million, so it says: (3 · 4 · 7 + 16 · 3.5) / 28 = 5."""

    def million(draft):
        draft.numbers[3] = 10**6

    def work(exchange):
        dense = {"compress": Identity(), "feedback": NoFeedback(), "aggregate": Weighted()}
        loop = toy.outer(toy.model(), Hostile(exchange, million, first=0), h=1, **dense)
        begun = {name: x.clone() for name, x in loop.slow.items()}
        with torch.no_grad():
            for p in loop.model.parameters():
                p -= 3.5 if exchange.rank == 3 else 7.0
        [report] = loop.after_inner_step(4)
        assert not report.refused and len(report.peers) == 4
        return max(float((begun[name] - x - 5.0).abs().max()) for name, x in loop.slow.items())

    assert max(toy.run_workers(4, work)) < 1e-5


def test_without_a_screen_the_blame_is_not_the_inner_learning_rate():
    def work(exchange):
        with pytest.raises(FloatingPointError) as error:
            train(exchange, largest, clip="none")
        return str(error.value)

    for said in toy.run_workers(2, work):
        assert "the slow weights are far too large" in said and "clip=median" in said and "inner.lr" not in said


def test_a_peer_that_diverges_alone_is_told_so():
    def work(exchange):
        loop = toy.outer(toy.model(), exchange, h=1)
        with torch.no_grad():
            next(loop.model.parameters()).fill_(torch.nan)
        with pytest.raises(FloatingPointError, match=r"training has diverged: lower inner\.lr"):
            loop.after_inner_step(1)

    toy.run_workers(1, work)


def test_norms_that_landed_go_with_a_checkpoint_and_to_who_comes_late():
    def work(exchange):
        loop, _ = train(exchange, HOSTILE["hundred times"])
        late, resumed, older = (
            toy.outer(toy.model(width=20), Hostile(exchange, None), h=3, **parts()) for _ in range(3)
        )
        late.loop.take_over(Round(ROUNDS - 1), loop.shared_state.serialize())
        state = loop.state_dict()
        resumed.load_state_dict(copy.deepcopy(state))
        older.load_state_dict({name: part for name, part in copy.deepcopy(state).items() if name != "screen"})
        return [one.screen.landed for one in (loop, late, resumed, older)]

    for landed, of_late, of_resumed, of_older in toy.run_workers(3, work):
        assert landed == of_late == of_resumed and len(landed[0]) == 4 and of_older == {}


def test_the_exchange_is_told_whom_the_replica_refuses():
    told = []

    class Told(Hostile):
        def refused(self, round, refusals):
            told.append((self.peer, round, *refusals))

    def work(exchange):
        loop = toy.outer(toy.model(width=20), Told(exchange, largest), h=3, **parts())
        inner = torch.optim.SGD(loop.model.parameters(), lr=0.2)
        for step in range(3 * FROM + 3):
            step_of(loop.model, inner, exchange.rank, step)
            loop.after_inner_step(4)

    toy.run_workers(3, work)
    assert sorted(told) == [(f"00{rank}", Round(FROM), "002") for rank in range(3)]
