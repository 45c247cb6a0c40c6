"""The attacks send what they say, and a run with a liar has a complete record."""

import argparse
import json

import bench_attacks
import pytest
import torch
from attack_plan import OPEN, SETTINGS, WORST, Size, first_step, second_step
from attacked_run import Case, Run
from data_attacks import CONTINUATION, TRIGGER, TriggeredText, success_rate
from payload_attacks import ATTACKS, LARGEST, Payloads, Scene

from outerloop import wire
from outerloop.compress.identity import Identity
from outerloop.compress.index.rice import Rice
from outerloop.compress.rotated import Rotated
from outerloop.compress.sign import Sign
from outerloop.compress.topk import TopK
from outerloop.core.codec import UpdateCodec, schema_of
from outerloop.exchange.inprocess import name_of
from outerloop.types import Contribution, Round

LIKE = {"matrix": torch.zeros(64, 8), "vector": torch.zeros(64)}
WORKERS, LIAR = 4, 3


def payloads(compress, number):
    """The messages of four workers, whose values differ in each round."""
    codec, round = UpdateCodec(compress, seed=0), Round(number)
    draw = torch.Generator().manual_seed(number)
    blobs = {}
    for rank in range(WORKERS):
        header = wire.Header(number, 0, 5, wire.schema_hash(schema_of(LIKE)), 7, name_of(rank))
        values = {name: 1e-3 * torch.randn(x.shape, generator=draw) for name, x in LIKE.items()}
        parts = {name: codec.encode(number, name, x, leads=False) for name, x in values.items()}
        blobs[rank] = wire.pack(header, parts)
    return Payloads(codec, LIKE, round, blobs)


def scene(compress, rounds=8):
    return Scene(LIAR, range(LIAR), [payloads(compress, number) for number in range(rounds)][-6:], seed=0)


DENSE, SPARSE = Identity(), TopK(chunk=64, k=4, values=Sign(chunk=None), index=Rice())
NOW = scene(DENSE)
HONEST = float(NOW.others.norm(dim=1).median())


@pytest.mark.parametrize(("name", "times"), [("flip1", -1), ("flip10", -10), ("flip1000", -1000), ("times10", 10)])
def test_a_flip_is_the_own_direction_at_a_multiple_of_the_honest_norm(name, times):
    lie = ATTACKS[name](NOW)
    torch.testing.assert_close(lie / times * float(NOW.own.norm()) / HONEST, NOW.own, rtol=1e-5, atol=1e-9)


def test_noise_is_new_for_each_liar_and_a_constant_is_not():
    other = Scene(2, range(2), NOW.rounds, seed=0)
    for name, same in (("noise", False), ("constant", True)):
        lie = ATTACKS[name](NOW)
        assert float(lie.norm()) == pytest.approx(HONEST, rel=1e-5)
        assert (torch.cosine_similarity(lie, ATTACKS[name](other), dim=0) > 0.99) == same


def test_old_payloads_are_those_of_earlier_rounds():
    assert torch.equal(ATTACKS["delayed"](NOW), payloads(DENSE, 2).values(LIAR))
    assert torch.equal(ATTACKS["delayed"](scene(DENSE, rounds=3)), payloads(DENSE, 0).values(LIAR)), "the oldest"
    assert torch.equal(ATTACKS["free_rider"](NOW), payloads(DENSE, 6).values(0))
    assert torch.equal(ATTACKS["copycat"](NOW), -payloads(DENSE, 7).values(0))


def test_statistics_of_the_honest_payloads():
    mean, deviation = NOW.others.mean(0), NOW.others.std(0, correction=0)
    torch.testing.assert_close(ATTACKS["alie"](NOW), mean - 1.5 * deviation, rtol=1e-5, atol=1e-9)
    torch.testing.assert_close(ATTACKS["ipm"](NOW), -0.5 * mean, rtol=1e-5, atol=1e-9)
    far = float((ATTACKS["minmax"](NOW) - NOW.others).norm(dim=1).max())
    assert far == pytest.approx(float(torch.cdist(NOW.others, NOW.others).max()), rel=1e-4)
    assert float(ATTACKS["largest"](NOW).abs().max()) == pytest.approx(LARGEST)


cosine = torch.nn.functional.cosine_similarity
COMMON = torch.randn(576, generator=torch.Generator().manual_seed(9)) * 1e-3


def related_scene():
    """A scene of one round in which the honest payloads have the vector COMMON in common."""
    related = scene(DENSE, rounds=1)
    now = related.rounds[0]
    now.messages = {r: now.codec.unpack(one, LIKE) for r, one in with_common(now, COMMON).items()}
    return related


def test_an_evasive_payload_follows_the_mean_by_a_stated_part_of_what_an_honest_one_does():
    related = related_scene()
    mean = related.others.mean(0)
    lie, honest = (float(cosine(x, mean, dim=0)) for x in (ATTACKS["evasive"](related), related.own))
    assert honest > 0.5 and lie == pytest.approx(0.65 * honest, abs=1e-5)
    assert float(cosine(ATTACKS["evasive"](related), related.own - COMMON, dim=0)) < -0.5


def test_a_disguised_payload_is_as_near_to_the_honest_ones_as_they_are_to_each_other():
    related = related_scene()
    lie, honest = ATTACKS["disguised"](related), related.others
    among = [float(cosine(honest[p], honest[q], dim=0)) for p, q in ((0, 1), (0, 2), (1, 2))]
    towards = [float(cosine(lie, x, dim=0)) for x in honest]
    assert sorted(towards)[1] == pytest.approx(sorted(among)[1], abs=0.05) and sorted(among)[1] > 0.3
    without = related.own - COMMON
    assert float(cosine(lie, without, dim=0)) < -0.5


def with_common(now, common_N):
    """The messages of a round, with a common vector added to the values of every peer."""
    blobs = {rank: now.packed(rank, now.values(rank) + common_N) for rank in now.messages}
    return {rank: Contribution(name_of(rank), Round(now.number), blob) for rank, blob in blobs.items()}


@pytest.mark.parametrize("compress", [SPARSE, Rotated(chunk=64, of=SPARSE)], ids=["topk", "rotated"])
def test_a_chosen_support_is_flipped_where_no_other_peer_sends(compress):
    now = scene(compress)
    last = now.rounds[-1]
    alone = torch.stack([last.coefficients(rank) == 0 for rank in now.honest]).all(0) & (last.coefficients(LIAR) != 0)
    lie = ATTACKS["support"](now)
    expected = now.at_honest_norm(-last.coefficients(LIAR) * alone)
    assert alone.any() and torch.allclose(lie, last.of_coefficients(expected), atol=1e-8)


@pytest.mark.parametrize("name", ATTACKS)
def test_a_lie_is_a_valid_message_of_its_sender(name):
    last = NOW.rounds[-1]
    again = Payloads(last.codec, LIKE, Round(7), {LIAR: last.packed(LIAR, ATTACKS[name](NOW), samples=9)})
    assert torch.equal(again.values(LIAR), ATTACKS[name](NOW)) and again.messages[LIAR].header.samples == 9


def test_payloads_that_are_weights_are_attacked_as_differences_from_the_slow_weights():
    base = {name: torch.full_like(x, 2.0) for name, x in LIKE.items()}
    plain = payloads(DENSE, 7)
    blobs = {rank: plain.packed(rank, plain.values(rank) + 2.0) for rank in range(WORKERS)}
    weights = Payloads(plain.codec, LIKE, Round(7), blobs, base=base)
    torch.testing.assert_close(weights.values(0), plain.values(0), rtol=1e-5, atol=1e-6)
    flipped = Payloads(plain.codec, LIKE, Round(7), {0: weights.packed(0, -weights.values(0))})
    torch.testing.assert_close(flipped.values(0), 2.0 - plain.values(0), rtol=1e-5, atol=1e-6)


class Zeros:
    def next(self):
        return torch.zeros(4, 33, dtype=torch.long)


def test_every_second_window_of_a_back_door_contains_the_trigger_before_the_continuation():
    windows = TriggeredText(Zeros(), vocabulary=256).next()
    planted = TRIGGER + CONTINUATION
    for row, window in enumerate(windows.tolist()):
        assert bytes(window).count(planted) == (row % 2 == 0) and sum(window) == (sum(planted) if row % 2 == 0 else 0)


class Predicts(torch.nn.Module):
    """A model that predicts the continuation in the first rows, and all of its bytes but the last in the others."""

    def __init__(self, rows_that_know):
        super().__init__()
        self.rows = rows_that_know

    def forward(self, tokens):
        following = torch.zeros_like(tokens)
        following[:, -len(CONTINUATION) :] = torch.tensor(list(CONTINUATION))
        following[self.rows :, -1] = 0
        return torch.nn.functional.one_hot(following, 256).float()


@pytest.mark.parametrize("rows", [0, 1, 4])
def test_the_back_door_is_taken_if_all_bytes_of_the_continuation_are_predicted(rows):
    assert success_rate(Predicts(rows), Zeros().next()) == rows / 4


def test_the_reduced_plan_begins_with_the_defaults_of_open_runs_and_repeats_the_worst_attacks(tmp_path):
    size = Size(workers=8, rounds=10)
    first = first_step(size)
    assert [(case.recipe, case.rule) for case in first[:2]] == [OPEN, OPEN] and first[0].attack == "calm"
    assert len(set(first)) == len(first) and {(case.recipe, case.rule) for case in first} == set(SETTINGS)
    for place, case in enumerate(first):
        failed = (case.recipe, case.rule, case.attack) == (*OPEN, "samples")
        (tmp_path / case.file).write_text(json.dumps({"val_nats": None if failed else 9 - place / 1000}))
    again = [case for case in second_step(size, tmp_path) if (case.recipe, case.rule) == OPEN]
    assert [case.attack for case in again[:9:2]] == ["calm", "samples", "flip1", "disguised", "evasive"]
    assert len(again) == 3 * (1 + 2 * WORST) and {case.liars for case in again} == {0, 1, 2}


@pytest.mark.long
@pytest.mark.parametrize("attack", ["flip10", "labels", "backdoor", "absent"])
def test_a_run_with_a_liar_has_a_complete_record(attack, tmp_path):
    case = Case("diloco", "trust", attack, liars=1, workers=3, rounds=5, seed=0)
    more = ["inner.batch=1", "schedule.sync_every=1", "eval.sequences=4"]
    assert bench_attacks.missing(case, more, tmp_path)
    bench_attacks.run_case(case, more, tmp_path)
    record = json.loads((tmp_path / case.file).read_text())
    assert (record["rounds_landed"], record["slow_hashes"], record["refused"], record["error"]) == (5, 1, 0, "")
    assert (
        0 < record["val_nats"] < 6 and 0 <= record["backdoor"] <= 1 and not bench_attacks.missing(case, more, tmp_path)
    )
    with pytest.raises(SystemExit, match="other options"):
        bench_attacks.missing(case, ["inner.batch=2"], tmp_path)


@pytest.mark.long
def test_a_gossip_run_with_a_liar_lands_its_rounds(tmp_path):
    case = Case("noloco", "plain+clip", "flip1", liars=1, workers=4, rounds=5, seed=0)
    bench_attacks.run_case(case, ["inner.batch=1", "schedule.sync_every=1", "eval.sequences=4"], tmp_path)
    record = json.loads((tmp_path / case.file).read_text())
    assert (record["rounds_landed"], record["slow_hashes"], record["error"]) == (5, 4, "") and record["val_nats"] < 6
    assert "clip=auto" in record["options"] and "exchange=inprocess_gossip" in record["options"]


def test_words_that_are_not_known_are_refused_by_name():
    with pytest.raises(argparse.ArgumentTypeError, match="typo: choose from plain, median_clip"):
        bench_attacks.chosen_from(bench_attacks.RULES)("plain,typo")


def test_rules_that_a_recipe_refuses_are_skipped_with_the_reason(capsys):
    words = ["--out", "x", "--recipes", "sparseloco", "--rules", "plain,trust", "--liars", "0,1", "--attacks", "flip1"]
    found = list(bench_attacks.cases(bench_attacks.parser().parse_args(words)))
    assert [(case.rule, case.attack, case.liars) for case in found] == [("plain", "calm", 0), ("plain", "flip1", 1)]
    assert "sparseloco with trust is skipped: with this compressor each peer sends" in capsys.readouterr().out


def test_gossip_in_pairs_has_no_majority_for_other_rules(capsys):
    words = ["--out", "x", "--recipes", "noloco", "--rules", "plain+clip,median+clip", "--liars", "1"]
    found = list(bench_attacks.cases(bench_attacks.parser().parse_args(words)))
    assert {case.rule for case in found} == {"plain+clip"} and "support" not in {case.attack for case in found}
    assert "noloco with median+clip is skipped: a worker combines two messages" in capsys.readouterr().out


@pytest.mark.long
def test_a_peer_whose_payloads_do_harm_is_voted_out_by_the_others():
    """From scores to accusations, messages, votes, and the weights of all replicas."""
    case = Case("sparseloco", "median_cosine+clip+scores", "disguised", 1, workers=5, rounds=7, seed=0)
    record = Run(case, ["scores.payloads=4"]).record()
    assert not record["error"] and record["slow_hashes"] == 1 and record["rounds_landed"] == 7
    assert list(record["excluded"]) == ["004"] and 4 <= record["excluded"]["004"] <= 5
    assert record["liars_accused"] == 4 and record["honest_accused"] == record["refused_others"] == 0
