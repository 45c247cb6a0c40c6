"""BatchNorm statistics: local, or the mean of all peers when a round lands."""

import copy

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from outerloop import wire
from outerloop.compress.index.rice import Rice
from outerloop.compress.topk import TopK
from outerloop.compress.two_bit import TwoBit
from outerloop.feedback.ef import ErrorFeedback
from outerloop.replica import buffers
from outerloop.replica.buffers import Buffers
from outerloop.schedule.streaming import Streaming
from outerloop.types import UserError
from tests.support import toy

STATISTICS = ("1.running_mean", "1.running_var")


def batch_norm(seed=0):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(7, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    net.register_buffer("mask", torch.full((2,), 0.1), persistent=False)
    return net


def sparse():
    return {
        "compress": TopK(chunk=16, k=4, values=TwoBit(chunk=None), index=Rice()),
        "feedback": ErrorFeedback(beta=0.9),
    }


def statistics(net):
    return {name: net.get_buffer(name).clone() for name in STATISTICS}


def after_a_round(exchange, *, steps=3, **parts):
    """The statistics of one worker just before and just after its round landed, its model and its loop."""
    net = batch_norm()
    loop = toy.outer(net, exchange, h=steps, **parts)
    inner = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(steps):
        toy.inner_step(net, inner, exchange.rank, step)
        before = statistics(net)
        [*reports] = loop.after_inner_step(1)
    assert len(reports) == 1 and not reports[0].failed
    return before, statistics(net), net, loop


@pytest.mark.parametrize("parts", [dict, sparse], ids=["dense", "sparse"])
def test_averaged_is_the_arithmetic_mean(parts):
    a, b = toy.run_workers(2, lambda exchange: after_a_round(exchange, buffers="averaged", **parts()))
    for name in STATISTICS:
        assert not torch.equal(a[0][name], b[0][name])
        mean = ((a[0][name].double() + b[0][name].double()) / 2).float()
        assert torch.equal(a[1][name], mean) and torch.equal(b[1][name], mean)
    assert a[2][1].num_batches_tracked == 3 and torch.equal(a[2].mask, torch.full((2,), 0.1))
    assert a[3].buffers.mean.keys() == set(STATISTICS)


def test_the_slow_weights_are_saved_with_the_means():
    def saved(exchange):
        _, _, net, loop = after_a_round(exchange, buffers="averaged")
        net(torch.randn(8, 7, generator=torch.Generator().manual_seed(exchange.rank)))  # other statistics on each peer
        own = statistics(net)
        with loop.slow_weights():
            agreed = copy.deepcopy(net.state_dict())
        assert all(torch.equal(own[name], x) for name, x in statistics(net).items())
        return own, agreed

    (own, a), (other, b) = toy.run_workers(2, saved)
    assert not torch.equal(own[STATISTICS[0]], other[STATISTICS[0]])
    assert all(torch.equal(a[name], b[name]) for name in STATISTICS)


def test_statistics_inside_activation_checkpointing_are_averaged():
    net = batch_norm()
    wrapped = nn.Sequential(net[0], checkpoint_wrapper(net[1]), net[2])
    assert Buffers(wrapped, kind="averaged").mean.keys() == Buffers(net, kind="averaged").mean.keys() == set(STATISTICS)


def test_local_is_what_training_left():
    for before, after, _, loop in toy.run_workers(2, after_a_round):
        assert all(torch.equal(before[name], after[name]) for name in STATISTICS)
        assert not loop.buffers.mean


def test_they_ride_with_the_first_fragment():
    schedule = Streaming(sync_every=4, fragments=2, delay=0)

    def live(exchange):
        net = batch_norm()
        loop = toy.outer(net, exchange, schedule=schedule, buffers="averaged")
        inner, seen = torch.optim.SGD(net.parameters(), lr=0.1), []
        for step in range(4):
            toy.inner_step(net, inner, exchange.rank, step)
            seen += [(report.round.fragment, statistics(net)) for report in loop.after_inner_step(1)]
        return seen

    one, other = toy.run_workers(2, live)
    assert [fragment for fragment, _ in one] == [0, 1]
    equal = [
        all(torch.equal(a[name], b[name]) for name in STATISTICS) for (_, a), (_, b) in zip(one, other, strict=True)
    ]
    assert equal == [True, False]


def test_a_newcomer_takes_them_over():
    _, (_, there, _, loop) = toy.run_workers(2, lambda exchange: after_a_round(exchange, buffers="averaged"))
    newcomer = toy.run_workers(1, lambda exchange: toy.outer(batch_norm(), exchange, buffers="averaged"))[0]
    newcomer.shared_state.restore(loop.shared_state.serialize())
    assert all(torch.equal(newcomer.model.get_buffer(name), there[name]) for name in STATISTICS)
    assert newcomer.shared_state.serialize() == loop.shared_state.serialize()
    keeps_its_own = toy.run_workers(1, lambda exchange: toy.outer(batch_norm(), exchange))[0]
    with pytest.raises(UserError, match=r"only one has 1\.running_mean, 1\.running_var"):
        keeps_its_own.shared_state.restore(loop.shared_state.serialize())


def test_the_mean_is_in_the_state():
    _, _, net, loop = toy.run_workers(1, lambda exchange: after_a_round(exchange, buffers="averaged"))[0]
    weights, state = copy.deepcopy((net.state_dict(), loop.state_dict()))

    def resume(exchange):
        other = toy.outer(batch_norm(), exchange, buffers="averaged")
        other.model.load_state_dict(weights)
        other.load_state_dict(state)
        return other.shared_state.serialize()

    assert toy.run_workers(1, resume) == [loop.shared_state.serialize()]


def test_a_peer_that_did_not_count_keeps_its_own_buffers():
    own = Buffers(batch_norm(), kind="averaged")
    mean = {name: torch.full((5,), 9.0) for name in STATISTICS}
    own.land(mean, included=False)
    assert torch.equal(own.model.get_buffer(STATISTICS[0]), torch.zeros(5)) and torch.equal(
        own.mean[STATISTICS[0]], mean[STATISTICS[0]]
    )


def message(x):
    header = wire.Header(0, 0, 1, 0, 0, peer="p7")
    return wire.Message(header, {STATISTICS[0]: {"value": torch.zeros(5)}, STATISTICS[1]: x})


@pytest.mark.parametrize(
    "x",
    [{"value": torch.full((5,), torch.nan)}, {"value": torch.zeros(4)}, {"value": torch.zeros(5).double()}, {}],
    ids=["nan", "shape", "dtype", "missing"],
)
def test_an_unknown_buffer_is_refused_by_name(x):
    with pytest.raises(wire.InvalidMessage, match=r"payload of p7, buffer 1\.running_var"):
        Buffers(batch_norm(), kind="averaged").combine([message({"value": torch.zeros(5)}), message(x)])


def test_buffers_of_a_float64_model_are_sent_as_float32():
    """A peer whose model is float32 must be able to read them."""
    double = Buffers(batch_norm().double(), kind="averaged")
    assert {part["value"].dtype for part in double.parts(0).values()} == {torch.float32}
    double.land({name: torch.full((5,), 9.0) for name in STATISTICS}, included=True)
    assert torch.equal(double.buffer(STATISTICS[0]), torch.full((5,), 9.0, dtype=torch.float64))


@pytest.mark.parametrize("peers", [1, 2, 3, 7])
def test_equal_ones_stay_equal_bit_for_bit(peers):
    x = torch.randn(1000)
    assert torch.equal(buffers.mean_buffer([x.clone() for _ in range(peers)]), x)


def test_another_kind_is_refused():
    with pytest.raises(UserError, match="buffers=mean is not one of local, averaged"):
        Buffers(batch_norm(), kind="mean")
