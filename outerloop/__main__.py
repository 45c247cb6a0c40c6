"""python -m outerloop"""

import sys
from pathlib import Path

if sys.path[0] in ("", str(Path.cwd())):
    del sys.path[0]  # the current folder, put there by `python -m`: its files are not ours (config/user_code.py)

from outerloop.commands.main import entry

entry()
