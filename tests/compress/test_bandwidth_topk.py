"""compress=auto: the most that the network carries at a utilization, chosen by each peer alone."""

import pytest
import torch

from outerloop import wire
from outerloop.compress.bandwidth_topk import AdjustableTopK, BandwidthTopK
from outerloop.compress.cast import Cast
from outerloop.compress.identity import Identity
from outerloop.compress.index.rice import Rice
from outerloop.config import instantiate, load, part_checks
from outerloop.core.round import RoundCostMeter
from outerloop.feedback.ef import ErrorFeedback
from outerloop.types import CodecContext, RoundCost, UserError
from tests.support import toy

NOW = CodecContext(round=0, seed=1)


def auto(k_min=2, k_max=16, chunk=32, below=4):
    large = AdjustableTopK(chunk=chunk, k_min=k_min, k_max=k_max, values=Identity(), index=Rice())
    return BandwidthTopK(utilization=0.8, below=below, small=Cast(dtype="bfloat16"), large=large)


def cost(transfer_s, *, compute_s=36.0, codec_s=1.0, hidden_s=0.0):
    """At u = .8: 36 s of inner steps leave 9 s, one of which is the codec's: 8 s for payloads."""
    return RoundCost(
        compute_s=compute_s, codec_s=codec_s, hidden_s=hidden_s, transfer_s=transfer_s, bytes_sent=10_000_000
    )


def test_it_goes_by_seconds_by_hand():
    """s = .5 at k = 2. Up to 4 (2 s, limit 8 · .8), to 8 (s still .5: 4 s), not to 16 (8 s is more than 6.4)."""
    one, chosen = auto(), []
    for transfer_s in (1.0, 2.0, 4.0):
        one.observe(cost(transfer_s))
        chosen.append(one.topk.k)
    assert chosen == [4, 8, 8]
    assert one.observe(cost(8.0)) == "" and one.topk.k == 8  # s = (.5 + 1) / 2 = .75: 6 s of 8
    assert one.observe(cost(12.0)).startswith("compress: k 8 -> 4 per chunk")  # s = (.75 + 1.5) / 2: 9 s of 8
    assert one.seconds_per_k == 1.125


def test_it_comes_down_at_once():
    one = auto()
    one.load_state_dict({"step": 3, "seconds_per_k": 0.1})
    why = one.observe(cost(16 * 5.9))  # s = 3 : k = 2 takes 6 s, k = 4 would take 12
    assert one.topk.k == 2 and "k 16 -> 2" in why and "10 MB took 94.4 s (0.847 Mbit/s)" in why
    assert "with 36 s of inner steps, the limit at utilization 0.8 is 8 s" in why


def test_transfer_hidden_by_a_delay_is_free_and_codec_time_is_not():
    at = lambda **changes: auto().limit_s(cost(0.0, **changes))  # noqa: E731
    assert at() == pytest.approx(8.0) and at(hidden_s=5.0) == pytest.approx(13.0)
    assert at(codec_s=20.0, hidden_s=5.0) == pytest.approx(5.0)


def test_bounds_hold_at_both_ends():
    one = auto(k_min=3, k_max=10)
    for _ in range(5):
        one.observe(cost(0.0))
    assert one.topk.k == 10
    assert "took 0 s; with" in auto().observe(cost(0.0))
    one.observe(cost(1e9))
    assert one.topk.k == 3 and one.observe(cost(1e9)) == ""


def test_a_payload_is_read_by_who_has_chosen_otherwise():
    sender, reader, x = auto(), auto(), torch.randn(3, 50)
    sender.observe(cost(0.0))
    assert sender.topk.k != reader.topk.k
    there = reader.decode(sender.encode(x, NOW), x.shape, NOW)
    assert torch.equal(there, sender.decode(sender.encode(x, NOW), x.shape, NOW))
    assert int((there != 0).sum()) == 4 * 4 + 3  # four chunks of 32, and 22 values that keep the same share, rounded up


@pytest.mark.parametrize("utilization", [0, 1, -0.1, 1.5])
def test_utilization_is_a_share(utilization):
    with pytest.raises(UserError, match=r"set compress.utilization=0.95"):
        instantiate.make(load.compose_config(["compress=auto", f"compress.utilization={utilization}"]).compress)


@pytest.mark.long
def test_a_collective_cannot_tell_how_long_payloads_take():
    settings = load.compose_config(["recipe=sparseloco", "compress=auto", "exchange=distributed"])
    with pytest.raises(UserError, match="waiting for late peers: set compress=topk, or exchange=swarm_gather"):
        part_checks.check_parts(settings)


def test_the_meter_leaves_out_what_is_no_inner_step(monkeypatch):
    """Steps of 2, 2, 90 (an evaluation) and 2 s, 5 s of the outer loop between them: four medians, counted once."""
    now = [0.0]
    monkeypatch.setattr("outerloop.core.round.time.perf_counter", lambda: now[0])

    class Counts:
        transfer_s, bytes_sent, bytes_received = 0.5, 100, 0

    meter = RoundCostMeter(Counts(), delay=3, step_s=0.0)
    for step_s in (2.0, 2.0, 90.0, 2.0, 0.0):
        with meter.between_steps():
            now[0] += 5.0
        now[0] += step_s
    assert meter.cost(0.25) == RoundCost(compute_s=8.0, codec_s=0.25, hidden_s=6.0, transfer_s=0.5, bytes_sent=100)
    assert meter.cost(0.0) == RoundCost(compute_s=0.0, codec_s=0.0, hidden_s=0.0, transfer_s=0.0, bytes_sent=0)


class Link(toy.Around):
    """An exchange whose payloads are on their way for so many seconds a byte."""

    seconds_per_byte = 0.0

    @property
    def transfer_s(self):
        return self.seconds_per_byte * self.inner.bytes_sent


def test_peers_choose_alone_and_stay_equal():
    """No time a byte: up to the most. An hour a byte: down to the least. Both land the same."""

    def work(exchange):
        link = Link(exchange)
        compress = auto(k_min=1, k_max=8, chunk=8)
        compress.load_state_dict({"step": 1, "seconds_per_k": None})
        link.seconds_per_byte = 3600.0 * exchange.rank
        net = toy.model()
        loop = toy.outer(net, link, compress=compress, feedback=ErrorFeedback(beta=1.0), h=2)
        inner, reports = torch.optim.SGD(net.parameters(), lr=0.1), []
        for step in range(10):
            toy.inner_step(net, inner, exchange.rank, step)
            reports += loop.after_inner_step(1)
        steps = [int(wire.read(report.blob)[1][0]["step"]) for report in reports]
        return steps, [report.notes for report in reports], [report.slow_hash for report in reports]

    (free, told, hashes), (dear, dear_told, dear_hashes) = toy.run_workers(2, work)
    assert free == [1, 2, 3, 3, 3] and dear == [1, 0, 0, 0, 0]
    assert [len(notes) for notes in told] == [1, 1, 0, 0, 0] and [len(notes) for notes in dear_told] == [1, 0, 0, 0, 0]
    assert hashes == dear_hashes


def test_a_restart_gives_the_same_choice():
    parts = lambda: {"compress": auto(k_min=1, k_max=8, chunk=8), "feedback": ErrorFeedback(beta=1.0)}  # noqa: E731
    whole, half, resumed = toy.restarted(parts, steps=9, stop_at=5)
    assert half[0][1]["choosing"]["step"] == 1
    assert whole[0][1]["choosing"] == resumed[0][1]["choosing"] == {"step": 3, "seconds_per_k": 0.0}
