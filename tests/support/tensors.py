"""Comparisons of tensors by name."""

from collections.abc import Mapping

import torch


def same_tensors(first: Mapping[str, torch.Tensor], second: Mapping[str, torch.Tensor]) -> bool:
    """Return whether two mappings have the same names and equal tensors. At least one name is expected."""
    assert first, "nothing to compare"
    return first.keys() == second.keys() and all(torch.equal(x, second[name]) for name, x in first.items())
