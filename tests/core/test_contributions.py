"""What each peer has contributed: counted once for each landed round, equal everywhere, never more than is allowed."""

import copy
import random

import pytest
import torch

from outerloop.aggregate.norm_screen import MAX_SAMPLES
from outerloop.core.ledger import MAX_BYTES, MAX_CONTRIBUTORS, OTHERS, ContributionLedger
from outerloop.methods.noloco import NoLoCo
from outerloop.schedule.streaming import Streaming
from outerloop.state import canonical
from outerloop.state.checkpoint import load, save
from outerloop.types import Contribution, Contributor, Round
from tests.support import toy
from tests.support.decided_rounds import Decided, loop_of


def ledger(*rounds, **options):
    out = ContributionLedger(**options)
    for number, claims in enumerate(rounds):
        out.add(Round(number), claims)
    return out


def test_rounds_and_samples_are_added_up_for_each_peer():
    counts = ledger({"000-a": 8, "001-b": 8}, {"001-b": 8}, {"000-a": 16, "001-b": 8})
    assert counts.contributors() == (Contributor("a", 2, 24, 0, 2), Contributor("b", 3, 24, 0, 2))


def test_one_key_has_one_entry_whatever_worker_index_it_takes():
    assert ledger({"000-a": 8}, {"007-a": 8}).contributors() == (Contributor("a", 2, 16, 0, 1),)


def test_a_claim_counts_up_to_four_times_the_median_of_the_round():
    """The lower median of 8, 8, 10 is 8, that of 8 and 2^62 is 8 as well; claims of 0 are not in the median."""
    assert ledger({"a": 8, "b": 8, "c": 1 << 62}).by_peer["c"].samples == 32
    assert ledger({"a": 8, "c": 1 << 62}).by_peer["c"].samples == 32
    assert ledger({"a": 0, "b": 0, "c": 8}).by_peer["c"].samples == 8
    assert ledger({"a": 0}).contributors() == (Contributor("a", 1, 0, 0, 0),)


def test_a_claim_counts_up_to_four_rounds_of_the_settings_also_if_most_lie():
    assert ledger({"a": 1 << 50}, samples_per_round=10).by_peer["a"].samples == 40
    assert ledger({"a": 1 << 50}).by_peer["a"].samples == MAX_SAMPLES
    assert ledger({"a": 30}, samples_per_round=10).by_peer["a"].samples == 30, "after two rounds without this peer"


def test_of_several_fragments_only_the_first_is_counted():
    counts = ContributionLedger()
    for number in range(3):
        for fragment in range(4):
            counts.add(Round(number, fragment), {"a": 8})
    assert counts.contributors() == (Contributor("a", 3, 24, 0, 2),)


def test_a_saved_ledger_continues_as_if_it_had_not_been_saved(tmp_path):
    rounds = [{"a": 8, "b": 8}, {"b": 8, "c": 8}, {"a": 8}]
    resumed = ContributionLedger()
    save(tmp_path, 3, 0, {"ledger": ledger(*rounds[:2]).state_dict()})
    resumed.load_state_dict(load(tmp_path, 3, 0)["ledger"])
    resumed.add(Round(2), rounds[2])
    assert resumed.state_dict() == ledger(*rounds).state_dict()
    resumed.load_state_dict({})
    assert resumed.contributors() == (), "an older run has no counts"


def test_beyond_the_limit_the_smallest_are_merged_and_all_still_adds_up(monkeypatch):
    monkeypatch.setattr("outerloop.core.ledger.MAX_CONTRIBUTORS", 3)
    counts = ledger({"a": 8}, {"b": 16}, {"c": 32}, {"d": 8}, {"e": 8}, {"a": 8})
    assert sorted(counts.by_peer) == ["", "a", "b", "c"]
    assert counts.by_peer["a"] == Contributor("a", 1, 8, 5, 5), "merged before, so it starts again"
    assert counts.by_peer[OTHERS] == Contributor("", 3, 24, 0, 4)
    assert sum(one.rounds for one in counts.contributors()) == 6
    assert sum(one.samples for one in counts.contributors()) == 80


def test_of_equally_small_counts_the_one_that_is_longest_out_of_date_is_merged(monkeypatch):
    monkeypatch.setattr("outerloop.core.ledger.MAX_CONTRIBUTORS", 2)
    assert sorted(ledger({"z": 8}, {"a": 8}, {"k": 8}).by_peer) == ["", "a", "k"]


def test_a_full_ledger_fits_in_its_part_of_a_state():
    most = [1 << 62] * 4
    peers = {f"12D3KooW{number:044d}": most for number in range(MAX_CONTRIBUTORS)}
    full = ContributionLedger()
    full.load_state_dict({"peers": {**peers, OTHERS: most}})
    assert len(full.contributors()) == MAX_CONTRIBUTORS + 1
    assert len(canonical.pack(full.state_dict())) <= MAX_BYTES
    with pytest.raises(ValueError, match="at most 4096 peer ids"):
        full.load_state_dict({"peers": {**peers, "one more": most}})


def land(loop, number, contributions_):
    """Land a round that was decided elsewhere, with these contributions."""
    flight = loop.launcher.launch_blocking(Round(number))
    flight.pending.wait(0).extend(contributions_)
    loop.in_flight[Round(number)] = flight
    loop.loop.land(Round(number))
    report = loop.loop.reports.pop()
    assert not report.failed, report.failed


class Named(Decided):
    """A peer with a name of its own, of a run whose rounds are decided elsewhere; it keeps what is published."""

    def __init__(self, peer="000-a"):
        super().__init__()
        self.peer, self.published = peer, []

    def publish_contributors(self, round, contributors):
        self.published.append((round, contributors))

    def public_names(self):
        return {}


def contribution(peer, number, samples, to=None):
    """A peer's own message for a round after some steps, with a claim of so many samples.

    to: a replica that has landed the rounds before; the sender has its weights.
    """
    kind = "momentum" if to and to.method.momentum else "plain"
    loop, draw = loop_of(kind, exchange=Named(peer)), torch.Generator().manual_seed(number)
    if to:
        loop.shared_state.restore(to.shared_state.serialize())
    with torch.no_grad():
        for p in loop.model.parameters():
            p += 0.1 * torch.randn(p.shape, generator=draw)
    loop.launcher.add_samples(samples)
    return Contribution(peer, Round(number), loop.launcher.launch_blocking(Round(number)).blob)


def test_a_peer_that_names_another_in_its_message_gets_no_credit_and_gives_none():
    """The exchange names the peer that signed; a message that names another one is left out."""
    loop = loop_of("plain", exchange=Named())
    forged = Contribution("001-b", Round(0), contribution("002-c", 0, 8).blob)
    land(loop, 0, [contribution("000-a", 0, 8), forged])
    assert loop.ledger.contributors() == (Contributor("a", 1, 8, 0, 0),)


def test_what_has_landed_is_published_with_each_round():
    loop = loop_of("plain", exchange=Named())
    land(loop, 0, [contribution("000-a", 0, 8), contribution("001-b", 0, 8)])
    land(loop, 1, [contribution("001-b", 1, 8, to=loop)])
    assert loop.exchange.published == [
        (Round(0), (Contributor("a", 1, 8, 0, 0), Contributor("b", 1, 8, 0, 0))),
        (Round(1), (Contributor("a", 1, 8, 0, 0), Contributor("b", 2, 16, 0, 1))),
    ]


def test_after_churn_all_states_are_equal_bytes_with_equal_counts():
    """Twelve rounds with random participants; one peer lands all of them, one crashes after a landing and lands the
    rounds after its checkpoint again, one joins late with the state of another."""
    draw = random.Random(0)
    names = [f"{index:03d}-{letter}" for index, letter in enumerate("abcde")]
    whole, saved, rounds = loop_of("momentum", exchange=Named()), {}, []
    for number in range(12):
        there = [name for name in names if draw.random() < 0.7]
        rounds.append([contribution(name, number, 8, to=whole) for name in there])
        land(whole, number, rounds[number])
        saved[number] = copy.deepcopy(whole.state_dict()), whole.shared_state.serialize()
    crashed = loop_of("momentum", exchange=Named("003-d"))
    for number in range(7):
        land(crashed, number, rounds[number])
    crashed = loop_of("momentum", exchange=Named("003-d"))
    crashed.load_state_dict(saved[4][0])
    late = loop_of("momentum", seed=5, exchange=Named("004-e"))
    late.loop.take_over(Round(4), saved[4][1])
    for number in range(5, 12):
        land(crashed, number, rounds[number])
        land(late, number, rounds[number])
    assert whole.shared_state.serialize() == crashed.shared_state.serialize() == late.shared_state.serialize()
    counted = {name.partition("-")[2]: sum(name == c.peer for round in rounds for c in round) for name in names}
    assert {one.peer: one.rounds for one in late.ledger.contributors()} == counted and all(counted.values())
    assert {one.peer: one.samples for one in late.ledger.contributors()} == {k: 8 * n for k, n in counted.items()}


def test_workers_of_one_run_count_what_each_has_sent():
    def work(exchange):
        loop = toy.outer(toy.model(), exchange, h=2)
        for _ in range(4):
            loop.after_inner_step(4)
        return loop.ledger.contributors()

    assert toy.run_workers(2, work) == 2 * [(Contributor("000", 2, 16, 0, 1), Contributor("001", 2, 16, 0, 1))]


def test_with_fragments_each_sample_is_credited_once():
    def work(exchange):
        loop = toy.outer(toy.model(), exchange, schedule=Streaming(sync_every=4, fragments=2, delay=0))
        for _ in range(8):
            loop.after_inner_step(3)
        return [one.samples for one in loop.ledger.contributors()], loop.samples

    for credited, waiting in toy.run_workers(2, work):
        assert credited[0] == credited[1] <= 8 * 3 and 8 * 3 - credited[0] <= waiting


def test_gossip_counts_nothing():
    """No two peers land the same rounds, so no count could be agreed on."""

    def work(exchange):
        noloco = NoLoCo(alpha=0.5, beta=0.7, gamma=None, consensus="inside")
        loop = toy.outer(toy.model(), exchange, h=2, method=noloco)
        for _ in range(4):
            loop.after_inner_step(4)
        return loop.ledger, loop.evolved()["contributions"]

    assert toy.run_workers(2, work, make=toy.gossip) == [(None, {}), (None, {})]


def test_a_checkpoint_has_the_counts_and_the_weights_of_the_same_round(tmp_path):
    loop = loop_of("plain", exchange=Named())
    land(loop, 0, [contribution("000-a", 0, 8)])
    save(tmp_path, 3, 0, {"outer": loop.evolved()})
    last = contribution("001-b", 1, 8, to=loop)
    land(loop, 1, [last])
    resumed = loop_of("plain", exchange=Named())
    resumed.load_state_dict(load(tmp_path, 3, 0)["outer"])
    assert resumed.ledger.contributors() == (Contributor("a", 1, 8, 0, 0),)
    assert not all(torch.equal(resumed.slow[name], x) for name, x in loop.slow.items())
    land(resumed, 1, [last])
    assert resumed.shared_state.serialize() == loop.shared_state.serialize()
    older = {name: part for name, part in loop.state_dict().items() if name != "contributions"}
    resumed.load_state_dict(older)
    assert resumed.ledger.contributors() == ()


def test_a_state_of_an_older_run_has_no_counts():
    loop = loop_of("plain", exchange=Named())
    land(loop, 0, [contribution("000-a", 0, 8)])
    older = canonical.unpack(loop.shared_state.serialize())
    del older["contributions"]
    loop.shared_state.restore(canonical.pack(older))
    assert loop.ledger.contributors() == ()
