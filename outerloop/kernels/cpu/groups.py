"""Decode codes of groups of values, from several peers and on all threads."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from outerloop.kernels.cpu.arrays import as_array
from outerloop.kernels.threads import parallel_loops


def decode_groups_of_peers(
    decode: Callable[..., None], code: list[Tensor], level: list[Tensor], count: int, group: int
) -> Tensor:
    """Decode the codes and levels of P peers to (P, count) float32 on all threads.

    decode: compiled loop that decodes some of the groups of `group` values of one peer, such as `decode_groups`.
    """
    x_PN = torch.empty(len(code), count, dtype=torch.float32)
    arrays = [map(as_array, (sent.contiguous(), size.contiguous())) for sent, size in zip(code, level, strict=True)]
    loops = [partial(decode, *both, group, x) for both, x in zip(arrays, x_PN.numpy(), strict=True)]
    parallel_loops(loops, -(-count // group), values=count)
    return x_PN
