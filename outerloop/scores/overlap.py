"""Measure how much of a payload another payload repeats.

    sparse tensor:  |A ∩ B| / max(|A|, |B|)        A, B: positions of the values that are not 0 in the two payloads
    dense tensor:   |E| / max(|A|, |B|)            E: the positions in A ∩ B at which both magnitudes are equal

Signs are ignored, so a copy with flipped signs counts as a copy. Numerators and denominators are summed over all
tensors before dividing. A tensor counts as dense if the larger payload has more than DENSE of its values. The larger
count is the denominator: otherwise, a payload with few values would make later payloads of honest peers look like
copies of it. Only SAMPLE consecutive values of each tensor are compared, at an offset that only the evaluator knows.

Measured with top-k payloads of honest peers (scripts/results/scores), the largest share of common positions is:

    two peers, same round             36 % in round 1, when gradients still agree, and 7 % in round 10
    two peers, consecutive rounds     14 %
    one peer, consecutive rounds      less than 2 %: values that were just sent are not in the residual any more

So an overlap above 40 % proves a copy by itself only if the other payload is of an earlier round.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from torch import Tensor

from outerloop import wire
from outerloop.core.codec import UpdateCodec
from outerloop.types import Tensors

COPY = 0.4
"""Overlap with a payload of an earlier round above which a payload counts as a copy (arXiv 2505.21684)."""
SAMPLE = 4096
"""Number of consecutive values that are compared per tensor."""
DENSE = 0.2
"""Share of nonzero values above which a tensor is compared by its magnitudes."""

Sample = list[Tensor]
"""Magnitudes of one payload at the sampled positions, one tensor of at most SAMPLE values per compared tensor."""


class PayloadSampler:
    """Reads the sampled values of payloads. All payloads of a run are sampled at the same positions.

    Args:
        like: the slow weights. Tensors of fewer than SAMPLE values are compared only if there are no larger ones.
        random: chooses the positions. Other peers must not be able to predict them.
    """

    def __init__(self, codec: UpdateCodec, like: Tensors, random: Random) -> None:
        large = {name: x for name, x in like.items() if x.numel() >= SAMPLE}
        self.codec, self.like = codec, large or dict(like)
        self.starts = {name: random.randrange(max(1, x.numel() - SAMPLE + 1)) for name, x in self.like.items()}

    def sample(self, message: wire.Message) -> Sample:
        """Return the magnitudes of a payload at the sampled positions.

        If the codec sends coefficients of a transform, the magnitudes are those of the coefficients.
        """
        return [
            self.codec.coefficients(message, name, x).flatten()[start : start + SAMPLE].abs().cpu()
            for (name, x), start in zip(self.like.items(), self.starts.values(), strict=True)
        ]


def overlap(one: Sample, other: Sample) -> float:
    """Return the share of the larger payload's values that the other payload repeats, 0 .. 1."""
    counts = [counts_of(a, b) for a, b in zip(one, other, strict=True)]
    possible = sum(count for _, count in counts)
    return sum(matches for matches, _ in counts) / possible if possible else 0.0


def counts_of(one: Tensor, other: Tensor) -> tuple[int, int]:
    """Return how many sampled values of a tensor match, and the larger one of the two numbers of nonzero values."""
    sent, also = one != 0, other != 0
    possible = max(int(sent.sum()), int(also.sum()))
    both = sent & also
    matches = both & (one == other) if possible > DENSE * len(one) else both
    return int(matches.sum()), possible


def closest(sample: Sample, others: Mapping[str, Sample]) -> tuple[str, float]:
    """Return the peer with the most similar payload among `others`, and the overlap; ("", 0) if there is none."""
    found = [(overlap(sample, each), peer) for peer, each in others.items()]
    best, peer = max(found, default=(0.0, ""))
    return peer, best
