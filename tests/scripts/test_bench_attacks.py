"""The attacks send what they say, and a run with a liar has a complete record."""

import argparse
import json

import bench_attacks
import pytest
import torch
from attacked_run import Case
from payload_attacks import ATTACKS, LARGEST, Payloads, Scene

from outerloop import wire
from outerloop.compress.identity import Identity
from outerloop.compress.index.rice import Rice
from outerloop.compress.rotated import Rotated
from outerloop.compress.sign import Sign
from outerloop.compress.topk import TopK
from outerloop.core.codec import UpdateCodec, schema_of
from outerloop.exchange.inprocess import name_of
from outerloop.types import Round

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


@pytest.mark.long
@pytest.mark.parametrize("attack", ["flip10", "labels", "absent"])
def test_a_run_with_a_liar_has_a_complete_record(attack, tmp_path):
    case = Case("diloco", "trust", attack, liars=1, workers=3, rounds=5, seed=0)
    more = ["inner.batch=1", "schedule.sync_every=1", "eval.sequences=4"]
    assert bench_attacks.missing(case, more, tmp_path)
    bench_attacks.run_case(case, more, tmp_path)
    record = json.loads((tmp_path / case.file).read_text())
    assert (record["rounds_landed"], record["slow_hashes"], record["refused"], record["error"]) == (5, 1, 0, "")
    assert 0 < record["val_nats"] < 6 and not bench_attacks.missing(case, more, tmp_path)
    with pytest.raises(SystemExit, match="other options"):
        bench_attacks.missing(case, ["inner.batch=2"], tmp_path)


def test_words_that_are_not_known_are_refused_by_name():
    with pytest.raises(argparse.ArgumentTypeError, match="typo: choose from plain, median_clip"):
        bench_attacks.chosen_from(bench_attacks.RULES)("plain,typo")


def test_rules_that_a_recipe_refuses_are_skipped_with_the_reason(capsys):
    words = ["--out", "x", "--recipes", "sparseloco", "--rules", "plain,trust", "--liars", "0,1", "--attacks", "flip1"]
    found = list(bench_attacks.cases(bench_attacks.parser().parse_args(words)))
    assert [(case.rule, case.attack, case.liars) for case in found] == [("plain", "calm", 0), ("plain", "flip1", 1)]
    assert "sparseloco with trust is skipped: with this compressor each peer sends" in capsys.readouterr().out
