"""A worker whose exchange keeps no lockstep: nobody is waited for before the end, and one model comes out of it."""

from dataclasses import replace
from types import SimpleNamespace

import torch

from outerloop.exchange.inprocess_gossip import InProcessGossip
from outerloop.inner.worker import Worker
from outerloop.methods.noloco import NoLoCo
from outerloop.replica.rank_group import RankGroup
from tests.support import toy
from tests.support.toy_workers import PLAN, report


class Free(InProcessGossip):
    """Threads that are told that they need not wait for each other."""

    info = replace(InProcessGossip.info, lockstep=False)

    def __init__(self, *, hub, rank):
        super().__init__(hub=hub, rank=rank, group=2, seed=0)

    def counters(self):
        return {"solo_rounds": 2, "idle_s": 1.5}


def worker_of(exchange, events):
    outer = toy.outer(toy.model(), exchange, method=NoLoCo(alpha=0.5, beta=0.7, gamma=None, consensus="inside"))
    outer.replica.assign({name: torch.full_like(x, 1.0 + 2.0 * exchange.rank) for name, x in outer.slow.items()})
    trainer = SimpleNamespace(
        outer=outer,
        ranks=RankGroup(None),
        tokens=7,
        evaluate=lambda windows, weights, batch: float(next(iter(weights.values())).mean()),
    )
    return Worker(
        PLAN, trainer=trainer, outer=outer, exchange=exchange, validation=torch.zeros(1, 2), emit=events.append,
        check_stop=lambda: None,
    )  # fmt: skip


def told(work):
    """The events of each of two workers."""

    def life(exchange):
        events = []
        work(worker_of(exchange, events), exchange)
        return events

    return toy.run_workers(2, life, Free)


def test_it_begins_where_it_is_and_evaluates_its_own_replica():
    def work(worker, exchange):
        worker.trainer.outer.loop.inner_step = 10 * exchange.rank
        worker.agree_on_start()
        worker.evaluation.evaluate(round_number=3)

    for rank, (event,) in enumerate(told(work)):
        assert event["nats"] == 1.0 + 2.0 * rank and "spread" not in event


def test_the_last_evaluation_is_of_the_mean_and_says_of_how_many():
    def work(worker, exchange):
        worker.save = lambda: None
        worker.after_round(report(PLAN.rounds - 1, ""))
        worker.finish()
        assert {float(x.mean()) for x in worker.trainer.outer.slow.values()} == {2.0}

    for events in told(work):
        evaluated = [event for event in events if event["event"] == "eval"]
        assert [(event["round"], event["nats"]) for event in evaluated] == [(PLAN.rounds, 2.0)]
        assert (evaluated[0]["spread"], evaluated[0]["replicas"]) == (1.0, 2)
        assert any("mean of 2 of 2 replicas" in event.get("text", "") for event in events)


def test_counters_of_the_exchange_continue_after_a_restart():
    def work(worker, exchange):
        worker.totals.load_state_dict({"counters": {"solo_rounds": 3}})
        counters = worker.totals.counters()
        assert counters["solo_rounds"] == 5 and counters["idle_s"] == 1.5

    told(work)


def test_partners_are_told_by_name():
    def work(worker, exchange):
        worker.record(replace(report(0, ""), peers=("000", "001")))

    for rank, (event,) in enumerate(told(work)):
        assert event["partners"] == [f"00{1 - rank}"]
