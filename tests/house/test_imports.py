"""What each package may import. Which packages of outerloop stand above which others is in pyproject.toml, checked by
import-linter (scripts/test.sh): here is what it cannot say.
"""

import ast
import functools
import subprocess
import sys
from pathlib import Path

import pytest

import outerloop

ROOT = Path(outerloop.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
LIBRARY = "__future__ collections dataclasses enum functools hashlib heapq itertools math random re statistics typing"


@functools.cache
def packages(path: Path) -> set[str]:
    """Return every package that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        if isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
    return found


@pytest.mark.parametrize(
    ("package", "home"),
    [
        ("hydra", "config launcher commands"),
        ("omegaconf", "config launcher simulation commands report"),
        ("hivemind", "swarm"),
        ("wandb", "sinks"),
        ("rich", "sinks commands report launcher"),
        ("datasets", "inner"),
        ("transformers", "inner integrations"),
        ("lightning", "integrations"),
        ("matplotlib", "report"),
        ("numba", "kernels"),
        ("llvmlite", "kernels"),
        ("starlette", "watch"),
        ("uvicorn", "watch"),
        ("triton", "kernels"),
    ],
)
def test_a_dependency_has_one_home(package, home):
    found = {path.relative_to(ROOT).parts[0] for path in FILES if package in packages(path)}
    assert found and found <= set(home.split())


@pytest.mark.parametrize(
    ("files", "more"),
    [
        ("swarm/consensus/*.py", "msgpack"),
        ("swarm/consensus/hotstuff/*.py", ""),
        ("plan/*.py", "numpy"),
        ("swarm/gossip/pair.py", ""),
        ("swarm/gossip/pairing.py", ""),
        ("swarm/gossip/partner_policy.py", ""),
        ("swarm/gossip/pairing_timeout.py", ""),
    ],
)
def test_pure_modules_know_no_network_and_no_clock(files, more):
    paths = sorted(ROOT.glob(files))
    assert paths
    for path in paths:
        assert packages(path) <= {"outerloop", *LIBRARY.split(), *more.split()}, path


@pytest.mark.parametrize(
    ("modules", "slow"),
    [
        ("outerloop.swarm.consensus.chain", ("hivemind", "torch", "asyncio")),
        ("outerloop.launcher.train, outerloop.commands.plan", ("hivemind", "matplotlib", "transformers")),
        ("outerloop.commands.status, outerloop.commands.watch", ("numba", "transformers", "outerloop.kernels")),
    ],
)
def test_modules_do_not_import_slow_packages_that_they_do_not_need(modules, slow):
    code = f"import sys, {modules}; print(*{set(slow)} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_folders_can_be_taken_in_at_a_glance():
    most = {ROOT: 8}
    for folder in {path.parent for path in FILES}:
        assert len(list(folder.glob("*.py"))) <= most.get(folder, 20), folder
