"""Python imports this by itself when the folder is in PYTHONPATH: workers of bench_faults.py can be made to misbehave.

The package knows nothing of it. Once a worker's own module is imported, misbehave.py and lie.py change what they need.
"""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from importlib.util import find_spec
from typing import Any

WORKER = "outerloop.launcher.worker_process"


class AfterImport(MetaPathFinder):
    """Once, for one module."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != WORKER:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        assert spec is not None and spec.loader is not None
        run = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            import lie
            import misbehave

            run(module)
            misbehave.install()
            lie.install()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, AfterImport())
