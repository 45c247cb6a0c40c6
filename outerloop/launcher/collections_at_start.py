"""Collect garbage rarely while a program starts, because what it imports is not garbage.

With Python's own thresholds, looking for garbage takes about a fifth of the CPU time that a run needs before its first
step. Before that step, a worker restores them, because garbage may hold tensors. Commands that do not train keep the
higher threshold.
"""

from __future__ import annotations

import gc

USUAL = gc.get_threshold()
RARE = (10_000, *USUAL[1:])


def collect_rarely() -> None:
    """Look for garbage after 10,000 new objects, instead of after 700 or 2,000 (depending on the version of Python)."""
    gc.set_threshold(*RARE)


def collect_as_usual() -> None:
    """Restore the thresholds with which the program was started, if `collect_rarely` has changed them."""
    if gc.get_threshold() == RARE:
        gc.set_threshold(*USUAL)
