"""Print the README's tree: every package of outerloop with the first sentence of its docstring."""

import argparse
import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OTHERS = {
    "configs/": "hydra: one group an axis, recipe/<paper>.yaml joins them; `train --cfg` shows a run's",
    "scripts/": "setup.sh, train.sh, test.sh; benchmarks, with published figures and their commands in results/",
    "tests/": "the tests, in a tree like that of the package",
    "docs/": "the threat model",
}


def purpose(package: Path) -> str:
    """Return the first line of a package's docstring, without the name of the axis."""
    text = (ast.get_docstring(ast.parse((package / "__init__.py").read_text())) or "").split("\n")[0]
    return re.sub(r"^(AXIS \w+|The swarm|`outerloop[^`]*`): ", "", text).rstrip(".")


def rows(folder: Path, depth: int) -> list[tuple[str, str]]:
    """Return name and purpose of every package below a folder."""
    found = []
    for path in sorted(one.parent for one in folder.glob("*/__init__.py")):
        found += [(f"{'  ' * depth}{path.name}/", purpose(path)), *rows(path, depth + 1)]
    return found


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    tree = [("outerloop/", "the package"), *rows(ROOT / "outerloop", depth=1), *OTHERS.items()]
    print("\n".join(f"{name:<24}{what}" for name, what in tree))
