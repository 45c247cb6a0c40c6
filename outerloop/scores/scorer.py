"""Score payloads of each round before it lands, and accuse peers that copy payloads or do not train.

copy          the payload repeats more than 40 % of a payload of an earlier round, which may be the sender's own
              (overlap.py). Both payloads are signed, and anyone who has them can compare them
no training   over several rounds, the sender's payloads have a smaller gain than those of most senders (gain.py,
              sequential_test.py)

An accusation is a row of metrics.jsonl and a status line. It has no other effect: no message is sent, no peer is
expelled, and the weights are bit-identical to those without scores.

If two payloads of the same round repeat each other, this does not show which of the two peers copied. The payload of
the copier has no gain on the copier's own assigned windows, so the test `no training` accuses the copier, and the
accusation names the other peer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from outerloop import wire
from outerloop.core.outer_loop import OuterLoop
from outerloop.scores.gain import Gain
from outerloop.scores.measurement import Measurement, Score
from outerloop.scores.overlap import COPY, PayloadSampler, Sample, closest
from outerloop.scores.sequential_test import TrainingTest
from outerloop.types import Round

Emit = Callable[..., None]
RECENT = 2
"""A payload is compared with the payloads of this many earlier rounds."""
GAIN_SHARE = 0.9
"""A gain counts as honest if it is at least this share of the median gain of the other peers."""


class PayloadScorer:
    """Scores payloads for one peer. An instance is an observer of landings (core/land.py).

    The attribute `accused` maps each accused peer to the reason.

    Args:
        outer: the outer loop of this peer.
        measurement: measures single payloads.
        commit: returns the hash of the last landed commit, which determined the assigned windows; empty if unknown.
        share: share of the payloads of a round that are scored, 0 .. 1. If this is not a whole number of payloads, it
            is rounded up or down at random, so that the mean is `share`.
        random: chooses payloads; others must not know its state.
        emit: emit(event, **fields) emits an event of this worker.
    """

    def __init__(
        self,
        outer: OuterLoop,
        measurement: Measurement,
        *,
        commit: Callable[[], bytes],
        share: float,
        random: Random,
        emit: Emit,
    ) -> None:
        self.peer, self.measurement, self.commit = outer.exchange.peer, measurement, commit
        self.share, self.random, self.emit = share, random, emit
        self.sampler = PayloadSampler(outer.codec, outer.slow, random)
        self.recent: deque[dict[str, Sample]] = deque(maxlen=RECENT)
        self.took_part: set[str] | None = None
        self.training = TrainingTest(share=GAIN_SHARE)
        self.accused: dict[str, str] = {}

    def __call__(self, round: Round, messages: Sequence[wire.Message]) -> None:
        """Compare and score the payloads of a round. Called before the round changes the slow weights."""
        samples = {message.header.peer: self.sampler.sample(message) for message in messages}
        self.accuse_copies(round, samples)
        scores = self.score(messages)
        self.test(round, scores, samples)
        self.recent.append(samples)
        self.took_part = set(samples)

    def accuse_copies(self, round: Round, samples: Mapping[str, Sample]) -> None:
        """Accuse the peers whose payloads repeat payloads of earlier rounds."""
        for ago, earlier in enumerate(reversed(self.recent), start=1):
            for peer, sample in samples.items():
                other, share = closest(sample, earlier)
                if share > COPY:
                    whose = "its own payload" if other == peer else f"the payload of {other}"
                    self.accuse(round, peer, f"repeats {share:.0%} of {whose} of round {round.number + 1 - ago}")

    def score(self, messages: Sequence[wire.Message]) -> dict[str, Score]:
        """Choose payloads of a round, and return their scores by peer.

        Payloads of peers that did not take part in the previous round are not chosen, because those peers may have
        trained on windows that an older commit determined.
        """
        commit = self.commit()
        known = [m for m in messages if self.took_part is None or m.header.peer in self.took_part]
        count = int(self.share * len(known) + self.random.random())
        chosen = self.random.sample(known, min(count, len(known)))
        return self.measurement.scores(messages, chosen, commit) if chosen and commit else {}

    def test(self, round: Round, scores: Mapping[str, Score], samples: Mapping[str, Sample]) -> None:
        """Add the scores to the test of each peer, emit the scores, and accuse the peers that fail their test."""
        idle = self.training.observe({peer: score.gain for peer, score in scores.items()})
        for peer, score in scores.items():
            self.emit("score", **fields_of(round, peer, score), evidence=self.training.evidence[peer])
        for peer in idle:
            self.accuse(round, peer, self.why_idle(peer) + repeated(peer, samples))

    def why_idle(self, peer: str) -> str:
        """Return the reason for an accusation by the test of the gains."""
        usual, scored = self.training.usual(peer), self.training.scores[peer]
        return f"does not train on its assigned windows: {scored} payloads scored, gain of others {usual:.2g} nats"

    def accuse(self, round: Round, peer: str, why: str) -> None:
        """Emit an accusation, once for each peer and never of this peer itself."""
        if peer in self.accused or peer == self.peer:
            return
        self.accused[peer] = why
        self.emit("accusation", round=round.number + 1, peer=peer, commit=self.commit().hex(), why=why)
        self.emit("status", text=f"{peer} is accused: it {why}")


def repeated(peer: str, samples: Mapping[str, Sample]) -> str:
    """Return a text that states which other payload of the round the payload of `peer` repeats, or "" if none."""
    others = {other: sample for other, sample in samples.items() if other != peer}
    other, share = closest(samples[peer], others)
    return f"; its payload repeats {share:.0%} of that of {other}" if share > COPY else ""


def fields_of(round: Round, peer: str, score: Score) -> dict[str, Any]:
    """Return the fields of a "score" event."""
    gain: Gain = score.gain
    return {
        "round": round.number + 1,
        "peer": peer,
        "assigned": score.assigned,
        "other": score.other,
        "gain": gain.value,
        "gain_error": gain.error,
    }
