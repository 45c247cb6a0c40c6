"""Points of the product of all axes: drawn from configs/, put together, and trained with everything written down."""

import copy
import random
import threading
from dataclasses import replace
from functools import cache, partial

import torch
from hydra import compose, initialize_config_dir
from hydra.utils import get_class
from torch import nn

from outerloop.config import instantiate, load
from outerloop.core import compatibility
from outerloop.core.outer_loop import OuterLoop
from outerloop.exchange.inprocess import Hub, InProcess
from outerloop.exchange.inprocess_gossip import InProcessGossip
from outerloop.protocols import CostAware, Stateful
from outerloop.types import UserError
from tests.support import toy

AXES = ("method", "compress", "feedback", "aggregate", "exchange", "schedule")
CHOICES = {axis: load.groups()[axis] for axis in AXES}
FLAGS = {
    "merge_local": (0.0, 0.0, 0.5, "carry"),
    "eager": (False, False, False, True),
    "buffers": ("local", "averaged"),
    "state_dtype": ("float32", "float32", "float64"),
    "delay": (0, 1, 2),
    "early": (False, False, True),
    "reads": ("weights", "weights", "gradients"),
}
PEERS, ROUNDS, SEED, GOSSIP_SEED = 3, 3, 5, 2


def drawn(rng, **fixed):
    """One point. What never goes together is drawn in one of five alone, or most points would be refused."""
    point = {axis: rng.choice(CHOICES[axis]) for axis in AXES} | {flag: rng.choice(FLAGS[flag]) for flag in FLAGS}
    point |= fixed
    return point | fitting(rng, point) | fixed if rng.random() < 0.8 else point


def fitting(rng, point):
    """Other choices for some axes and flags of a point, so that it has a chance."""
    method, weights = made("method", point["method"]), rng.random() < 0.5
    plain = method.sends != "differences" or point["eager"]
    changed = {
        "exchange": [e for e in CHOICES["exchange"] if exchange_class(e).info.agrees == (method.shared or weights)]
    }
    if plain:
        changed["feedback"] = [f for f in CHOICES["feedback"] if not made("feedback", f).remembers]
        changed["aggregate"] = [a for a in CHOICES["aggregate"] if made("aggregate", a).linear]
    if point["eager"]:
        changed |= {
            "merge_local": [0.0],
            "exchange": ["inprocess", "distributed"],
            "schedule": ["every_h", "every_seconds"],
        }
    delay = "H" if point["eager"] else 0 if point["reads"] == "gradients" else point["delay"]
    early = point["early"] and delay in (1, 2)
    return {name: rng.choice(choices) for name, choices in changed.items()} | {"delay": delay, "early": early}


@cache
def node(axis, choice):
    """One axis of the configuration. Methods take settings of other groups; the rest is composed alone, far sooner."""
    if axis == "method":
        return load.compose_config([f"{axis}={choice}"])[axis]
    with initialize_config_dir(version_base="1.3", config_dir=str(load.config_dir())):
        return compose(f"{axis}/{choice}")[axis]


@cache
def template(axis, choice, options):
    return instantiate.make(node(axis, choice), **dict(options))


def made(axis, choice, **options):
    """A new part, as its yaml makes it. Raises UserError."""
    return copy.deepcopy(template(axis, choice, tuple(options.items())))


@cache
def exchange_class(choice):
    return get_class(node("exchange", choice)._target_)


def steps_of_schedule(point):
    """H: 1 for gradients, which are refused otherwise (test_compatibility.py)."""
    gradients = "reads" in node("method", point["method"]) and point["reads"] == "gradients"
    return 1 if gradients else 6 if point["schedule"] == "streaming" else 4


def schedule_of(point):
    """Streaming in two fragments; an H that may move by hand's breadth; seconds that are one inner step each."""
    h, choice = steps_of_schedule(point), point["schedule"]
    options = {"sync_every": h, "delay": h if point["delay"] == "H" else point["delay"]}
    options |= {"early": point["early"]} if "early" in node("schedule", choice) else {}
    options |= {"fragments": min(2, h)} if choice == "streaming" else {}
    options |= {"seconds": float(h)} if choice == "every_seconds" else {}
    options |= {"sync_min": min(3, h), "sync_max": h + 2} if choice == "adaptive" else {}
    return made("schedule", choice, **options)


def parts(point):
    """Everything of an outer loop but model and exchange. Raises UserError."""
    method = {"reads": point["reads"]} if "reads" in node("method", point["method"]) else {}
    chosen = {axis: made(axis, point[axis]) for axis in ("compress", "feedback", "aggregate")}
    flags = {flag: point[flag] for flag in ("merge_local", "eager", "buffers", "state_dtype")}
    return chosen | flags | {"method": made("method", point["method"], **method), "schedule": schedule_of(point)}


def refusal(point):
    """Why a point is refused where runs are checked, or nothing."""
    try:
        made_parts = parts(point)
        unchecked = ("buffers", "state_dtype")
        checked = {name: part for name, part in made_parts.items() if name not in unchecked}
        compatibility.refuse(exchange=exchange_class(point["exchange"]).info, **checked)
    except UserError as error:
        return str(error)
    return ""


def refusal_of_loop(point):
    """The same of an outer loop that is made of it."""
    try:
        OuterLoop(tiny(), exchange=Recorder(stand_in(point)(hub=Hub(PEERS), rank=0), point), **parts(point))
    except UserError as error:
        return str(error)
    return ""


def tiny():
    """Three layers: a matrix of one chunk of 4096 values and a ragged one, norms with buffers, and small tensors."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 72), nn.BatchNorm1d(72), nn.Linear(72, 3))


def stand_in(point):
    """The exchange between threads that gives what the chosen one gives."""
    agrees = exchange_class(point["exchange"]).info.agrees
    return InProcess if agrees else partial(InProcessGossip, group=2, seed=GOSSIP_SEED)


class Recorder(toy.Around):
    """Says of itself what the chosen exchange does; keeps the messages that left and who met whom."""

    def __init__(self, inner, point):
        super().__init__(inner)
        self.info = replace(exchange_class(point["exchange"]).info, replicated=False)
        self.blobs, self.met = {}, {}

    def start(self, blob, round):
        self.blobs[round], self.met[round] = blob, self.inner.partners(round)
        return self.inner.start(blob, round)


class Clock:
    """A clock for each thread, moved by hand; patched into outerloop.core.round_scheduler."""

    def __init__(self):
        self.here = threading.local()

    def monotonic(self):
        return getattr(self.here, "now_s", 100.0)

    def tick(self):
        self.here.now_s = self.monotonic() + 1.0


def look(loop):
    """Copies of all that a round reads or changes."""
    gradients = loop.method.reads == "gradients"
    kept = {name: held_by(loop.feedback, name) for name in loop.slow}
    return {
        "fast": {name: p.detach().clone() for name, p in loop.island.params.items()},
        "slow": {name: x.clone() for name, x in loop.slow.items()},
        "gradients": {name: p.grad.clone() for name, p in loop.island.params.items()} if gradients else {},
        "held": {name: x.clone() for name, x in kept.items() if x is not None},
        "buffers": {name: b.clone() for name, b in loop.model.named_buffers() if b.is_floating_point()},
        "compress": chosen_state(loop.codec.compress),
        "step": loop.inner_step,
    }


def held_by(feedback, name):
    """What a feedback holds of one tensor, or nothing; of DGC velocity and sum, stacked."""
    storage = getattr(feedback, "residual", None) or getattr(feedback, "error", None)
    if storage:
        return storage.get(name)
    state = feedback.state_dict()
    return (
        torch.stack([state[key][name] for key in ("velocity", "unsent")]) if name in state.get("velocity", ()) else None
    )


def chosen_state(compress):
    return copy.deepcopy(compress.state_dict()) if isinstance(compress, CostAware | Stateful) else None


def batch(rank, step):
    draw = torch.Generator().manual_seed(1000 * rank + step)
    return torch.randn(8, 64, generator=draw), torch.randn(8, 3, generator=draw)


def live(exchange, point, clock):
    """One worker for three rounds of every fragment: what there was when a round left, before and after it landed."""
    recorder, net = Recorder(exchange, point), tiny()
    loop = OuterLoop(net, exchange=recorder, seed=SEED, **parts(point))
    inner = torch.optim.SGD(net.parameters(), lr=0.05)
    launched, landed, begun, counted = {}, {}, None, {}
    total, wanted = 0, ROUNDS * loop.schedule.fragments
    for step in range(100):
        x, y = batch(exchange.rank, step)
        inner.zero_grad()
        ((net(x) - y) ** 2).mean().backward()
        if loop.method.reads == "weights":
            inner.step()
        clock.tick()
        before, samples = look(loop), 1 + (exchange.rank + step) % 3
        reports = loop.after_inner_step(samples)
        total += samples
        after = look(loop)
        assert not any(report.failed for report in reports), reports
        under_way = {*loop.in_flight, *loop.launcher.pending, *(report.round for report in reports)}
        for round in sorted(under_way - launched.keys()):
            launched[round], counted[round] = before | {"step": after["step"]}, total
            begun = (before, after) if point["eager"] and not round.number else begun
        landed |= {report.round: (before, after, report) for report in reports}
        if len(landed) >= wanted:
            break
    assert len(landed) >= wanted
    loop.launcher.wait()
    return {
        "launched": launched, "landed": landed, "begun": begun, "total": counted,
        "blobs": recorder.blobs, "met": recorder.met, "loop": loop, "peer": exchange.peer,
    }  # fmt: skip


def trained(point, clock):
    """What `live` gives of all workers."""
    return toy.run_workers(PEERS, lambda exchange: live(exchange, point, clock), stand_in(point))


def shown(point):
    """As one would type it."""
    return " ".join(f"{name}={value}" for name, value in point.items())


def accepted(seed, tries, **fixed):
    """The first point with these choices that is accepted, and those before it that were refused, with the reason."""
    rng, refused = random.Random(f"{seed} {fixed}"), []
    for _ in range(tries):
        point = drawn(rng, **fixed)
        if not (why := refusal(point)):
            return point, refused
        refused.append((point, why))
    return None, refused
