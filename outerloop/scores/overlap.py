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

from collections.abc import Mapping, Sequence
from random import Random

import torch
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


def closest(samples: Mapping[str, Sample], others: Mapping[str, Sample]) -> dict[str, tuple[str, float]]:
    """Return for each payload the peer with the most similar payload among `others`, and the overlap with it.

    Return ("", 0) for each payload if there are no others.
    """
    if not samples or not others:
        return dict.fromkeys(samples, ("", 0.0))
    rows = overlaps(list(samples.values()), list(others.values())).tolist()
    best = (max(zip(row, others, strict=True)) for row in rows)
    return {peer: (other, share) for peer, (share, other) in zip(samples, best, strict=True)}


def overlaps(ones: Sequence[Sample], others: Sequence[Sample]) -> Tensor:
    """Return the share of the larger payload's values that the other one repeats, 0 .. 1, for all pairs: [P, Q].

    P and Q: number of payloads in `ones` and in `others`, at least 1.
    """
    matches_PQ = possible_PQ = torch.zeros(len(ones), len(others), dtype=torch.int64)
    for one_P, other_Q in zip(zip(*ones, strict=True), zip(*others, strict=True), strict=True):
        counts_PQ, larger_PQ = counts_of(torch.stack(one_P), torch.stack(other_Q))
        matches_PQ, possible_PQ = matches_PQ + counts_PQ, possible_PQ + larger_PQ
    return matches_PQ.double() / possible_PQ.clamp(min=1)


def counts_of(one_PS: Tensor, other_QS: Tensor) -> tuple[Tensor, Tensor]:
    """Compare the S sampled values of one tensor in P payloads with those in Q payloads.

    Return how many values match, and the larger one of the two numbers of nonzero values, for all pairs: [P, Q], int64.
    """
    sent_PS, sent_QS = one_PS != 0, other_QS != 0
    possible_PQ = torch.maximum(sent_PS.sum(1)[:, None], sent_QS.sum(1))
    common_PQ = (sent_PS.float() @ sent_QS.float().T).long()  # exact: counts of at most SAMPLE
    dense_PQ = possible_PQ > DENSE * one_PS.shape[1]
    if not dense_PQ.any():
        return common_PQ, possible_PQ
    equal_PQ = torch.stack([((x == other_QS) & (x != 0)).sum(1) for x in one_PS])
    return torch.where(dense_PQ, equal_PQ, common_PQ), possible_PQ
