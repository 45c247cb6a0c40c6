"""Score payloads of each round before it lands, and accuse peers that copy payloads or do not train.

copy          the payload repeats more than 40 % of a payload of an earlier round, its sender's own included
              (overlap.py). Both payloads are signed, and anyone who has them can compare them
no training   over several rounds, the windows assigned to the sender gain less than those of most senders do
              (gain.py, sequential_test.py)

An accusation is a row of metrics.jsonl and a status line. Nothing else follows from it: no message is sent, no peer is
expelled, and the weights are the same bits as without scores.

Two payloads of the same round that repeat each other do not show which peer copied. The copier does not gain on its own
windows, so `no training` accuses it, and the accusation names the other peer.
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
"""Number of earlier rounds with whose payloads a payload is compared."""
GAIN_SHARE = 0.9
"""Smallest share of the others' median gain on assigned windows that counts as honest."""


class PayloadScorer:
    """Scores payloads for one peer. An instance is an observer of landings (core/land.py).

    The attribute `accused` maps each accused peer to the reason.

    Args:
        outer: the outer loop of this peer.
        measurement: measures single payloads.
        commit: returns the hash of the last landed commit, which determined the assigned windows; empty if unknown.
        share: share of the payloads of a round that are scored, 0 .. 1; the fraction of one payload is decided by lot.
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
        """Compare and score the payloads of a round, whose slow weights have not changed yet."""
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

        Payloads of peers that were not in the round before are not chosen, because those peers may have trained on
        windows that an older commit determined.
        """
        commit = self.commit()
        known = [m for m in messages if self.took_part is None or m.header.peer in self.took_part]
        count = int(self.share * len(known) + self.random.random())
        chosen = self.random.sample(known, min(count, len(known)))
        return self.measurement.scores(messages, chosen, commit) if chosen and commit else {}

    def test(self, round: Round, scores: Mapping[str, Score], samples: Mapping[str, Sample]) -> None:
        """Add the scores to the tests, emit them, and accuse the peers that fail a test."""
        idle = self.training.observe({peer: score.gain for peer, score in scores.items()})
        for peer, score in scores.items():
            self.emit("score", **fields_of(round, peer, score), evidence=self.training.evidence[peer])
        for peer in idle:
            self.accuse(round, peer, self.why_idle(peer) + repeated(peer, samples))

    def why_idle(self, peer: str) -> str:
        """Return the reason for an accusation by the test of the gains."""
        usual, scored = self.training.usual(peer), self.training.scores[peer]
        return f"does not train on its assigned windows: {scored} scores of its payloads, usual gain {usual:.2g} nats"

    def accuse(self, round: Round, peer: str, why: str) -> None:
        """Emit an accusation, once for each peer and never of this peer itself."""
        if peer in self.accused or peer == self.peer:
            return
        self.accused[peer] = why
        self.emit("accusation", round=round.number + 1, peer=peer, commit=self.commit().hex(), why=why)
        self.emit("status", text=f"{peer} is accused: it {why}")


def repeated(peer: str, samples: Mapping[str, Sample]) -> str:
    """Return the addition to a reason if the payload repeats another one of the same round, else ""."""
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
