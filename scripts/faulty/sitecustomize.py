"""Install the faults in a worker: Python imports this module at startup if its folder is in PYTHONPATH.

The package does not refer to it. As soon as the worker's module is imported, misbehave.py and lie.py patch the methods
that they need. They are imported by the name of their folder, so its parent is added to the path.
"""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Any

WORKER = "outerloop.launcher.worker_process"


class AfterImport(MetaPathFinder):
    """An import hook that installs the faults once, after WORKER has been imported."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != WORKER:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        assert spec is not None and spec.loader is not None
        run = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            run(module)
            sys.path.append(str(Path(__file__).resolve().parent.parent))
            from faulty import lie, misbehave

            misbehave.install()
            lie.install()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, AfterImport())
