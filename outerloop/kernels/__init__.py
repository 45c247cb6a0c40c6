"""The arithmetic of the hot path. `reference` defines it in plain torch."""

import logging

try:
    from outerloop.kernels import cpu_positions  # noqa: F401  registers itself
except ImportError as missing:
    logging.getLogger(__name__).warning("no compiled loops, kernels run in plain torch: %s", missing)
