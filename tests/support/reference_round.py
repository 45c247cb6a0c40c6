"""What a round is, a second time: written from the equations in the docstrings, one tensor after another, in float64.

Of the library it takes the codec alone. What the codec is given is computed in the precision and order that the
equations are defined in, so that the bytes must be the same; everything after it is compared to rounding. Numbers of a
part (beta, lr) are read from the part.
"""

import copy
import math
import statistics

import torch

from outerloop import wire
from outerloop.compress.by_size import compressor_of
from outerloop.core.codec import on
from outerloop.protocols import Transforming
from outerloop.types import CodecContext, Round

TOLERANCE = {"rtol": 2e-5, "atol": 2e-6}


# --- feedback: (x of Δ and what is held), (what is held then), (where the inner steps begin) ---


def offered(feedback, delta, held):
    kind = type(feedback).__name__
    if kind == "ErrorFeedback" and held is not None:
        return delta + held * feedback.beta
    if kind == "LoCo" and held is not None:
        return delta + held
    if kind == "DGC" and held is not None:
        return held[1] + (delta + held[0] * feedback.momentum)
    assert kind in ("NoFeedback", "LocalError", "ErrorFeedback", "LoCo", "DGC"), f"write the definition of {kind} here"
    return delta


def held_then(feedback, x, sent, held, landed):
    """None where nothing is held. LoCo forgets after every T-th landing. DGC holds velocity and sum: (2, *shape)."""
    kind = type(feedback).__name__
    if kind == "ErrorFeedback":
        return x.double() - sent
    if kind == "DGC":
        velocity = x.double() - (0.0 if held is None else held[1])
        return torch.stack([torch.where(sent == 0, velocity, 0.0), x.double() - sent])
    if kind == "LoCo":
        old = 0.0 if held is None else held.double()
        return (feedback.beta * old + (1 - feedback.beta) * (x.double() - sent)) * (landed % feedback.reset_every != 0)
    return None


def beginning(feedback, slow, x, sent, earlier):
    if type(feedback).__name__ != "LocalError":
        return slow.double()
    rounds_kept = 1 / (1 - feedback.beta) + feedback.growth * earlier
    return slow.double() - (1 - 1 / rounds_kept) * (x.double() - sent)


# --- aggregate: P tensors by name -> one by name ---


def aggregated(aggregate, sent, samples):
    kind, peers = type(aggregate).__name__, len(sent)
    names = list(sent[0])
    if kind == "MedianClip":
        norms = [sum(float(one[name].square().sum()) for name in names) ** 0.5 for one in sent]
        limit = statistics.median_low([norm for norm in norms if norm] or [0.0])
        shares = [min(1.0, limit / norm) if norm else 1.0 for norm in norms]
        clipped = [{name: x * share for name, x in one.items()} for one, share in zip(sent, shares, strict=True)]
        return aggregated(aggregate.of, clipped, samples)
    stacks = {name: torch.stack([one[name] for one in sent]) for name in names}
    if kind == "MedianCosine":
        shares = {name: cosine_shares(x.flatten(1)) for name, x in stacks.items()}
        weaker = [{name: x * float(shares[name][p]) for name, x in one.items()} for p, one in enumerate(sent)]
        return aggregated(aggregate.of, weaker, samples)
    if kind == "Mean":
        return {name: x.sum(0) / peers for name, x in stacks.items()}
    if kind == "Senders":
        return {name: x.sum(0) / (x != 0).sum(0).clamp(min=1) for name, x in stacks.items()}
    if kind == "Median":
        return {name: coordinate_median(x) for name, x in stacks.items()}
    if kind == "TrimmedMean":
        drop = math.floor(aggregate.trim * peers)
        return {name: x.sort(0).values[drop : peers - drop].mean(0) for name, x in stacks.items()}
    if kind in ROBUST:
        return {name: ROBUST[kind](aggregate, x.flatten(1)).view(x.shape[1:]) for name, x in stacks.items()}
    if kind == "Weighted":
        shares = torch.tensor(samples, dtype=torch.float64) / sum(samples)
        return {name: torch.tensordot(shares, x, 1) for name, x in stacks.items()}
    assert kind == "RDA", f"write the definition of {kind} here"
    means = {name: x.mean(0) for name, x in stacks.items()}
    lengths = {name: sum(float(one.norm()) for one in x) / peers for name, x in stacks.items()}
    return {name: m * (lengths[name] / float(m.norm()) if m.any() else 0.0) for name, m in means.items()}


def coordinate_median(x_PN):
    up, peers = x_PN.sort(0).values, len(x_PN)
    return (up[(peers - 1) // 2] + up[peers // 2]) / 2


def centered_clip(aggregate, x_PN):
    centre = coordinate_median(x_PN)
    for _ in range(aggregate.iterations):
        apart_P = (x_PN - centre).norm(dim=1)
        share_P = (apart_P.median() / apart_P.clamp(min=1e-300)).clamp(max=1)
        centre = centre + ((x_PN - centre) * share_P[:, None]).mean(0)
    return centre


def geometric_median(aggregate, x_PN):
    centre = coordinate_median(x_PN)
    for _ in range(aggregate.iterations):
        apart_P = (x_PN - centre).norm(dim=1)
        if not apart_P.median():
            return centre
        weight_P = 1 / apart_P.clamp(min=1e-3 * float(apart_P.median()))
        centre = weight_P @ x_PN / weight_P.sum()
    return centre


def trust(aggregate, x_PN):
    centre = coordinate_median(x_PN)
    weight_P = torch.cosine_similarity(x_PN, centre[None], eps=1e-300).clamp(min=0)
    norm_P = x_PN.norm(dim=1)
    if not weight_P.any():
        return centre
    return (weight_P / norm_P.clamp(min=1e-300) * norm_P[norm_P > 0].median()) @ x_PN / weight_P.sum()


def cosine_shares(x_PN):
    unit_PN = x_PN / x_PN.norm(dim=1, keepdim=True).clamp(min=1e-300)
    others_PQ = (unit_PN @ unit_PN.T)[~torch.eye(len(x_PN), dtype=torch.bool)].view(len(x_PN), -1)
    if not others_PQ.numel():
        return torch.ones(len(x_PN))
    upper = others_PQ.shape[1] // 2  # torch's median is the lower one
    cosine_P = others_PQ.sort(dim=1).values[:, upper].clamp(min=0)
    return (2 * cosine_P / cosine_P.median()).clamp(max=1) if cosine_P.median() else torch.ones(len(x_PN))


ROBUST = {"CenteredClip": centered_clip, "GeometricMedian": geometric_median, "Trust": trust}
"""By tensors of P peers as rows; torch's median of P norms is the lower one."""


# --- method: what evolves is in `state`, by name; NaN where float64 cannot tell what float32 does ---


def moved(method, state, slow, mean, own, fast):
    kind = type(method).__name__
    update = {"OuterOptimizer": optimizer, "Sign": sign, "NoLoCo": noloco, "Average": average}[kind]
    count = state.setdefault(("count", next(iter(mean))), 0)
    state["count", next(iter(mean))] += 1
    return update(method, state, slow, mean, own, fast, count)


def optimizer(method, state, slow, mean, own, fast, count):
    if method.clip_norm is not None:
        norm = sum(float(m.square().sum()) for m in mean.values()) ** 0.5
        mean = {name: m * min(1.0, method.clip_norm / (norm + 1e-6)) for name, m in mean.items()}
    made = method.probe()
    kind, given = type(made).__name__, made.defaults
    lr = given["lr"] * (method.factors["lr"](count) if method.factors["lr"] else 1.0)
    step = {"SGD": sgd, "AdamW": adamw}[kind]
    return {name: step(state, name, slow[name].double(), m, lr, given, count + 1) for name, m in mean.items()}


def sgd(state, name, slow, mean, lr, given, count):
    mu = given["momentum"]
    state["b", name] = b = mu * state.get(("b", name), 0.0) + mean
    return slow - lr * (mean + mu * b if given["nesterov"] else b)


def adamw(state, name, slow, mean, lr, given, count):
    one, two = given["betas"]
    state["m", name] = m = one * state.get(("m", name), 0.0) + (1 - one) * mean
    state["v", name] = v = two * state.get(("v", name), 0.0) + (1 - two) * mean**2
    slow = slow * (1 - lr * given["weight_decay"])
    return slow - lr * (m / (1 - one**count)) / ((v / (1 - two**count)).sqrt() + given["eps"])


def sign(method, state, slow, mean, own, fast, count):
    lr = method.lr * (method.lr_factor(count) if method.lr_factor else 1.0)
    out = {}
    for name, m in mean.items():
        unsure = (m != 0) & (m.abs() < 1e-6 * m.abs().max())
        step = lr * (m.sign() + method.weight_decay * slow[name].double())
        out[name] = torch.where(unsure, torch.nan, slow[name].double() - step)
    return out


def noloco(method, state, slow, mean, own, fast, count):
    assert method.inside and method.gamma == method.beta, "δ ← α δ + β (mean θ − φ)"
    for name, m in mean.items():
        state["d", name] = method.alpha * state.get(("d", name), 0.0) + method.beta * (m - slow[name].double())
    return {name: slow[name].double() + state["d", name] for name in mean}


def average(method, state, slow, mean, own, fast, count):
    """The mean where this worker sent something, but for what the codec lost of its own; what it has elsewhere."""
    fast = {name: fast[name].double() for name in mean}
    return {name: torch.where(own[name] != 0, fast[name] + m - own[name], fast[name]) for name, m in mean.items()}


# --- a whole run ---


class Definition:
    """Checks what `product.trained` gives, round after round in the order of landing."""

    def __init__(self, point, runs, seed):
        self.point, self.runs, self.seed, self.agreed = point, runs, seed, {}
        self.loop = runs[0]["loop"]
        self.eager, self.delay = point["eager"], self.loop.schedule.delay
        self.states = [{} for _ in runs]
        self.coefficients, self.medians, self.distances, self.longest, self.clipped = {}, {}, {}, {}, 0

    def check(self):
        if self.eager:
            for rank in range(len(self.runs)):
                self.check_first_eager_step(rank)
        for round in sorted(self.runs[0]["landed"]):
            self.check_times(round)
            names = self.loop.schedule.fragment(round.fragment, list(self.loop.slow))
            offers = [self.offer(rank, round, names) for rank in range(len(self.runs))]
            sent = [self.through_codec(rank, round, x) for rank, x in enumerate(offers)]
            for rank in range(len(self.runs)):
                self.check_landing(rank, round, offers, sent)
            if self.loop.shared:
                assert len({run["landed"][round][2].slow_hash for run in self.runs}) == 1

    def check_times(self, round):
        """The equations of the schedules; an H that moves is test_adaptive.py's."""
        h, p = self.loop.schedule.sync_every, self.loop.schedule.fragments
        for run in self.runs:
            left, landed = run["launched"][round]["step"], run["landed"][round][1]["step"]
            assert landed - left == self.delay
            if self.point["schedule"] != "adaptive":
                assert left == round.number * h + (round.fragment + 1) * h // p

    def outgoing(self, rank, round, name):
        """Δ = φ − θ, the gradient, or θ."""
        then, method = self.runs[rank]["launched"][round], self.loop.method
        if method.reads == "gradients":
            return then["gradients"][name]
        return then["slow"][name] - then["fast"][name] if method.sends == "differences" else then["fast"][name]

    def offer(self, rank, round, names):
        """What goes into the codec; of weights there is nothing to make up for."""
        run, feedback = self.runs[rank], self.runs[rank]["loop"].feedback
        out = {name: self.outgoing(rank, round, name) for name in names}
        if self.loop.method.sends != "differences":
            return out
        return {name: offered(feedback, x, run["launched"][round]["held"].get(name)) for name, x in out.items()}

    def through_codec(self, rank, round, x):
        """What the peers decode; the message must be these bytes, and its samples those since the last launch."""
        run, peers = self.runs[rank], len(self.runs)
        compress = copy.deepcopy(run["loop"].codec.compress)
        if run["launched"][round]["compress"] is not None:
            compress.load_state_dict(run["launched"][round]["compress"])
        header, came = wire.read(run["blobs"][round])
        leads = self.loop.exchange.info.agrees and not self.eager and rank == (round.number + 1) % peers
        decoded = {}
        for (name, value), parts in zip(x.items(), came, strict=False):
            agreed = self.agreed.get((name, round.number))
            seed = wire.name_hash(f"{self.seed} {round.number} {name}")
            encoded = compress.encode(value, CodecContext(round.number, seed, leads=leads, agreed=agreed, name=name))
            assert encoded.keys() == parts.keys()
            assert all(torch.equal(encoded[part], parts[part]) for part in parts), (name, list(parts))
            context = CodecContext(round.number, seed, agreed=agreed, name=name)
            decoded[name] = compress.decode(on(value.device, encoded), value.shape, context).double()
            if self.as_coefficients(value.shape):
                codec = compressor_of(compress, value.shape)
                kept = codec.coefficients(on(value.device, encoded), value.shape, context).double()
                self.coefficients[rank, round, name] = kept
            if "next" in encoded:
                self.agreed[name, round.number + 1] = encoded["next"]
        last = Round(round.number - 1, round.fragment)
        assert header.samples == run["total"][round] - run["total"].get(last, 0)
        return decoded

    def check_first_eager_step(self, rank):
        """φ moves by Δ / P before anything has come back."""
        run = self.runs[rank]
        before, after = run["begun"]
        x = {name: (before["slow"][name] - fast).double() for name, fast in before["fast"].items()}
        mean = {name: value / len(self.runs) for name, value in x.items()}
        expected = moved(run["loop"].method, self.states[rank], before["slow"], mean, {}, before["fast"])
        same(after["slow"], expected, "first eager step")
        same(after["fast"], expected, "first eager step")

    def check_landing(self, rank, round, offers, sent):
        run, peers = self.runs[rank], self.runs[rank]["met"][round]
        (before, after, report), then = run["landed"][round], run["launched"][round]
        assert report.peers == tuple(self.runs[peer]["peer"] for peer in peers)
        samples = [wire.read(self.runs[peer]["blobs"][round])[0].samples for peer in peers]
        own, x, parts = sent[rank], offers[rank], [sent[peer] for peer in peers]
        if self.eager:
            gained = {name: self.outgoing(rank, Round(round.number + 1), name) for name in x}
            gained = {name: now.double() - self.outgoing(rank, round, name) for name, now in gained.items()}
            parts[peers.index(rank)] = {name: y + gained[name] for name, y in own.items()}
        else:
            parts = [
                {name: self.coefficients.get((peer, round, name), y) for name, y in part.items()}
                for peer, part in zip(peers, parts, strict=True)
            ]
        if self.loop.method.sends != "differences":
            parts = self.drawn_near(rank, round, parts, peers.index(rank), before["slow"])
        else:
            parts, samples = self.screened(round, parts, samples)
        mean = self.mean_of(parts, samples)
        if not self.eager:
            mean = {name: self.values(round, name, m) for name, m in mean.items()}
        slow = moved(run["loop"].method, self.states[rank], before["slow"], mean, own, then["fast"])
        same({name: after["slow"][name] for name in x}, slow, f"slow, {round}")
        self.check_kept(run, round, x, own)
        self.check_fast(run, round, x, own)
        self.check_buffers(rank, round)

    def as_coefficients(self, shape):
        codec, aggregate = compressor_of(self.loop.codec.compress, shape), self.loop.pipeline.dense.aggregate
        return isinstance(codec, Transforming) and not getattr(aggregate, "combines_values", False)

    def values(self, round, name, mean):
        if not self.as_coefficients(mean.shape):
            return mean
        context = CodecContext(round.number, wire.name_hash(f"{self.seed} {round.number} {name}"), name=name)
        values = compressor_of(self.loop.codec.compress, mean.shape).inverse(mean.float(), context).double()
        return values.where(values != 0, 1e-9 * values.abs().max())  # the sign of a sum that cancels is unknown

    def drawn_near(self, rank, round, parts, own, slow):
        """θ_j ← φ + (θ_j − φ) min(1, 4 r / d_j), d_j = ‖θ_j − φ‖; r = min(max(h, d_own), 8 D).

        h is the median of the last 4 d_j as they counted, D the largest d_own so far.
        """
        if not self.loop.screen.on:
            return parts
        apart = [{name: y.double() - slow[name].double() for name, y in part.items()} for part in parts]
        distances = [sum(float(x.square().sum()) for x in one.values()) ** 0.5 for one in apart]
        taken = self.distances.setdefault((rank, round.fragment), [])
        longest = self.longest[rank, round.fragment] = max(
            self.longest.get((rank, round.fragment), 0.0), distances[own]
        )
        usual = max([distances[own], *([statistics.median_low(taken[-4:])] if taken else [])])
        farthest = 4 * min(usual, 8 * longest)
        assert max(distances) <= 8 * farthest, "refused: not defined here"
        shares = [min(1.0, farthest / d) if place != own and d else 1.0 for place, d in enumerate(distances)]
        taken += [d * share for place, (d, share) in enumerate(zip(distances, shares, strict=True)) if place != own]
        self.clipped += sum(share < 1 for share in shares)
        return [
            {name: slow[name].double() + x * share for name, x in one.items()}
            for one, share in zip(apart, shares, strict=True)
        ]

    def screened(self, round, parts, samples):
        """Longest is the lower median m of the norms, or 4 h if that is less: h is the largest m of four rounds."""
        if not self.loop.screen.on:
            return parts, samples
        norms = [sum(float(y.square().sum()) for y in part.values()) ** 0.5 for part in parts]
        assert len([norm for norm in norms if norm]) > 2, "two are another rule"
        medians = self.medians.setdefault(round.fragment, {})
        medians[round.number] = statistics.median_low([norm for norm in norms if norm])
        before = [m for number, m in sorted(medians.items()) if number < round.number][-4:]
        longest = min([medians[round.number], *([4 * max(before)] if before else [])])
        shares = [min(1.0, longest / norm) if norm else 1.0 for norm in norms]
        clipped = [{name: y * share for name, y in part.items()} for part, share in zip(parts, shares, strict=True)]
        most = 4 * statistics.median_low([n for n in samples if n] or [0])
        return clipped, [min(n, most) for n in samples]

    def mean_of(self, parts, samples):
        """Weights have one mean; what is to be done with the rest is the aggregate's."""
        if self.loop.method.sends == "differences":
            return aggregated(self.loop.pipeline.dense.aggregate, parts, samples)
        return {name: sum(one[name] for one in parts) / len(parts) for name in parts[0]}

    def check_kept(self, run, round, x, own):
        before, after, _ = run["landed"][round]
        feedback = run["loop"].feedback
        for name in x:
            expected = held_then(feedback, x[name], own[name], before["held"].get(name), round.number + 1)
            assert (expected is None) == (name not in after["held"])
            if expected is not None:
                half_step = float(expected.abs().max()) / 127 / 2 if hasattr(feedback, "error") else 0.0
                assert float((after["held"][name] - expected).abs().max()) <= 1.01 * half_step + 1e-6, (name, round)

    def check_fast(self, run, round, x, own):
        """carry: φ + what was gained since the launch; else merge_local of the local value; gradients: φ."""
        before, after, _ = run["landed"][round]
        merge, then = self.point["merge_local"], run["launched"][round]["fast"]
        merge = 0.0 if self.loop.method.reads == "gradients" else merge
        for name in x:
            begun = beginning(run["loop"].feedback, after["slow"][name], x[name], own[name], round.number)
            local = before["fast"][name].double()
            if merge == "carry":
                expected = begun + (local - then[name] if self.delay else 0.0)
            else:
                expected = merge * local + (1 - merge) * begun
            same({name: after["fast"][name]}, {name: expected}, f"fast, {round}")

    def check_buffers(self, rank, round):
        run = self.runs[rank]
        before, after, _ = run["landed"][round]
        averaged = self.point["buffers"] == "averaged" and round.fragment == 0
        for name, kept in before["buffers"].items():
            then = [self.runs[p]["launched"][round]["buffers"][name].double() for p in run["met"][round]]
            same({name: after["buffers"][name]}, {name: sum(then) / len(then) if averaged else kept}, "buffers")


def same(got, expected, what):
    """To rounding, but for what the definition cannot tell (NaN)."""
    assert got.keys() == expected.keys()
    for name, x in expected.items():
        known = torch.where(torch.isnan(x), got[name].double(), x.double())
        assert torch.allclose(got[name].double(), known, **TOLERANCE), (what, name, (got[name] - known).abs().max())
