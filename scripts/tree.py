"""Prints the README's tree: every module of outerloop and the first sentence of its docstring."""

import argparse
import ast
import re
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OTHERS = {
    "configs/": "hydra: one group an axis, recipe/<paper>.yaml joins them; train --cfg shows a run's",
    "scripts/": "setup.sh train.sh test.sh, tree.py; results/ holds published figures with their commands",
    "tests/": "floors, contract suites fed by configs/*, reductions, failed rounds, swarm, this file's commands",
}


def clause(path: Path) -> str:
    """The first sentence of a module's docstring, without the name of the axis."""
    text = (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n")[0]
    text = re.sub(r"^(AXIS \w+|The swarm|`outerloop[^`]*`): ", "", text)
    return textwrap.shorten(re.split(r"\. |\.$| \(arXiv", text)[0], 92, placeholder=" ...")


def lines(folder: Path, depth: int = 0) -> list[tuple[str, str]]:
    """Name and clause of each file, folders first line from their __init__."""
    out: list[tuple[str, str]] = []
    for path in sorted(folder.iterdir(), key=lambda p: (p.is_dir(), p.name)):
        if path.is_dir() and (path / "__init__.py").exists():
            out.append((f"{'  ' * depth}{path.name}/", clause(path / "__init__.py")))
            out += lines(path, depth + 1)
        elif path.suffix == ".py" and not path.name.startswith("__"):
            out.append((f"{'  ' * depth}{path.name}", clause(path)))
    return out


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    tree = [("outerloop/", "the package"), *lines(ROOT / "outerloop", depth=1), *OTHERS.items()]
    print("\n".join(f"{name:<26}{what}" for name, what in tree))
