"""python -m outerloop"""

import os
import sys

if sys.path[0] in ("", os.getcwd()):
    del sys.path[0]  # the current folder, put there by `python -m`: its files are not ours (commands/own_code.py)

from outerloop.commands.main import entry

entry()
