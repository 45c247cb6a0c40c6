"""Let OpenMP's threads sleep while they wait for each other; to be imported before torch, which loads OpenMP.

By default they spin for milliseconds at the end of every operation. Beside another program on the same core that is the
time the thread they wait for needs to run: 20 inner steps took 200 s instead of 3. Set OMP_WAIT_POLICY=active where a
machine trains nothing else.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
