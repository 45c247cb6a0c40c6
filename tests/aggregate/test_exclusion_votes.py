"""Payloads of peers that most others accuse do not count, on all replicas alike."""

import pytest
import torch

from outerloop import wire
from outerloop.aggregate.exclusion_votes import ACCUSED, MAX_ACCUSED, ExclusionVotes, decode, encode, hash_of, voted_out
from outerloop.exchange.inprocess import InProcess
from outerloop.exchange.inprocess_gossip import InProcessGossip
from outerloop.feedback.ef import ErrorFeedback
from outerloop.types import UserError
from tests.support import toy
from tests.support.tensors import same_tensors

WORKERS = 5


def lists(**accused):
    """Lists of accused peers by sender, as messages contain them."""
    return {peer: {hash_of(other) for other in others} for peer, others in accused.items()}


@pytest.mark.parametrize(
    ("accused", "left_out"),
    [
        ({"a": "e", "b": "e", "c": "e", "d": "", "e": ""}, {"e"}),
        ({"a": "e", "b": "e", "c": "", "d": "", "e": ""}, set()),  # 2 of the 4 others
        ({"a": "e", "b": "e", "c": "", "d": "", "e": "abcd"}, set()),
        ({"a": "e", "b": "e", "c": "", "d": "", "e": "e"}, set()),  # its own vote against itself does not count
        ({"a": "de", "b": "de", "c": "de", "d": "", "e": ""}, {"d", "e"}),
        ({"a": "c", "b": "", "c": ""}, set()),  # one vote of two others
        ({"a": "b", "b": ""}, set()),  # all the votes of the others, but only one
        ({"a": "bc", "b": "ac", "c": "ab"}, set()),  # everyone would be left out
        ({"a": "z", "b": "z", "c": "z"}, set()),  # a peer without a message in this round
    ],
)
def test_a_peer_is_left_out_if_more_than_half_of_the_others_accuse_it(accused, left_out):
    assert set(voted_out(lists(**accused))) == left_out


def test_the_reason_states_the_votes():
    assert voted_out(lists(a="e", b="e", c="e", d="", e="")) == {"e": "e: 3 of the 4 other peers accuse it (scores)"}


def test_a_list_is_the_same_after_packing_and_is_cut_to_its_limit():
    peers = [f"{rank:03d}-peer{rank}" for rank in range(MAX_ACCUSED + 5)]
    assert decode({"ids": encode(peers[:3])}) == {hash_of(peer) for peer in peers[:3]}
    assert decode({"ids": encode(peers)}) == {hash_of(peer) for peer in peers[-MAX_ACCUSED:]}
    assert decode({"ids": encode([])}) == set()
    assert hash_of("000-peer") == hash_of("017-peer")  # the rank of a peer may change


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"ids": torch.zeros(2, 8)},
        {"ids": torch.zeros(8, dtype=torch.uint8)},
        {"ids": torch.zeros(2, 7, dtype=torch.uint8)},
        {"ids": torch.zeros(MAX_ACCUSED + 1, 8, dtype=torch.uint8)},
        {"ids": torch.zeros(2, 8, dtype=torch.uint8)},
        {"ids": torch.tensor([[1] * 8, [0] * 8], dtype=torch.uint8)},
        {"ids": torch.zeros(1, 8, dtype=torch.uint8), "next": torch.zeros(1)},
    ],
)
def test_malformed_lists_are_refused(parts):
    with pytest.raises(ValueError, match=r"its list of accused peers|it accuses 65 peers, more than 64"):
        decode(parts)


def test_who_accuses_whom():
    votes, messages = ExclusionVotes(on=True, agrees=True), []
    for peer, accused in {"000-a": ["001-b", "009-z"], "001-b": [], "002-c": ["001-b", "000-a"]}.items():
        header = wire.Header(round=0, fragment=0, samples=1, schema=0, slow=0, peer=peer)
        messages.append(wire.Message(header, {ACCUSED: {"ids": encode(accused)}}))
    assert votes.accusers(messages) == {"001-b": {"000-a", "002-c"}, "000-a": {"002-c"}}
    assert ExclusionVotes(on=False, agrees=True).accusers(messages) == {}


def train(exchange, *, accusers=(), since=2, rounds=3, forge=None):
    """Train, and return the reports of all rounds and the loop.

    From inner step `since` on, the workers in `accusers` accuse worker 004. `forge`: changes the votes of worker 000.
    """
    parts = {"feedback": ErrorFeedback(beta=0.9), "exclude_accused": True}
    loop = toy.outer(toy.model(), exchange, h=2, **parts)
    inner, reports = torch.optim.SGD(loop.model.parameters(), lr=0.1), []
    for step in range(2 * rounds):
        if step == since and exchange.rank in accusers:
            loop.votes.accused = ["004"]
        if forge and exchange.rank == step == 0:
            forge(loop.votes)
        toy.inner_step(loop.model, inner, exchange.rank, step)
        reports += loop.after_inner_step(4)
    return reports, loop


def test_all_replicas_leave_the_same_payload_out():
    """Each worker decodes and counts for itself."""
    found = toy.run_workers(WORKERS, lambda exchange: train(toy.Around(exchange), accusers=(0, 1, 3)))
    for reports, loop in found:
        assert [len(report.peers) for report in reports] == [5, 4, 4]
        assert [report.refused for report in reports[1:]] == [("004: 3 of the 4 other peers accuse it (scores)",)] * 2
        assert same_tensors(loop.slow, found[0][1].slow)
        assert loop.samples == 0  # what a peer has learned while it was left out does not count later
        assert all(torch.equal(loop.slow[name], p) for name, p in loop.island.params.items())
    assert len({reports[-1].slow_hash for reports, _ in found}) == 1


def test_the_other_payloads_count_as_if_there_were_no_other():
    five = toy.run_workers(WORKERS, lambda exchange: train(exchange, accusers=(0, 1, 2, 3), since=0))
    four = toy.run_workers(4, train)
    assert [report.peers for report in five[0][0]] == [("000", "001", "002", "003")] * 3
    assert same_tensors(five[0][1].slow, four[0][1].slow)
    assert same_tensors(five[4][1].slow, four[0][1].slow)


def test_half_of_the_others_are_too_few():
    for reports, _ in toy.run_workers(WORKERS, lambda exchange: train(exchange, accusers=(0, 1))):
        assert [len(report.peers) for report in reports] == [5, 5, 5]


@pytest.mark.parametrize("part", ["ids", "next"])
def test_a_malformed_list_leaves_its_sender_out(part):
    """Also one with the part from which a compressor takes what all peers use in the next round."""

    def forge(votes):
        table = votes.parts()[ACCUSED]
        votes.parts = lambda: {ACCUSED: table | {part: torch.zeros(3)}}

    for reports, _ in toy.run_workers(3, lambda exchange: train(exchange, forge=forge, rounds=1)):
        assert reports[0].peers == ("001", "002")
        assert reports[0].refused == ("000: its list of accused peers is not a table of hashes",)


def test_messages_are_unchanged_unless_peers_vote():
    """So the default does not change the payloads of older runs."""

    def blob(exchange, **options):
        loop = toy.outer(toy.model(), exchange, h=1, **options)
        toy.inner_step(loop.model, torch.optim.SGD(loop.model.parameters(), lr=0.1), exchange.rank, 0)
        return loop.after_inner_step(4)[0].blob

    [off], [on] = (
        toy.run_workers(1, lambda exchange, on=on: blob(exchange, exclude_accused=on)) for on in (False, True)
    )
    parameters = len(list(toy.model().parameters()))
    assert (len(wire.read(off)[1]), len(wire.read(on)[1])) == (parameters, parameters + 1)


def test_gossip_has_no_votes():
    assert InProcess.info.agrees and not InProcessGossip.info.agrees
    with pytest.raises(UserError, match="exclude_accused=true needs peers that land the same messages"):
        ExclusionVotes(on=True, agrees=False)
