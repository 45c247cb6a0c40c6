"""Import hivemind quietly: to be imported before anything of hivemind is.

Its log shows errors only (HIVEMIND_LOGLEVEL still rules), and its import keeps torch's way of sharing tensors with data
loaders: hivemind would choose files, which a kill -9 leaves in /dev/shm.
"""

import logging
import os

os.environ.setdefault("HIVEMIND_MEMORY_SHARING_STRATEGY", "file_descriptor")

import hivemind  # noqa: F401  (after the line above, and before the one below: the import sets the level)

if "HIVEMIND_LOGLEVEL" not in os.environ:
    logging.getLogger("hivemind").setLevel(logging.ERROR)
