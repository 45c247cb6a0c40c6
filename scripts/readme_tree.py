"""Print the README's tree: every package of outerloop with the first sentence of its docstring."""

import argparse
import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OTHERS = {
    "configs/": "Options of a run: one hydra group per axis, recipe/<paper>.yaml combines them",
    "scripts/": "setup.sh, train.sh, test.sh; benchmarks; results/ with published figures and their commands",
    "tests/": "Tests, in a tree like that of the package",
    "docs/": "Threat model",
}


def purpose(package: Path) -> str:
    """Return the first sentence of a package's docstring, without the name of the axis."""
    text = (ast.get_docstring(ast.parse((package / "__init__.py").read_text())) or "").split("\n")[0]
    sentence = re.sub(r"^(AXIS \w+|The swarm|`outerloop[^`]*`): ", "", text).split(". ")[0].rstrip(".")
    return sentence[0].upper() + sentence[1:]


def rows(folder: Path, depth: int) -> list[tuple[str, str]]:
    """Return name and purpose of every package below a folder."""
    found = []
    for path in sorted(one.parent for one in folder.glob("*/__init__.py")):
        found += [(f"{'  ' * depth}{path.name}/", purpose(path)), *rows(path, depth + 1)]
    return found


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    tree = [("outerloop/", "The package"), *rows(ROOT / "outerloop", depth=1), *OTHERS.items()]
    print("\n".join(f"{name:<24}{what}" for name, what in tree))
