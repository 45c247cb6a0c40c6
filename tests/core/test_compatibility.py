"""What one axis needs of another: refused with what to type, and what was once wrong where parts meet."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from outerloop.aggregate.mean import Mean
from outerloop.aggregate.median_clip import MedianClip
from outerloop.aggregate.rda import RDA
from outerloop.aggregate.senders import Senders
from outerloop.aggregate.weighted import Weighted
from outerloop.compress.by_size import BySize
from outerloop.compress.cast import Cast
from outerloop.compress.identity import Identity
from outerloop.compress.index.rice import Rice
from outerloop.compress.powersgd import PowerSgd
from outerloop.compress.randomk import RandomK
from outerloop.compress.scalecom import ScaleCom
from outerloop.compress.topk import TopK
from outerloop.compress.two_bit import TwoBit
from outerloop.compress.uniform import Uniform
from outerloop.config import instantiate, load, part_checks
from outerloop.core.compatibility import trials, warnings
from outerloop.core.compatibility.trials import aligned
from outerloop.exchange.inprocess import Hub, InProcess
from outerloop.exchange.inprocess_gossip import InProcessGossip
from outerloop.feedback.ef import ErrorFeedback
from outerloop.feedback.local_error import LocalError
from outerloop.feedback.loco import LoCo
from outerloop.feedback.none import NoFeedback
from outerloop.methods.average import Average
from outerloop.methods.noloco import NoLoCo
from outerloop.methods.outer_optimizer import OuterOptimizer
from outerloop.methods.sign import Sign
from outerloop.schedule.adaptive import Adaptive
from outerloop.schedule.every_h import EveryH
from outerloop.schedule.streaming import Streaming
from outerloop.types import Requirement, UserError
from tests.support import toy
from tests.support.late_peer import LATE, WithoutLate
from tests.support.tensors import same_tensors

OTHER_MEANS = [Senders(), Weighted(), RDA(), MedianClip(of=Mean())]


EAGER = {"eager": True, "schedule": EveryH(sync_every=3, delay=3)}


GRADIENTS = {"method": toy.sgd(reads="gradients"), "h": 1}


ON_TIME = {"eager": False, "merge_local": 0.0}


TOPK = TopK(chunk=64, k=4, values=Identity(), index=Rice())


def noloco():
    return NoLoCo(alpha=0.5, beta=0.7, gamma=None, consensus="inside")


def refused(exchange=None, **parts):
    with pytest.raises(UserError) as error:
        toy.outer(toy.model(), exchange or InProcess(hub=Hub(2), rank=0), **parts)
    assert "\n" not in str(error.value)
    return str(error.value)


def pairs():
    return InProcessGossip(hub=Hub(2), rank=0, group=2, seed=0)


class GoesOn(toy.Around):
    """A gather that may go on without a late peer."""

    info = replace(InProcess.info, waits_for_all=False)


@pytest.mark.parametrize("aggregate", OTHER_MEANS, ids=lambda x: type(x).__name__)
def test_eager_updates_and_methods_that_send_weights_need_the_plain_mean(aggregate):
    assert "set aggregate=mean, or eager=false" in refused(aggregate=aggregate, **EAGER)
    assert "set aggregate=mean, or method=diloco" in refused(pairs(), aggregate=aggregate, method=noloco())
    assert "set aggregate=mean, or method=diloco" in refused(aggregate=aggregate, method=Average())


def test_an_aggregate_is_linear_where_one_part_can_be_replaced_afterwards():
    """Mean of x with x_0 replaced by y is mean + (y - x_0) / P; of the others it is not, samples being unequal."""
    x = [torch.tensor([1.0, 0.0, 3.0]), torch.tensor([2.0, 5.0, -1.0])]
    y, samples = torch.tensor([4.0, 1.0, 2.0]), [3, 1]

    def norms(*sent):
        return [float(one.norm()) for one in sent]

    for aggregate in (Mean(), *OTHER_MEANS):
        replaced = aggregate([y, x[1]], samples, norms(y, x[1]))
        corrected = aggregate(x, samples, norms(*x)) + (y - x[0]) / 2
        assert torch.allclose(replaced, corrected) == aggregate.linear


@pytest.mark.parametrize("merge_local", [0.5, 1.0, "carry"])
def test_eager_updates_and_what_is_kept_of_the_fast_weights(merge_local):
    assert f"merge_local={merge_local} keeps" in refused(merge_local=merge_local, **EAGER)


@pytest.mark.parametrize(
    "feedback",
    [ErrorFeedback(beta=0.9), LocalError(beta=0.9), LoCo(beta=0.8, reset_every=9)],
    ids=["ef", "local", "loco"],
)
def test_eager_updates_and_feedback(feedback):
    assert "set feedback=none, or eager=false" in refused(feedback=feedback, **EAGER)


@pytest.mark.parametrize(
    "method",
    [
        toy.sgd(clip_norm=1.0),
        Sign(lr=0.1),
        OuterOptimizer(optimizer=lambda p: torch.optim.AdamW(p, lr=0.1)),
        Average(),
        noloco(),
    ],
    ids=["clipped", "sign", "adamw", "average", "noloco"],
)
def test_eager_updates_need_steps_that_add_up(method):
    """With momentum they do: replicas stay within one part in P of each other."""
    assert "set method=diloco method.clip_norm=null, or eager=false" in refused(method=method, **EAGER)
    for fits in (toy.sgd(), toy.sgd(0.7, 0.9, True), toy.sgd(1.0, 0.6)):
        toy.outer(toy.model(), InProcess(hub=Hub(2), rank=0), method=fits, **EAGER)


def damped(params):
    return torch.optim.SGD(params, lr=0.7, momentum=0.9, dampening=0.5)


@pytest.mark.parametrize(
    "make",
    [
        lambda: toy.sgd(lr_factor=lambda round: 1 - 1e-9 * round),
        lambda: toy.sgd(0.7, 0.9, momentum_factor=lambda round: 0.5 if round > 99 else 1.0),
        lambda: OuterOptimizer(optimizer=damped),
    ],
    ids=["lr", "momentum", "dampening"],
)
def test_eager_updates_need_the_same_step_in_every_round(make):
    said = refused(method=make(), **EAGER)
    assert "set method.lr_factor=null method.momentum_factor=null method.optimizer.dampening=0, or eager=false" in said


def test_eager_updates_need_steps_that_depend_on_the_mean_alone():
    """Weight decay would shrink a difference between peers, instead of removing it when the mean lands."""

    def decayed(params):
        return torch.optim.SGD(params, lr=0.7, weight_decay=1e-4)

    said = refused(method=OuterOptimizer(optimizer=decayed), **EAGER)
    assert "set method.optimizer.weight_decay=0, or eager=false schedule.delay=0" in said


@pytest.mark.parametrize(
    "codec", [Uniform(bits=4, chunk=256), PowerSgd(rank=4, small=Identity())], ids=["int4", "rank 4"]
)
def test_weights_are_not_sent_in_four_bits(codec):
    assert "% of their norm in every round: set compress=cast" in refused(pairs(), method=noloco(), compress=codec)
    for fine in (Identity(), Cast(dtype="bfloat16"), Uniform(bits=8, chunk=256)):
        toy.outer(toy.model(), pairs(), method=noloco(), compress=fine)


@pytest.mark.parametrize("below", [4096, 16384])
def test_codecs_of_large_and_of_small_tensors_are_both_tried(below):
    """With below=16384, a trial on a tensor of 8192 values would see only the codec of small tensors."""
    split = partial(BySize, below=below, small=Identity())
    sampled = split(large=RandomK(chunk=64, k=4, values=Identity()))
    assert trials.sparse(split(large=TOPK)) and trials.lossiness(split(large=TOPK)) > 0.5
    assert not trials.aligned(split(large=TOPK)) and trials.aligned(sampled)
    assert trials.redraws(sampled) and not trials.redraws(split(large=TOPK))
    assert trials.announces(split(large=ScaleCom(chunk=64, k=4, values=Identity())))
    small = split(large=Identity())
    assert not (trials.sparse(small) or trials.lossiness(small) or trials.redraws(small) or trials.announces(small))


def test_averaging_needs_that_all_send_the_same_part():
    """Where only some send a coordinate, the others would add a share of a whole weight to their own."""
    assert "set compress=randomk" in refused(method=Average(), compress=TOPK)
    assert "set compress=randomk" in refused(method=Average(), compress=Uniform(bits=8, chunk=256))
    assert "set feedback=none" in refused(method=Average(), feedback=ErrorFeedback(beta=0.9))
    assert "set feedback=none" in refused(method=Average(), feedback=LocalError(beta=0.9))
    drift = Adaptive(sync_every=3, sync_min=2, sync_max=9, low=0.2, high=0.5)
    assert "set schedule=every_h, or method=diloco" in refused(method=Average(), schedule=drift)
    random = RandomK(chunk=8, k=2, values=Identity())
    toy.outer(toy.model(), InProcess(hub=Hub(2), rank=0), method=Average(), compress=random)
    late = GoesOn(InProcess(hub=Hub(2), rank=0))
    assert "set exchange=inprocess or exchange=distributed" in refused(late, method=Average(), compress=random)


def test_gradients_know_nothing_of_the_fast_weights():
    assert "set feedback=ef, or feedback=none" in refused(feedback=LocalError(beta=0.9), **GRADIENTS)
    assert "set merge_local=0.0" in refused(merge_local=0.5, **GRADIENTS)
    for fits in ({"feedback": ErrorFeedback(beta=0.9)}, {"merge_local": "carry"}):
        toy.outer(toy.model(), InProcess(hub=Hub(2), rank=0), **fits, **GRADIENTS)


@pytest.mark.parametrize(
    ("feedback", "told"),
    [
        (NoFeedback(), True),
        (LoCo(beta=0.8, reset_every=99), True),  # a fifth of what was not sent, and less of that each round
        (ErrorFeedback(beta=0.95), False),
        (ErrorFeedback(beta=0.95, bits=8), False),
        (LocalError(beta=0.85), False),
    ],
)
def test_a_sparse_codec_needs_a_feedback_that_offers_again_what_was_not_sent(feedback, told):
    parts = {"method": toy.sgd(), "feedback": feedback, "schedule": EveryH(sync_every=3)} | ON_TIME
    lines = warnings(compress=TOPK, **parts)
    assert bool(lines) == told and all("set feedback=ef" in line for line in lines)
    assert not warnings(compress=Uniform(bits=4, chunk=256), **parts)


def test_the_command_line_sees_the_aggregate():
    eager = ["eager=true", "schedule.delay=3", "schedule.sync_every=3", "exchange=inprocess", "model=nano"]
    for aggregate in ("senders", "weighted", "median_clip", "rda"):
        with pytest.raises(UserError, match="set aggregate=mean"):
            part_checks.check_parts(load.load(["recipe=diloco", *eager, f"aggregate={aggregate}"]))


# --- what was wrong where parts meet ---


def test_averaging_in_fragments():
    """H = 6, two fragments, offsets 3 and 6, two steps late: they land after steps 5, 8, 11 and 14."""

    def work(exchange):
        net = toy.model(seed=exchange.rank)
        loop = toy.outer(net, exchange, method=Average(), schedule=Streaming(sync_every=6, fragments=2, delay=2))
        return [report.round.fragment for _ in range(14) for report in loop.after_inner_step(1)], loop.slow

    (first, one), (_, other) = toy.run_workers(2, work)
    assert first == [0, 1, 0, 1] and same_tensors(one, other)


def test_averaging_without_this_peer_changes_nothing_that_is_its_own():
    """The exchange says that it waits for all, and leaves one out: progress is neither lost nor counted twice."""

    class Gone(WithoutLate):
        info = InProcess.info

    def work(exchange):
        net = toy.model()
        loop = toy.outer(net, Gone(exchange, {0}), h=1, method=Average())
        toy.inner_step(net, torch.optim.SGD(net.parameters(), lr=0.1), exchange.rank, 0)
        before = [p.detach().clone() for p in net.parameters()]
        slow = [x.clone() for x in loop.slow.values()]
        [report] = loop.after_inner_step(1)
        assert (exchange.peer in report.peers) == (exchange.peer != LATE)
        if exchange.peer == LATE:
            assert all(torch.allclose(p, x, atol=1e-7) for p, x in zip(net.parameters(), before, strict=True))
            assert all(torch.equal(x, y) for x, y in zip(loop.slow.values(), slow, strict=True))

    toy.run_workers(2, work)


def samples_of(schedule, **parts):
    """(round, fragment, samples) of what one worker sent in 30 inner steps of one sample."""

    def work(exchange):
        loop = toy.outer(toy.model(), exchange, schedule=schedule, **parts)
        reports = [report for _ in range(30) for report in loop.after_inner_step(1)]
        return [(report.round.number, report.round.fragment, report.samples) for report in reports]

    return toy.run_workers(1, work)[0]


def test_samples_are_those_of_the_fragment():
    """A fragment stands for all steps since it left last, whatever other fragments do meanwhile, by hand."""
    told = samples_of(Streaming(sync_every=5, fragments=2, delay=1))
    assert told[:4] == [(0, 0, 2), (0, 1, 5), (1, 0, 5), (1, 1, 5)] and {n for *_, n in told[1:]} == {5}


def test_eager_rounds_stand_for_the_steps_since_the_last_launch():
    assert {samples for *_, samples in samples_of(EveryH(sync_every=3, delay=3), eager=True)} == {3}


def joined(**parts):
    """Construct an outer loop of these parts, for its checks."""
    return toy.outer(toy.model(), InProcess(hub=Hub(2), rank=0), **parts)


GOSSIP = InProcessGossip(hub=Hub(2), rank=0, group=2, seed=0)


NOLOCO = NoLoCo(alpha=0.5, beta=0.7, gamma=None, consensus="inside")


SPARSE = TopK(chunk=64, k=4, values=TwoBit(chunk=None), index=Rice())


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"method": NOLOCO, "compress": SPARSE}, "set feedback=none compress=cast"),
        ({"method": NOLOCO, "feedback": ErrorFeedback(beta=0.9)}, "cannot be sparsified or combined with feedback"),
        ({"eager": True}, "set eager=true schedule.delay=3"),
        ({"eager": True, "merge_local": "carry"}, "set merge_local=0.0"),
        ({"schedule": EveryH(sync_every=3, delay=3)}, "set eager=true schedule.delay=3"),
        ({"method": toy.sgd(reads="gradients")}, "set schedule=every_h schedule.sync_every=1"),
    ],
)
def test_parts_that_cannot_work_together_are_refused(parts, said):
    with pytest.raises(UserError, match=said):
        joined(**parts)


def test_gossip_needs_a_method_for_unequal_replicas():
    with pytest.raises(UserError, match="set method=noloco"):
        toy.outer(toy.model(), GOSSIP)
    toy.outer(toy.model(), GOSSIP, method=NOLOCO, compress=Cast(dtype="bfloat16"))


@pytest.mark.parametrize(
    ("parts", "warns"),
    [
        ({}, True),
        ({"merge_local": "carry"}, False),
        ({"merge_local": 0.5}, False),
        ({"eager": True, "schedule": EveryH(sync_every=3, delay=3)}, False),
        ({"schedule": EveryH(sync_every=3)}, False),
    ],
)
def test_inner_steps_that_a_landing_discards_are_warned_of(parts, warns):
    lines = joined(**{"schedule": EveryH(sync_every=3, delay=2)} | parts).warnings
    assert bool(lines) == warns and all("schedule.delay=2 and merge_local=0.0" in line for line in lines)


def test_gossip_momentum_is_not_that_of_an_optimizer():
    """Its option is method.alpha."""
    method = NoLoCo(alpha=0.9, beta=0.7, gamma=None, consensus="outside")
    assert not toy.outer(toy.model(), GOSSIP, method=method).warnings


def test_doubtful_settings_are_told():
    assert joined().warnings == []
    assert joined(compress=SPARSE, feedback=ErrorFeedback(beta=0.9)).warnings == []
    assert "feedback=ef" in joined(compress=SPARSE).warnings[0]
    assert "momentum" in joined(method=toy.sgd(0.7, 0.9, True), h=99).warnings[0]
    assert joined(method=toy.sgd(0.7, 0.9, True), h=100).warnings == []


# --- what a part requires of another ---


class Plain(Mean):
    """An aggregate that requires something of each other axis."""

    def __init__(self, axis, fact, value):
        self.requires = (Requirement(axis, fact, value, f"needs {axis}.{fact}: set {axis}=other"),)


@pytest.mark.parametrize(
    ("axis", "fact", "value", "other"),
    [
        ("method", "momentum", 0.0, {"method": toy.sgd(0.7, 0.9)}),
        ("compress", "linear", True, {"compress": TOPK}),
        ("compress", "aligned", True, {"compress": TOPK}),
        ("feedback", "remembers", False, {"feedback": ErrorFeedback(beta=0.9)}),
        ("schedule", "early", False, {"schedule": EveryH(sync_every=3, delay=1, early=True)}),
        ("exchange", "waits_for_all", True, {"exchange": GoesOn(InProcess(hub=Hub(2), rank=0))}),
    ],
)
def test_a_part_can_require_another(axis, fact, value, other):
    """It is refused with the part's own line, also behind another part; what is as required is not."""
    toy.outer(toy.model(), InProcess(hub=Hub(2), rank=0), aggregate=Plain(axis, fact, value))
    for aggregate in (Plain(axis, fact, value), MedianClip(of=Plain(axis, fact, value))):
        assert refused(aggregate=aggregate, **other) == f"needs {axis}.{fact}: set {axis}=other"


@pytest.mark.parametrize("compress", load.groups()["compress"])
def test_which_peers_send_the_same_coordinates(compress):
    """Of two peers with unlike tensors: dense ones, and those that draw or agree on their positions."""
    codec = instantiate.make(load.compose_config([f"compress={compress}"]).compress)
    same = {"randomk", "scalecom"} | {
        "cast", "fp16", "fp4", "identity", "int4", "int8", "powersgd", "powersgd_warm",
        "rotated", "sigma_bins", "sign", "two_bit"
    }  # fmt: skip
    assert aligned(codec) == (compress in same)
