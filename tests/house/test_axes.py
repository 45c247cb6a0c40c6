"""Algorithms are recognized by what they say of themselves: no code outside its folder asks for the class of a part."""

import ast
import functools
from pathlib import Path

import outerloop

PACKAGE = Path(outerloop.__file__).parent
AXES = ("aggregate", "compress", "feedback", "methods", "schedule")
RENAMES = PACKAGE / "config/renamed_parts.py"


@functools.cache
def files():
    """Path -> syntax tree of every file of the package."""
    return {path: ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}


def classes_of_axes(path, tree):
    """Local names of what a file imports from the folder of an axis that is not its own."""
    others = [axis for axis in AXES if axis != path.relative_to(PACKAGE).parts[0]]
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    of_others = [node for node in imports if node.module.startswith(tuple(f"outerloop.{axis}." for axis in others))]
    return {alias.asname or alias.name for node in of_others for alias in node.names}


def asked_for(node):
    """Names in the arguments of isinstance and issubclass, and in comparisons of which type() is one side."""
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("isinstance", "issubclass"):
        return names_in(node.args[1])
    if isinstance(node, ast.Compare) and any(
        isinstance(part, ast.Call) and getattr(part.func, "id", "") == "type" for part in ast.walk(node)
    ):
        return names_in(node)
    if isinstance(node, ast.MatchClass):
        return names_in(node.cls)
    return set()


def names_in(node):
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def asks(path, tree):
    """Lines of a file that ask whether a part is of a class of another folder's axis."""
    classes = classes_of_axes(path, tree)
    return [node.lineno for node in ast.walk(tree) if hasattr(node, "lineno") and asked_for(node) & classes]


def test_no_code_asks_for_the_class_of_an_axis():
    found = {str(path.relative_to(PACKAGE)): lines for path, tree in files().items() if (lines := asks(path, tree))}
    assert not found


def test_no_import_path_is_compared():
    """Strings that name something of the package are in its table of renamed parts and its lazy imports alone."""
    may = {PACKAGE / "__init__.py", RENAMES}
    found = [
        f"{path.relative_to(PACKAGE)}:{node.lineno} {node.value}"
        for path, tree in files().items()
        if path not in may
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if node.value.split(".")[:2] in [["outerloop", axis] for axis in (*AXES, "inner", "exchange")]
    ]
    assert not found


def test_the_rule_finds_what_it_forbids():
    source = """
from outerloop.compress.topk import TopK
from outerloop.compress.by_size import compressor_of
def f(x):
    return isinstance(x, TopK | int) or type(x) is TopK or isinstance(compressor_of(x), int)
def g(x):
    match x:
        case TopK(k=3):
            return 1
"""
    tree = ast.parse(source)
    assert asks(PACKAGE / "core/x.py", tree) == [5, 5, 8] and asks(PACKAGE / "compress/x.py", tree) == []
