"""How many sequences fit in memory: the sizes that are tried, passes that run out of memory, bytes of one sequence."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn

from outerloop.inner.micro_batch import TrialPass, halved, largest


class Small(nn.Module):
    """Fails as a GPU does if a pass has more than `limit` sequences."""

    def __init__(self, limit):
        super().__init__()
        self.table, self.limit, self.passes = nn.Embedding(7, 7), limit, []

    def forward(self, tokens):
        self.passes.append(len(tokens))
        if len(tokens) > self.limit:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return self.table(tokens)


def trial(limit):
    return TrialPass(Small(limit), nullcontext, seq_len=5, vocab_size=7)


@pytest.mark.parametrize(("batch", "sizes"), [(1, [1]), (8, [8, 4, 2, 1]), (12, [12, 6, 3, 2, 1]), (5, [5, 3, 2, 1])])
def test_the_batch_is_halved_down_to_one_sequence(batch, sizes):
    assert list(halved(batch)) == sizes


@pytest.mark.parametrize(("limit", "chosen"), [(9, 8), (8, 8), (7, 4), (3, 2), (1, 1), (0, None)])
def test_passes_run_until_one_fits(limit, chosen):
    passes = trial(limit)
    assert largest(8, passes.fits) == chosen
    assert passes.model.passes[0] == 8, "the whole batch comes first"


def test_a_trial_leaves_weights_as_they_are_and_no_gradients():
    passes = trial(4)
    before = passes.model.table.weight.detach().clone()
    assert passes.fits(4) and not passes.fits(5)
    assert torch.equal(passes.model.table.weight, before) and passes.model.table.weight.grad is None


def test_the_bytes_of_a_sequence_are_those_of_its_tensors():
    """At least the logits and their gradient: 2 x 500 tokens x 7 values x 4 bytes; the weights are 7 x 7 values."""
    short, long = (
        TrialPass(Small(1), nullcontext, seq_len=length, vocab_size=7).bytes_per_sequence() for length in (500, 1000)
    )
    assert 2 * 500 * 7 * 4 < short < 6 * 500 * 7 * 4
    assert long == pytest.approx(2 * short, rel=0.05)
