"""Define which training windows a peer is due to train on after a round, so that anyone can recompute them later.

    seed of the peer      S   = SHA-256(DOMAIN | c | p)
    start of window k     s_k = SHA-256(S | k) mod (n − L),    k = 0, 1, 2, …
    window k              tokens s_k .. s_k + L of the training text, L + 1 in all

    c    hash of the last commit that has landed when the inner step begins, 32 bytes; before the first landing, the
         hash of the genesis commit, which names the session and its members (swarm/consensus/commit.py)
    p    the peer id, in UTF-8
    k    8 bytes, big-endian. It counts the peer's windows since that landing, in the order in which it trains on them
    n    number of tokens of the whole training text;  L: inner.seq_len
    |    concatenation. A SHA-256 hash is read as a big-endian integer, which is so large that mod causes no bias

A commit's hash is unknown until its round is decided, so no peer can compute its windows in advance. They differ
between peers and between rounds. With an exchange that has no chain of commits:

    c = SHA-256(NO_CHAIN | "s r f"), where s is the run's seed, and r and f are the number and the fragment of the last
        landed round, −1 and 0 before the first landing; all in decimal
    p = the worker's rank, in decimal
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from outerloop.inner.data.windows import window
from outerloop.types import Round

if TYPE_CHECKING:
    from outerloop.inner.data.windows import TokenArray

DOMAIN = b"outerloop/1/windows\n"
NO_CHAIN = b"outerloop/1/round without a commit\n"
LATE_JOINER = b"outerloop/1/order of a late joiner\n"
BEFORE_FIRST = Round(-1)
"""Stands for the last landed round before any round has landed."""


def assigned_windows(tokens: TokenArray, *, commit: bytes, peer: str, numbers: Iterable[int], seq_len: int) -> Tensor:
    """Return the windows with these numbers k that `peer` is due to train on after `commit`: (n, seq_len + 1) int64.

    An inner step trains on inner.batch · inner.accumulate windows, so step i after the landing (from 0) trains on those
    with the numbers i · batch · accumulate up to (i + 1) · batch · accumulate − 1.
    """
    starts = window_starts(commit, peer, numbers, positions=len(tokens) - seq_len)
    return torch.stack([window(tokens, start, seq_len) for start in starts])


def window_starts(commit: bytes, peer: str, numbers: Iterable[int], *, positions: int) -> list[int]:
    """Return s_k for each k in `numbers`. `positions` = n − L, the number of positions at which a window can start."""
    seed = hashlib.sha256(DOMAIN + commit + peer.encode()).digest()
    hashes = (hashlib.sha256(seed + k.to_bytes(8, "big")).digest() for k in numbers)
    return [int.from_bytes(digest, "big") % positions for digest in hashes]


def hash_without_chain(seed: int, landed: Round) -> bytes:
    """Return c for an exchange without a chain of commits. `seed`: the run's; `landed`: the last landed round."""
    return hashlib.sha256(NO_CHAIN + f"{seed} {landed.number} {landed.fragment}".encode()).digest()


def late_joiner_seed(peer: str) -> int:
    """Return the seed (56 bits) of the order in which a late joiner reads the part of the text of a member.

    The late joiner and this member read the same part, but draw different windows.
    """
    return int.from_bytes(hashlib.sha256(LATE_JOINER + peer.encode()).digest()[:7], "big")
