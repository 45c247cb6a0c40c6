"""Arithmetic of the hot path: torch operators, each with a reference implementation in plain torch and fast kernels.

Torch's dispatcher calls the kernel that is registered for the device (cpu/, triton/), or the
reference implementation if no kernel is.
"""

import logging

import torch

try:
    from outerloop.kernels import cpu  # noqa: F401  the import registers the kernels
except ImportError as missing:
    logging.getLogger(__name__).warning(
        "compiled loops are not available, so the kernels run in plain torch: %s", missing
    )
if torch.cuda.is_available():
    try:
        from outerloop.kernels import triton  # noqa: F401  the import registers the kernels
    except ImportError as missing:
        logging.getLogger(__name__).warning(
            "Triton kernels are not available, so the kernels run in plain torch on the GPU: %s", missing
        )
