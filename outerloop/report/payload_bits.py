"""Compute how many bits one worker sends per parameter and round.

    bits = 8 · payload bytes · fragments / payloads / parameters

With fragments, a payload contains one fragment, and a round consists of one payload per fragment. Rounds in which the
worker sent nothing are not counted, so the bits of a worker that joined late are like those of others.

This file imports no torch, so that programs that only read records start quickly.
"""

from __future__ import annotations


def bits_per_param(payload_bytes: int, payloads: int, *, fragments: int, params: int) -> float:
    """Return the payload bits per parameter and round of one worker, or 0 if it has sent no payload.

    Args:
        payload_bytes: size of all its payloads together, each counted once.
        payloads: number of its payloads that are not empty.
        fragments: number of payloads per round.
        params: trainable parameters.
    """
    return 8 * payload_bytes * fragments / payloads / params if payloads else 0.0
