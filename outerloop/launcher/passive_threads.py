"""Make OpenMP's threads sleep while they wait for each other. Import this before torch, which loads OpenMP.

By default, they busy-wait for milliseconds at the end of every operation. If another program runs on the same core,
busy-waiting takes the CPU time that the slowest thread needs to finish: 20 inner steps took 200 s instead of 3 s. On a
machine that runs nothing else, set OMP_WAIT_POLICY=active.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
