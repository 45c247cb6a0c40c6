"""Import hivemind quietly. Import this module before any module of hivemind.

After this import, hivemind logs only errors, unless HIVEMIND_LOGLEVEL is set. Torch keeps sharing data-loader tensors
through file descriptors. By default, hivemind would make torch share them through files, which stay in /dev/shm after a
kill -9.
"""

import logging
import os

os.environ.setdefault("HIVEMIND_MEMORY_SHARING_STRATEGY", "file_descriptor")

import hivemind  # noqa: F401  (hivemind reads the variable above when imported, and sets the log level changed below)

if "HIVEMIND_LOGLEVEL" not in os.environ:
    logging.getLogger("hivemind").setLevel(logging.ERROR)
