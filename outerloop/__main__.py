"""python -m outerloop"""

from outerloop.commands.main import entry

entry()
