"""A toy run: small linear models, workers as threads, every part of the outer loop real."""

import threading
from collections.abc import Callable

import torch
from torch import nn

from outerloop.aggregate.mean import Mean
from outerloop.compress.identity import Identity
from outerloop.exchange.inprocess import Hub, InProcess
from outerloop.feedback.none import NoFeedback
from outerloop.loop import OuterLoop
from outerloop.methods.outer_optimizer import OuterOptimizer
from outerloop.schedule.every_h import EveryH
from outerloop.types import Stopped


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


def inner_step(net, optimizer, worker, step):
    """One inner step on data that depends on worker and step alone."""
    draw = torch.Generator().manual_seed(1000 * worker + step)
    x, y = torch.randn(4, 7, generator=draw), torch.randn(4, 3, generator=draw)
    optimizer.zero_grad()
    ((net(x) - y) ** 2).mean().backward()
    optimizer.step()


def run_workers(size: int, work: Callable[[InProcess], object]) -> list:
    """Call `work(exchange)` in one thread a worker; their results in order. A failing worker fails the test."""
    hub, results, errors = Hub(size), [None] * size, []

    def live(rank):
        exchange = InProcess(hub=hub, rank=rank)
        try:
            exchange.join()
            results[rank] = work(exchange)
        except (Exception, Stopped) as error:
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
