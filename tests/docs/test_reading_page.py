"""The guide to the code names files, classes and methods that exist."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/explanation/reading.md").read_text()
CODE = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", PAGE, flags=re.DOTALL | re.MULTILINE))


def test_every_file_exists():
    named = {name for name in CODE if re.fullmatch(r"[\w/]+(\.py|/\w+|/)", name)}
    assert len(named) > 12
    places = [ROOT / "outerloop" / name for name in named]
    assert [str(place) for place in places if not (place.exists() or place.with_suffix(".py").exists())] == []


def test_every_class_and_its_members_exist():
    members: dict[str, set[str]] = {}
    for file in (ROOT / "outerloop").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef):
                found = members.setdefault(node.name, set())
                for item in node.body:
                    match item:
                        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                            found.add(name)
                        case ast.AnnAssign(target=ast.Name(id=name)):
                            found.add(name)
    named = [name.split(".") for name in CODE if re.fullmatch(r"[A-Z][A-Za-z]+(\.\w+)?", name)]
    assert len(named) > 20
    missing = [name for name in named if name[0] not in members or not set(name[1:]) <= members[name[0]]]
    assert missing == []
