"""Run the command line with `python -m outerloop`."""

import sys
from pathlib import Path

if sys.path[0] in ("", str(Path.cwd())):
    del sys.path[0]  # `python -m` put the current folder here; its files must not replace installed modules

from outerloop.commands.main import entry

entry()
