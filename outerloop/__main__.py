"""Run the command line with `python -m outerloop`."""

import sys
from pathlib import Path

if sys.path[0] in ("", str(Path.cwd())):
    del sys.path[0]  # `python -m` adds the current folder, whose files would shadow installed modules

from outerloop.commands.main import entry

entry()
