"""The bytes of tensors that exist while operations run, and their peak."""

import torch

from outerloop.inner.live_bytes import LiveBytes


def test_bytes_are_counted_until_the_memory_is_freed():
    """1000 float32 values are 4000 bytes; a view and an operation in place create nothing."""
    with LiveBytes() as live:
        first = torch.zeros(1000)
        second = first + 1
        del first
        second.view(10, 100).add_(1)
        assert (live.now, live.peak) == (4000, 8000)
    assert float(second[0]) == 2


def test_tensors_saved_for_the_backward_pass_count_until_it_has_run():
    """x (50, 100) · w (100, 100): exp saves its result of 20,000 bytes; the gradient of w has 40,000."""
    w, x = torch.ones(100, 100, requires_grad=True), torch.ones(50, 100)
    with LiveBytes() as live:
        total = (x @ w).exp().sum()
        assert live.now == 20_000 + 4
        total.backward()
        del total
        assert live.now == 40_000
        w.grad = None
        assert live.now == 0
    assert live.peak >= 60_000
