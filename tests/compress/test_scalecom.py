"""ScaleCom: one leader in turn says where everyone sends, alike on all peers, through failures and restarts."""

import math
from typing import Any, NamedTuple

import pytest
import torch

from outerloop import wire
from outerloop.compress.by_size import BySize
from outerloop.compress.cast import Cast
from outerloop.compress.dct import Dct, dct_rows
from outerloop.compress.identity import Identity
from outerloop.compress.randomk import RandomK
from outerloop.compress.scalecom import ScaleCom
from outerloop.compress.sign import Sign
from outerloop.core.codec import UpdateCodec
from outerloop.core.round import RoundReport
from outerloop.exchange.inprocess import Hub, InProcess
from outerloop.exchange.inprocess_gossip import InProcessGossip
from outerloop.feedback.ef import ErrorFeedback
from outerloop.kernels.reference import pack_bits, topk_rows, unpack_bits
from outerloop.kernels.select import split_rows
from outerloop.methods.average import Average
from outerloop.schedule.every_h import EveryH
from outerloop.schedule.streaming import Streaming
from outerloop.types import CodecContext, UserError
from tests.support import toy
from tests.support.failing_exchange import Failing

CHUNK, K = 16, 4


def scalecom(values=None):
    return ScaleCom(chunk=CHUNK, k=K, values=values or Identity())


def packed(*positions, bits=2):
    return pack_bits(torch.tensor(positions), bits)


def kept(x):
    """How many values of a tensor are sent."""
    return sum(row.shape[0] * math.ceil(K * row.shape[1] / CHUNK) for row in split_rows(x.reshape(-1), CHUNK))


# --- the codec by hand ---


def test_by_hand():
    """Chunks of 4, k 1. Agreed on 0 and 2: sends 5 and 8; holds back 1, -3, 2 and 0, -7, 1: announces 2 and 1."""
    codec = ScaleCom(chunk=4, k=1, values=Identity())
    x = torch.tensor([5.0, 1.0, -3.0, 2.0, 0.0, -7.0, 8.0, 1.0])
    now = CodecContext(round=3, seed=5, agreed=packed(0, 2), leads=True)
    parts = codec.encode(x, now)
    assert parts["value"].tolist() == [5.0, 8.0]
    assert unpack_bits(parts["next"], 2, 2).tolist() == [2, 1]
    assert codec.decode(parts, x.shape, now).tolist() == [5.0, 0, 0, 0, 0, 0, 8.0, 0]


def test_the_rounding_error_of_a_sent_value_stays_in_the_residual():
    """Signs of 8 and 2 decode to 5 and -5: 3 each are missing, more than the other two have."""
    codec = ScaleCom(chunk=4, k=2, values=Sign(chunk=None))
    x = torch.tensor([8.0, 1.0, -2.0, 0.5])
    parts = codec.encode(x, CodecContext(round=3, seed=5, agreed=packed(0, 2), leads=True))
    assert unpack_bits(parts["next"], 2, 2).tolist() == [0, 2]


def test_without_an_agreement_it_is_random_k():
    now, x = CodecContext(round=0, seed=7), torch.randn(5, 13)
    random = RandomK(chunk=CHUNK, k=K, values=Identity())
    assert torch.equal(scalecom().decode(scalecom().encode(x, now), x.shape, now),
                       random.decode(random.encode(x, now), x.shape, now))  # fmt: skip


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 1000])
def test_bytes_are_the_values_and_of_a_leader_the_positions(count):
    """bfloat16 a kept value; 4 bits a position."""
    codec, x = scalecom(Cast(dtype="bfloat16")), torch.randn(count)
    for leads in (False, True):
        parts = codec.encode(x, CodecContext(round=3, seed=5, leads=leads))
        size = sum(len(wire.bytes_view(part)) for part in parts.values())
        assert size == 2 * kept(x) + leads * math.ceil(4 * kept(x) / 8)


@pytest.mark.parametrize("agreed", [False, True])
def test_parts_of_leader_and_followers_add_up_exactly(agreed):
    """ "next" is the leader's alone and goes beside the sum."""
    codec = scalecom()
    a, b = torch.randn(3, 77), torch.randn(3, 77)
    now = CodecContext(round=3, seed=5, leads=True)
    now = CodecContext(round=3, seed=5, leads=True, agreed=codec.encode(b, now)["next"] if agreed else None)
    then = CodecContext(round=3, seed=5, agreed=now.agreed)
    leader, follower = codec.encode(a, now), codec.encode(b, then)
    assert codec.linear and leader.keys() - follower.keys() == {"next"}
    added = {part: leader[part] + x for part, x in follower.items()} | {"next": leader["next"]}
    both = codec.decode(leader, a.shape, then) + codec.decode(follower, b.shape, then)
    assert torch.equal(codec.decode(added, a.shape, then), both)
    assert torch.equal(codec.decode(codec.encode(a + b, then), a.shape, then), both)


@pytest.mark.parametrize("positions", [[5, 5], [7, 3], [1, 3000], [1], [1, 2, 3]])
def test_bad_announcements_are_refused_when_they_come(positions):
    """And as an agreement, where they would be a mistake of ours."""
    codec, x = ScaleCom(chunk=3000, k=2, values=Identity()), torch.randn(3000)
    now, bad = CodecContext(round=3, seed=5), packed(*positions, bits=12)
    with pytest.raises(ValueError, match=r"ascend|cannot hold"):
        codec.decode(codec.encode(x, now) | {"next": bad}, x.shape, now)
    with pytest.raises(ValueError, match=r"ascend|cannot hold"):
        codec.encode(x, CodecContext(round=3, seed=5, agreed=bad))


@pytest.mark.parametrize(("chunk", "k"), [(1, 1), (65537, 1), (8, 0), (8, 9)])
def test_bad_settings_are_refused(chunk, k):
    with pytest.raises(UserError, match=r"scalecom .* must be"):
        ScaleCom(chunk=chunk, k=k, values=Identity())


# --- in the loop ---


class Seen(NamedTuple):
    """One round of one worker: its account, what its own payload decoded to, its residual afterwards, its loop."""

    report: RoundReport
    sent: dict[str, torch.Tensor]
    held: dict[str, torch.Tensor]
    loop: Any

    def places(self):
        """Where it sent, as a flat mask by name."""
        return {name: x.reshape(-1) != 0 for name, x in self.sent.items()}


class Noting(ErrorFeedback):
    """Error feedback that notes what was sent."""

    def __init__(self, *, beta):
        super().__init__(beta=beta)
        self.noted = {}

    def keep(self, name, x, sent):
        super().keep(name, x, sent)
        self.noted[name] = sent.clone()


def watched(exchange, *, rounds, compress=None, schedule=None, failing=()):
    """A toy worker to the end; what was to see of each round."""
    net, feedback = toy.model(), Noting(beta=0.9)
    parts = {"compress": compress or scalecom(), "schedule": schedule or EveryH(sync_every=2)}
    loop = toy.outer(net, Failing(exchange, set(failing)), feedback=feedback, **parts)
    inner, seen = torch.optim.SGD(net.parameters(), lr=0.1), []
    for step in range(loop.schedule.inner_steps(rounds)):
        feedback.noted = {}
        toy.inner_step(net, inner, exchange.rank, step)
        for report in loop.after_inner_step(4):
            seen.append(Seen(report, feedback.noted, feedback.residual.state_dict(), loop))
    return seen


def largest(x):
    """Where the k largest of each chunk are, as a flat mask."""
    rows = split_rows(x.reshape(-1), CHUNK)
    masks = [torch.zeros_like(r).scatter(1, topk_rows(r, math.ceil(K * r.shape[1] / CHUNK)), 1.0) for r in rows]
    return torch.cat([mask.view(-1) for mask in masks]).bool()


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_everyone_sends_what_is_largest_in_the_residual_of_the_leader_in_turn(workers):
    seen = toy.run_workers(workers, lambda e: watched(e, rounds=7))
    for number in range(1, 7):
        leader = seen[number % workers][number - 1]
        for worker in seen:
            for name, place in worker[number].places().items():
                assert torch.equal(place, largest(leader.held[name])), (number, name)
    assert len({worker[-1].loop.slow_hash for worker in seen}) == 1


def test_the_leader_of_the_next_round_pays_for_the_announcement():
    """Payloads of three workers over six rounds: one is longer, by 4 bits a position, 7 bytes a table entry, a name."""
    seen = toy.run_workers(3, lambda e: watched(e, rounds=6))
    for number in range(6):
        sizes = [worker[number].report.payload_bytes for worker in seen]
        assert sizes.index(max(sizes)) == (number + 1) % 3 and len(set(sizes)) == 2
        tensors = seen[0][number].sent.values()
        positions = sum(math.ceil(4 * kept(x) / 8) for x in tensors)
        assert max(sizes) - min(sizes) == positions + 7 * len(tensors) + len("\x04next")


def test_the_first_round_and_the_one_after_a_failed_one_are_drawn_from_the_seed():
    random, ones = RandomK(chunk=CHUNK, k=K, values=Identity()), torch.ones(49)
    for worker in toy.run_workers(2, lambda e: watched(e, rounds=7, failing={3})):
        assert [bool(seen.report.failed) for seen in worker] == [number == 3 for number in range(7)]
        for number in (0, 1, 2, 4, 5, 6):
            context = UpdateCodec(random, seed=0).context(number, "0.weight")
            drawn = random.decode(random.encode(ones, context), ones.shape, context).bool()
            assert torch.equal(worker[number].places()["0.weight"], drawn) == (number in (0, 4)), number


def test_small_tensors_go_their_own_way_and_nothing_is_agreed_on_them():
    codec = BySize(below=20, small=Cast(dtype="bfloat16"), large=scalecom())
    seen = toy.run_workers(2, lambda e: watched(e, rounds=4, compress=codec))
    for worker in seen:
        assert worker[-1].loop.codec.agreed.keys() == {"0.weight", "2.weight"}
        for name in ("0.weight", "2.weight"):
            assert torch.equal(worker[3].places()[name], largest(seen[1][2].held[name]))


def test_behind_a_cosine_transform_the_frequencies_are_agreed_on():
    codec = Dct(chunk=CHUNK, of=scalecom())
    seen = toy.run_workers(2, lambda e: watched(e, rounds=4, compress=codec))

    def frequencies(x):
        return torch.cat([dct_rows(row.double()).reshape(-1) for row in split_rows(x.reshape(-1), CHUNK)])

    for worker in seen:
        for name, x in worker[3].sent.items():
            agreed = largest(frequencies(seen[1][2].held[name]).float())
            assert frequencies(x)[~agreed].abs().max() < 1e-6, name


def test_fragments_that_land_late_agree_each_on_its_own():
    schedule = Streaming(sync_every=6, fragments=2, delay=2)
    seen = toy.run_workers(3, lambda e: watched(e, rounds=5, schedule=schedule))
    for worker in seen:
        for index, round in enumerate(worker[2:], start=2):
            leader = seen[round.report.round.number % 3][index - 2]
            assert leader.report.round.fragment == round.report.round.fragment
            for name, place in round.places().items():
                assert torch.equal(place, largest(leader.held[name])), round.report.round
    assert len({worker[-1].loop.slow_hash for worker in seen}) == 1


@pytest.mark.parametrize("delay", [0, 2])
@pytest.mark.parametrize("stop_at", [6, 7, 8])
def test_a_restart_goes_on_bit_for_bit(delay, stop_at):
    """Also between launch and landing, where the agreement still decodes the message that is on its way."""

    def parts():
        schedule, compress = EveryH(sync_every=3, delay=delay), scalecom(Cast(dtype="bfloat16"))
        return {"schedule": schedule, "compress": compress, "feedback": ErrorFeedback(beta=0.9)}

    whole, half, resumed = toy.restarted(parts, steps=17, stop_at=stop_at)
    assert half[0][1]["payload"]["agreed"].keys() == half[0][1]["slow"].keys()
    for (_, loop), (_, other) in zip(whole, resumed, strict=True):
        agreed, other_agreed = loop["payload"]["agreed"], other["payload"]["agreed"]
        assert agreed.keys() == loop["slow"].keys()
        assert all(torch.equal(word, other_agreed[name][1]) for name, (_, word) in agreed.items())


def test_an_agreement_holds_in_one_round_and_passes_through_a_checkpoint_file(tmp_path):
    torch.save({"agreed": {"w": (4, packed(0, 2))}}, tmp_path / "state.pt")
    payload = UpdateCodec(scalecom(), seed=0)
    payload.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert torch.equal(payload.context(4, "w").agreed, packed(0, 2))
    assert payload.context(3, "w").agreed is None and payload.context(5, "w").agreed is None


@pytest.mark.parametrize("said", [{}, {"next": packed(0, 3)}])
def test_only_the_word_of_the_leader_counts(said):
    """Two peers, round 0: peer 1 leads round 1. What peer 0 puts in is passed over, also when peer 1 says nothing."""
    payload = UpdateCodec(scalecom(), seed=0)

    def message(peer, parts):
        header = wire.Header(round=0, fragment=0, samples=1, schema=0, slow=0, peer=peer)
        return wire.Message(header, {"w": parts})

    payload.landed([message("000", {"next": packed(1, 1)}), message("001", said)], {"w": torch.zeros(8)})
    assert payload.context(1, "w").agreed is said.get("next")


def test_an_update_is_the_sent_part_plus_the_residual():
    """beta = 1 telescopes through drawn and agreed rounds, whoever leads."""
    codec, feedback, payload = scalecom(Cast(dtype="bfloat16")), ErrorFeedback(beta=1.0), {}
    put_in = total = torch.zeros(97, 101, dtype=torch.float64)
    for number in range(12):
        delta = torch.randn(97, 101)
        x = feedback.add("w", delta)
        now = CodecContext(round=number, seed=number, leads=number % 3 == 0, agreed=payload.get("next"))
        payload = codec.encode(x, now)
        decoded = codec.decode(payload, x.shape, now)
        feedback.keep("w", x, decoded)
        put_in, total = put_in + delta.double(), total + decoded.double()
    held = feedback.residual.get("w").double()
    assert torch.allclose(put_in, total + held, atol=1e-4, rtol=0)


def regression(exchange, codec):
    """Linear regression on 40 inputs of different loudness, one target for all workers; its loss before and after."""
    draw = torch.Generator().manual_seed(9)
    target, loudness = torch.randn(8, 40, generator=draw), torch.logspace(0, -2, 40)
    net = torch.nn.Linear(40, 8, bias=False)
    torch.nn.init.zeros_(net.weight)
    loop = toy.outer(net, exchange, h=4, compress=codec, feedback=ErrorFeedback(beta=0.9))
    inner = torch.optim.SGD(net.parameters(), lr=0.02)
    own = torch.Generator().manual_seed(exchange.rank)

    def loss():
        return float((((loop.slow["weight"] - target) * loudness) ** 2).sum())

    before = loss()
    for _ in range(40 * 4):
        x = torch.randn(16, 40, generator=own) * loudness
        inner.zero_grad()
        ((net(x) - x @ target.T) ** 2).sum(1).mean().backward()
        inner.step()
        loop.after_inner_step(16)
    return before, loss(), loop.slow_hash


@pytest.mark.long
def test_training_falls_and_falls_further_than_at_random_positions():
    """Three workers, forty rounds, 1 of 32 values a round."""
    result = {}
    for kind in (ScaleCom, RandomK):
        runs = toy.run_workers(3, lambda e, kind=kind: regression(e, kind(chunk=32, k=1, values=Identity())))
        assert len({slow for *_, slow in runs}) == 1
        result[kind] = runs[0][1] / runs[0][0]
    assert result[ScaleCom] < 0.2 and result[ScaleCom] < 0.5 * result[RandomK], result


# --- what it does not go with ---


def test_an_exchange_without_agreement_is_refused():
    gossip = InProcessGossip(hub=Hub(2), rank=0, group=2, seed=0)
    wrapped = BySize(below=64, small=Identity(), large=scalecom())
    for codec in (scalecom(), wrapped):
        with pytest.raises(UserError, match="set compress=randomk, or exchange=inprocess") as refused:
            toy.outer(toy.model(), gossip, method=Average(), compress=codec)
        assert "\n" not in str(refused.value)
    toy.outer(toy.model(), gossip, method=Average(), compress=RandomK(chunk=8, k=2, values=Identity()))


def test_a_codec_of_larger_tensors_than_those_of_the_trial_is_refused_too():
    """The trial has 8192 values, fewer than `below`. It tries both codecs."""
    gossip = InProcessGossip(hub=Hub(2), rank=0, group=2, seed=0)
    hidden = BySize(below=10_000, small=Identity(), large=scalecom())
    with pytest.raises(UserError, match="takes its positions from contributions that are equal on all peers"):
        toy.outer(toy.model(), gossip, method=Average(), compress=hidden)


def test_eager_updates_are_refused():
    exchange = InProcess(hub=Hub(2), rank=0)
    with pytest.raises(UserError, match=r"set compress=randomk, or eager=false schedule.delay=0"):
        toy.outer(
            toy.model(), exchange, compress=scalecom(), eager=True, schedule=EveryH(sync_every=3, delay=3),
        )  # fmt: skip
