"""Score payloads of each round before it lands, and accuse peers that copy payloads, do not train, or do harm.

A peer is accused for one of three reasons:

copy          its payload repeats more than 40 % of a payload of one of the RECENT rounds before, which may be its own,
              or more than 90 % of this peer's payload of the same round (overlap.py). All payloads are signed, so every
              peer that keeps them can repeat the comparison
no training   over several rounds, its payloads have a smaller gain than those of most senders (gain.py,
              sequential_test.py)
no benefit    over several rounds, its payloads lower the loss of random windows much less than those of most senders
              (benefit.py, sequential_test.py)

An accusation is a row of metrics.jsonl and a status line. It lasts LASTING rounds; then the tests of the accused peer
begin again. With exclude_accused=true, this peer's messages list the peers that it accuses for `no training` or
`no benefit`, and those that have copied in COPIES rounds. A payload does not count if most other peers accuse its
sender (aggregate/exclusion_votes.py). With exclude_accused=false, accusations have no further effect, and the weights
are bit-identical to those without scores.

One copy is not a vote, because an honest peer may repeat its own payload after a restart. Nor is a copy from a round in
which the accused peer had no payload: its own payload of that round may have come too late or been left out, and a liar
may have sent it as its own. The honest peer's next payload, which contains the same progress, then looks like a copy.

If payloads of two other peers in the same round repeat each other, the comparison does not show which one is the copy.
The copy has no gain on the windows of its sender. So the copier is accused of `no training`, and the accusation names
the other peer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from outerloop import wire
from outerloop.core.outer_loop import OuterLoop
from outerloop.scores.measurement import Measurement, Score
from outerloop.scores.overlap import COPY, PayloadSampler, Sample, closest, overlaps
from outerloop.scores.selection import LASTING, Selection
from outerloop.scores.sequential_test import ShortfallTest
from outerloop.types import Round

Emit = Callable[..., None]
RECENT = 2
"""Number of earlier rounds with whose payloads a payload is compared."""
EXACT = 0.9
"""Overlap with this peer's own payload of the same round above which a payload counts as a copy."""
GAIN_SHARE = 0.9
"""A gain counts as honest if it is at least this share of the median gain of the other peers."""
BENEFIT_SHARE = 0.6
"""A benefit counts as honest if it is at least this share of the median benefit of the other peers."""
COPIES = 2
"""Number of rounds with copies, while an accusation lasts, after which the accusation is a vote."""
BENEFIT_SPREAD = 0.15
"""Smallest standard deviation of the true benefits of honest payloads. Measured: 0.1 to 0.2 in the first rounds, and
more later, when single payloads have smaller effects (scripts/results/scores)."""


class PayloadScorer:
    """Scores payloads for one peer. The outer loop calls it before each landing (core/land.py).

    The attribute `accused` maps each accused peer to the number of the round in which it was accused. `copiers` maps
    those of them that are accused only of copying to the rounds of their copies that count for a vote.

    Args:
        outer: the outer loop of this peer.
        measurement: measures single payloads.
        commit: returns the hash of the last landed commit, which determined the assigned windows; empty if unknown.
        payloads: mean number of other peers' payloads that are scored per round (selection.py).
        random: chooses payloads. Other peers must not be able to predict its choices.
        emit: emit(event, **fields) emits an event of this worker.
    """

    def __init__(
        self,
        outer: OuterLoop,
        measurement: Measurement,
        *,
        commit: Callable[[], bytes],
        payloads: float,
        random: Random,
        emit: Emit,
    ) -> None:
        self.peer, self.measurement, self.commit = outer.exchange.peer, measurement, commit
        self.votes = outer.votes
        self.selection = Selection(self.peer, payloads=payloads, random=random)
        self.emit = emit
        self.sampler = PayloadSampler(outer.codec, outer.slow, random)
        self.recent: deque[dict[str, Sample]] = deque(maxlen=RECENT)
        self.took_part: set[str] | None = None
        self.training, self.benefit = ShortfallTest(share=GAIN_SHARE), benefit_test()
        self.accused: dict[str, int] = {}
        self.copiers: dict[str, set[int]] = {}

    def __call__(self, round: Round, messages: Sequence[wire.Message]) -> None:
        """Compare and score the payloads of a round. Called before the round changes the slow weights."""
        samples = {message.header.peer: self.sampler.sample(message) for message in messages}
        self.forget_old(round)
        self.accuse_copies(round, samples)
        scores = self.score(messages)
        self.test(round, scores, samples)
        self.recent.append(samples)
        self.took_part = set(samples)
        self.votes.accused = [peer for peer in self.accused if self.is_vote(peer)]

    def forget_old(self, round: Round) -> None:
        """End the accusations that have lasted LASTING rounds, and begin the tests of these peers again."""
        for peer in [peer for peer, since in self.accused.items() if round.number - since >= LASTING]:
            del self.accused[peer]
            self.copiers.pop(peer, None)
            self.training.forget(peer)
            self.benefit.forget(peer)

    def accuse_copies(self, round: Round, samples: Mapping[str, Sample]) -> None:
        """Accuse the peers whose payloads repeat payloads of earlier rounds, or this peer's own one of this round."""
        if self.peer in samples:
            shares = overlaps(list(samples.values()), [samples[self.peer]]).squeeze(1).tolist()
            for peer, share in zip(samples, shares, strict=True):
                if share > EXACT:
                    self.accuse_copier(round, peer, "repeats the payload of this peer of the same round")
        for ago, earlier in enumerate(reversed(self.recent), start=1):
            for peer, (other, share) in closest(samples, earlier).items():
                if share > COPY:
                    whose = "its own payload" if other == peer else f"the payload of {other}"
                    why = f"repeats {share:.0%} of {whose} of round {round.number + 1 - ago}"
                    self.accuse_copier(round, peer, why, counts=peer in earlier)

    def accuse_copier(self, round: Round, peer: str, why: str, *, counts: bool = True) -> None:
        """Accuse a peer of copying. `counts`: whether this copy counts for a vote."""
        if peer not in (self.peer, *self.accused):
            self.copiers[peer] = set()
        if counts and peer in self.copiers:
            self.copiers[peer].add(round.number)
        self.accuse(round, peer, why)

    def is_vote(self, accused: str) -> bool:
        """Return whether this peer's messages list an accused peer: not if it has only copied, in too few rounds."""
        return accused not in self.copiers or len(self.copiers[accused]) >= COPIES

    def score(self, messages: Sequence[wire.Message]) -> dict[str, Score]:
        """Choose payloads of other peers, and return their scores by peer.

        Payloads of peers that did not take part in the previous round are not chosen, because those peers may have
        trained on windows that an older commit determined.
        """
        known = messages if self.took_part is None else [m for m in messages if m.header.peer in self.took_part]
        accusers = self.votes.accusers(messages)
        chosen = self.selection.choose(known, accusers, self.accused)
        scores = self.measurement.scores(messages, chosen, self.commit()) if chosen else {}
        honest = [peer for peer, score in scores.items() if self.is_honest(peer, score)]
        self.selection.learn(messages[0].header.round, honest, accusers)
        return scores

    def is_honest(self, peer: str, score: Score) -> bool:
        """Return whether a peer is not accused, its benefit is known and honest, and its gain, if known, is honest."""
        benefit = score.benefit is not None and self.benefit.is_honest(peer, score.benefit)
        return peer not in self.accused and benefit and (not score.gain or self.training.is_honest(peer, score.gain))

    def test(self, round: Round, scores: Mapping[str, Score], samples: Mapping[str, Sample]) -> None:
        """Add the scores to the tests of each peer, emit the scores, and accuse the peers that fail a test."""
        idle = self.training.observe({peer: score.gain for peer, score in scores.items() if score.gain})
        benefits = {peer: score.benefit for peer, score in scores.items() if score.benefit}
        harmful = self.benefit.observe(benefits)
        for peer, score in scores.items():
            evidence = min(test.evidence[peer] for test in (self.training, self.benefit))
            self.emit("score", **fields_of(round, peer, score), evidence=evidence)
        for peer in (*idle, *harmful):
            self.copiers.pop(peer, None)
        for peer in idle:
            self.accuse(round, peer, self.why_idle(peer) + repeated(peer, samples))
        for peer in harmful:
            self.accuse(round, peer, self.why_harmful(peer, benefits[peer].value))

    def why_idle(self, peer: str) -> str:
        """Return the reason for an accusation by the test of the gains."""
        usual, scored = self.training.usual(peer), self.training.scores[peer]
        return f"does not train on its assigned windows: {scored} payloads scored, gain of others {usual:.2g} nats"

    def why_harmful(self, peer: str, last: float) -> str:
        """Return the reason for an accusation by the test of the benefits. `last`: the peer's last benefit."""
        share, scored = last / self.benefit.usual(peer), self.benefit.scores[peer]
        return f"hardly helps, or does harm: {scored} payloads scored, benefit of the last one {share:.0%} of the usual"

    def accuse(self, round: Round, peer: str, why: str) -> None:
        """Emit an accusation, never of this peer itself, and not again while an earlier one of the peer lasts."""
        if peer in self.accused or peer == self.peer:
            return
        self.accused[peer] = round.number
        self.emit("accusation", round=round.number + 1, peer=peer, commit=self.commit().hex(), why=why)
        self.emit("status", text=f"{peer} is accused: it {why}")


def benefit_test() -> ShortfallTest:
    """Return the test of benefits. The benefit of the evaluator's own payload is 1 by definition."""
    return ShortfallTest(share=BENEFIT_SHARE, own=1.0, spread=BENEFIT_SPREAD)


def repeated(peer: str, samples: Mapping[str, Sample]) -> str:
    """Return a text that states which other payload of the round the payload of `peer` repeats, or "" if none."""
    others = {other: sample for other, sample in samples.items() if other != peer}
    other, share = closest({peer: samples[peer]}, others)[peer]
    return f"; its payload repeats {share:.0%} of that of {other}" if share > COPY else ""


def fields_of(round: Round, peer: str, score: Score) -> dict[str, Any]:
    """Return the fields of a "score" event."""
    return {
        "round": round.number + 1,
        "peer": peer,
        "assigned": score.assigned,
        "other": score.other,
        "gain": score.gain and score.gain.value,
        "gain_error": score.gain and score.gain.error,
        "benefit": score.benefit and score.benefit.value,
        "benefit_error": score.benefit and score.benefit.error,
    }
