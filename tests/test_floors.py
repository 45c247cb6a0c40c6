"""Arrows point down: no module imports from its own floor's neighbours or from above."""

import ast
from pathlib import Path

import pytest

import outerloop

ROOT = Path(outerloop.__file__).parent
FLOORS = [
    {"types"},
    {"protocols", "portable"},
    {"durable", "kernels", "rng", "lr", "pace", "dealing", "snapshot", "ranks", "cut", "hardware", "sharded_pickle"},
    {"aggregate", "compress", "feedback", "wire", "island", "schedule", "checkpoint", "swarm"},
    {
        "methods",
        "exchange",
        "payload",
        "rounds",
        "compatibility",
        "replica",
        "loco",
        "buffers",
        "gathered",
        "held",
        "meter",
        "sharded_index",
    },
    {"routes", "inheritance", "sharded_files"},
    {"judge", "eager", "course", "departures"},
    {"loop"},
    {"replicas", "memory", "resharding", "beginning"},
    {"ending"},
    {"inner", "report", "sinks", "plan"},
    {"commands"},
]
HEIGHT = {room: height for height, floor in enumerate(FLOORS) for room in floor}


def room_of(path: Path) -> str:
    return path.relative_to(ROOT).with_suffix("").parts[0]


def imports(path: Path) -> set[str]:
    """The rooms of outerloop that a file imports, also inside functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "outerloop":
            names = node.module.split(".")[1:2] or [alias.name for alias in node.names]
            found |= set(names) & HEIGHT.keys()
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("outerloop.")}
    return found


FILES = [path for path in ROOT.rglob("*.py") if path.parent != ROOT or path.stem not in ("__init__", "__main__")]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_down(path):
    own = room_of(path)
    assert own in HEIGHT, f"{own} has no floor"
    for room in imports(path) - {own}:
        assert HEIGHT[room] < HEIGHT[own], f"{path} imports {room}, which is not below {own}"


def packages(path: Path) -> set[str]:
    """Every package that a file imports, anywhere in it."""
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
        ("hydra", "commands"),
        ("omegaconf", "commands report"),
        ("hivemind", "swarm"),
        ("wandb", "sinks"),
        ("rich", "sinks commands report"),
        ("datasets", "inner"),
        ("transformers", "inner"),
        ("lightning", "inner"),
        ("matplotlib", "report"),
        ("numba", "kernels"),
        ("llvmlite", "kernels"),
        ("triton", "kernels"),
    ],
)
def test_a_package_has_one_home(package, home):
    assert {room_of(path) for path in FILES if package in packages(path)} <= set(home.split())


AGREEMENT = (
    "agreement ballots closing commits decree fields forks gathering justification leading memory outputs"
    " pacemaker scrutiny statements succession waiting"
)


@pytest.mark.parametrize("name", AGREEMENT.split())
def test_the_agreement_knows_no_network_and_no_clock(name):
    path = ROOT / "swarm" / f"{name}.py"
    pure = "__future__ collections dataclasses functools hashlib itertools re typing msgpack outerloop"
    assert packages(path) <= set(pure.split())
    nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
    modules = {node.module for node in nodes if node.module != "outerloop.swarm"}
    modules |= {
        f"outerloop.swarm.{one.name}" for node in nodes if node.module == "outerloop.swarm" for one in node.names
    }
    inside = {module for module in modules if module and module.startswith("outerloop")}
    assert inside <= {f"outerloop.swarm.{one}" for one in AGREEMENT.split()}


def test_the_planner_knows_numpy_alone():
    pure = "__future__ collections dataclasses heapq math numpy outerloop random statistics typing"
    for path in (ROOT / "plan").glob("*.py"):
        assert packages(path) <= set(pure.split())
        assert imports(path) <= {"plan"}


@pytest.mark.parametrize("name", ["pairing", "partners", "patience"])
def test_who_meets_whom_knows_no_network_and_no_clock(name):
    pure = "__future__ collections dataclasses random statistics typing outerloop"
    assert packages(ROOT / "swarm" / f"{name}.py") <= set(pure.split())
