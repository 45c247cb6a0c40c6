"""Rounds that are verified while inner steps continue land with the same bits as those that are verified at landing."""

import copy
import threading
from concurrent.futures import Future, wait
from dataclasses import replace

import pytest
import torch

import outerloop
from outerloop.core.verify import RoundVerifier
from outerloop.core.verify.early import EarlyVerifier
from outerloop.exchange.inprocess import InProcess
from outerloop.exchange.swarm import SwarmPending
from outerloop.schedule.every_h import EveryH
from outerloop.types import Contribution, RoundFailed
from tests.support import toy
from tests.support.late_peer import fused
from tests.support.tensors import same_tensors

PEERS, STEPS = 3, 18
CASES = {
    "fused": lambda: fused("sparseloco"),
    "carried": lambda: fused("sparseloco") | {"merge_local": "carry"},
    "unsent values stay": lambda: fused("local"),
    "clipped": lambda: fused("clipped") | {"clip": "median"},
}


class Arriving(SwarmPending):
    def wait(self, timeout_s):
        return self.future.result(timeout_s)


class Post:
    """Exchanges of several peers in one thread: a round arrives at all of them when the last one has sent its message.

    `change(blob, peer, round)` changes messages on their way; a message of None is lost.
    """

    info = replace(InProcess.info, concurrent=True, waits_for_all=False)

    def __init__(self, size, change=lambda blob, peer, round: blob):
        self.size, self.change, self.lock, self.sent, self.pending = size, change, threading.Lock(), {}, {}

    def of(self, rank):
        peer = copy.copy(self)
        peer.rank, peer.peer = rank, f"{rank:03d}"
        return peer

    def join(self, first=None):
        pass

    def start(self, blob, round):
        pending = Arriving(Future())
        with self.lock:
            self.pending.setdefault(round, []).append(pending)
            self.sent.setdefault(round, {})[self.peer] = self.change(blob, self.peer, round)
            whole = len(self.sent[round]) == self.size
        if whole:
            messages = [Contribution(p, round, b) for p, b in sorted(self.sent[round].items()) if b is not None]
            for one in self.pending[round]:
                one.future.set_result(messages)
        return pending

    def close(self):
        pass

    abort = close


@pytest.fixture
def verified_by(monkeypatch):
    """The name of the thread of each verification."""
    threads, verify_round = [], RoundVerifier.verify_round

    def named(self, *args):
        threads.append(threading.current_thread().name)
        return verify_round(self, *args)

    monkeypatch.setattr(RoundVerifier, "verify_round", named)
    return threads


def all_arrive(loops):
    """Wait until the round that was just launched is in flight everywhere, and has been verified if it can be."""
    for loop in loops:
        wait([pending.ready for pending in loop.launcher.pending.values()], 30)
    for loop in loops:
        loop.launcher.thread.submit(int).result(30)


def train(parts, *, post=None):
    """Train all peers in turn. Return the reports, the weights of the models and the slow weights of each."""
    post = post or Post(PEERS)
    nets = [toy.model(width=20) for _ in range(PEERS)]
    made = [{"schedule": EveryH(sync_every=4, delay=2)} | copy.deepcopy(parts()) for _ in nets]
    loops = [toy.outer(net, post.of(rank), **made[rank]) for rank, net in enumerate(nets)]
    draws, reports = [torch.Generator().manual_seed(rank) for rank in range(PEERS)], [[] for _ in nets]
    for _ in range(STEPS):
        for rank, loop in enumerate(loops):
            with torch.no_grad():
                for x in nets[rank].parameters():
                    x += 0.1 * torch.randn(x.shape, generator=draws[rank])
            reports[rank] += loop.after_inner_step(1)
        all_arrive(loops)
    return reports, [net.state_dict() for net in nets], [dict(loop.slow) for loop in loops]


def at_landing(monkeypatch):
    monkeypatch.setattr(EarlyVerifier, "expect", lambda self, round: None)


@pytest.mark.parametrize("case", CASES)
def test_the_same_bits(case, monkeypatch, verified_by):
    early = train(CASES[case])
    assert len(verified_by) == PEERS * 4 and {name.split("_")[0] for name in verified_by} == {"outerloop-launch"}
    verified_by.clear()
    at_landing(monkeypatch)
    late = train(CASES[case])
    assert len(verified_by) == PEERS * 4 and set(verified_by) == {threading.current_thread().name}
    for one, other in zip(early[0], late[0], strict=True):
        assert [(r.blob, r.slow_hash, r.peers) for r in one] == [(r.blob, r.slow_hash, r.peers) for r in other]
    for one, other in zip(early[1] + early[2], late[1] + late[2], strict=True):
        assert same_tensors(one, other)


def test_an_unusable_message_is_refused_and_the_others_land(monkeypatch, verified_by):
    def cut(blob, peer, round):
        return blob[:-9] if (peer, round.number) == ("001", 1) else blob

    early = train(CASES["fused"], post=Post(PEERS, cut))
    assert all("outerloop-launch" in name for name in verified_by)
    at_landing(monkeypatch)
    late = train(CASES["fused"], post=Post(PEERS, cut))
    for one, other in zip(early[0], late[0], strict=True):
        assert [report.refused for report in one] == [report.refused for report in other]
        assert ["001" in report.peers for report in one] == [True, False, True, True]
    assert all(same_tensors(one, other) for one, other in zip(early[2], late[2], strict=True))


def test_a_round_without_a_usable_message_fails_when_it_would_have_landed():
    reports, _, slow = train(CASES["fused"], post=Post(PEERS, lambda blob, peer, round: b"" if round.number else blob))
    assert [bool(report.failed) for report in reports[0]] == [False, True, True, True]
    assert all(same_tensors(slow[0], other) for other in slow)


def started():
    """One loop whose round 0 is in flight, and not verified: its exchange has not reported the arrival."""
    post = Post(1).of(0)
    loop = toy.outer(toy.model(width=20), post, schedule=EveryH(sync_every=4, delay=2), **fused("sparseloco"))
    future = Future()
    post.start = lambda blob, round: post.sent.setdefault(round, blob) and Arriving(future)
    for _ in range(4):
        loop.after_inner_step(1)
    [(round, pending)] = loop.launcher.pending.items()
    pending.ready.result(30)
    return loop, round, lambda: future.set_result([Contribution("000", round, post.sent[round])])


def test_messages_that_arrive_during_the_landing_are_verified_once(verified_by):
    loop, round, arrive = started()
    loop.loop.early.end()
    arrive()
    all_arrive([loop])
    assert not verified_by and not loop.loop.early.results
    reports = [report for _ in range(2) for report in loop.after_inner_step(1)]
    assert [report.round for report in reports] == [round] and verified_by == [threading.current_thread().name]


def test_the_result_of_another_round_is_dropped():
    loop, round, arrive = started()
    arrive()
    all_arrive([loop])
    early = loop.loop.early
    assert set(early.results) == {round}
    assert early.end(replace(round, number=round.number + 1)) is None and not early.results and not early.expected


@pytest.mark.parametrize("how", ["load", "take over"])
def test_another_state_ends_the_verification(how):
    loop, round, arrive = started()
    saved, content = copy.deepcopy(loop.evolved() | {"in_flight": []}), loop.shared_state.serialize()
    began, goes_on = threading.Event(), threading.Event()
    loop.loop.early.verifier.verify_round = lambda *args: began.set() or goes_on.wait(30)
    arrive()
    assert began.wait(30)
    threading.Timer(0.1, goes_on.set).start()
    loop.load_state_dict(saved) if how == "load" else loop.loop.take_over(round, content)
    assert goes_on.is_set() and not loop.loop.early.results


def test_a_failed_launch_or_round_is_not_verified():
    class Failing(Post):
        def start(self, blob, round):
            pending = Arriving(Future())
            pending.future.set_exception(RoundFailed("no peer"))
            return pending

    parts = fused("sparseloco") | {"schedule": EveryH(sync_every=4, delay=2)}
    loop = toy.outer(toy.model(width=20), Failing(1).of(0), **parts)
    reports = [report for _ in range(6) for report in loop.after_inner_step(1)]
    assert [report.failed for report in reports] == ["no peer"] and not loop.loop.early.results
    loop.launcher.send = lambda *args: 1 / 0
    with pytest.raises(ZeroDivisionError):
        for _ in range(4):
            loop.after_inner_step(1)
    assert not loop.loop.early.results


def test_dense_messages_are_verified_when_they_land(verified_by):
    train(dict)
    assert len(verified_by) == PEERS * 4 and set(verified_by) == {threading.current_thread().name}


@pytest.mark.parametrize("recipe", ["outerloop", "sparseloco"])
def test_with_these_recipes_most_models_decode_to_little(recipe):
    """As almost all of their values are in matrices. The other tensors are sent without top-k."""

    def work(exchange):
        net = torch.nn.Sequential(torch.nn.Embedding(256, 128), torch.nn.Linear(128, 512), torch.nn.Linear(512, 128))
        loop = outerloop.from_recipe(recipe, net, "schedule.delay=2", "merge_local=carry", exchange=exchange)
        vectors = [name for name, x in loop.slow.items() if x.ndim == 1]
        return loop.pipeline.decoded_is_small(loop.slow), loop.pipeline.decoded_is_small(vectors)

    assert toy.run_workers(1, work) == [(True, False)]
