"""A toy run: small linear models, workers as threads, every part of the outer loop real."""

import copy
import threading
from collections.abc import Callable

import torch
from torch import nn

from outerloop.aggregate.mean import Mean
from outerloop.compress.identity import Identity
from outerloop.core.outer_loop import OuterLoop
from outerloop.exchange.inprocess import Hub, InProcess
from outerloop.exchange.inprocess_gossip import InProcessGossip
from outerloop.feedback.none import NoFeedback
from outerloop.methods.outer_optimizer import OuterOptimizer
from outerloop.schedule.every_h import EveryH
from tests.support.tensors import same_tensors

AVERAGED = ["method.optimizer.lr=1.0", "method.optimizer.momentum=0.0", "method.optimizer.nesterov=false"]
"""Options of `diloco` with which slow weights become the mean of the fast ones."""


def sgd(lr=1.0, momentum=0.0, nesterov=False, **options):
    """An outer SGD."""
    return OuterOptimizer(
        optimizer=lambda params: torch.optim.SGD(params, lr=lr, momentum=momentum, nesterov=nesterov), **options
    )


def model(seed=0, width=7):
    """A little network with a bias, a norm and a matrix."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width), nn.Linear(width, 3))


def outer(net, exchange, *, h=3, **parts):
    """An outer loop with plain parts in the places that are not given."""
    chosen = {
        "method": sgd(),
        "compress": Identity(),
        "feedback": NoFeedback(),
        "aggregate": Mean(),
        "schedule": EveryH(sync_every=h),
    } | parts
    return OuterLoop(net, exchange=exchange, **chosen)


def batch(worker, step):
    """(4, 7) and (4, 3) gaussian values."""
    draw = torch.Generator().manual_seed(1000 * worker + step)
    return torch.randn(4, 7, generator=draw), torch.randn(4, 3, generator=draw)


def inner_step(net, optimizer, worker, step):
    """One inner step on data that depends on worker and step alone."""
    x, y = batch(worker, step)
    optimizer.zero_grad()
    ((net(x) - y) ** 2).mean().backward()
    optimizer.step()


def alone(bytes_sent=0):
    """The exchange of one worker, which has sent this many bytes and sends no others."""
    exchange = InProcess(hub=Hub(1), rank=0)
    exchange.bytes_sent = bytes_sent
    exchange.join()
    return exchange


def gossip(*, hub, rank):
    """One worker's end of a gossip in pairs, as `recipe=noloco` draws them."""
    return InProcessGossip(hub=hub, rank=rank, group=2, seed=0)


def same_weights(a, b):
    """Whether two models have equal parameters, bit for bit."""
    return all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))


class Around:
    """An exchange around another one, to change what it does. What is made of a round is made by each worker."""

    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def decode_shared(self, round, read):
        return read({})


class Changed:
    """A round whose messages are changed on their way."""

    def __init__(self, pending, change):
        self.pending, self.change = pending, change

    def wait(self, timeout_s):
        return self.change(self.pending.wait(timeout_s))


def run_workers(size: int, work: Callable[[InProcess], object], make: Callable[..., InProcess] = InProcess) -> list:
    """Call `work(exchange)` in one thread a worker; their results in order. A failing worker fails the test.

    `make(hub=, rank=)` makes the exchange of one worker.
    """
    hub, results, errors = Hub(size), [None] * size, []

    def live(rank):
        exchange = make(hub=hub, rank=rank)
        try:
            exchange.join()
            results[rank] = work(exchange)
        except BaseException as error:  # includes the failures of pytest, and Stopped
            errors.append(error)
            hub.stop("a worker failed")
        finally:
            exchange.close()

    threads = [threading.Thread(target=live, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


def restarted(parts: Callable[[], dict], *, steps: int, stop_at: int) -> tuple[list, list, list]:
    """Two workers whole, until `stop_at`, and on from there: the states of model and loop of each worker.

    `parts()` makes the parts of one worker's loop. Asserts that the stop changed no weight, fast or slow.
    """
    whole = run_workers(2, lambda e: states_after(e, parts(), range(steps)))
    half = run_workers(2, lambda e: states_after(e, parts(), range(stop_at)))
    resumed = run_workers(2, lambda e: states_after(e, parts(), range(stop_at, steps), half[e.rank]))
    for (net, loop), (other_net, other_loop) in zip(whole, resumed, strict=True):
        assert same_tensors(net, other_net)
        assert same_tensors(loop["slow"], other_loop["slow"])
    return whole, half, resumed


def states_after(exchange, parts, steps, saved=None):
    """Train one worker in these inner steps, from what it saved or from the start: the states of model and loop."""
    net = model()
    loop = outer(net, exchange, **parts)
    inner = torch.optim.SGD(net.parameters(), lr=0.1)
    if saved:
        for part, state in zip([net, loop], saved, strict=True):
            part.load_state_dict(state)
    for step in steps:
        inner_step(net, inner, exchange.rank, step)
        loop.after_inner_step(1)
    return copy.deepcopy([net.state_dict(), loop.evolved()])
