"""docs/troubleshooting.md has every message of the swarm and the exchanges, and none that is gone."""

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/troubleshooting.md"
SAID = " ".join(PAGE.read_text().split())
ENTRIES = re.findall(r"\*\*`([^`]+)`\*\*", SAID)
RAISED = {"UserError", "NoPeerAnswers", "NotAllowed", "QuorumLost", "RoundFailed", "ReplicasDiverged"}
CALLED = {"warning", "error", "on_status", "_on_status"}
DESCRIBED = {  # functions whose lines become messages
    "describe_missing", "describe_rejection", "_describe_started", "without", "_nothing_common", "lacks_majority",
    "_as_leader", "_as_follower", "waiting_for", "lacks",
}  # fmt: skip
EDGES = " ,;:.()"
SHORTEST = 12
"""Least letters of a fixed part of a message that is looked for."""
LONGEST = 40
"""Most letters of it: the page may shorten what follows."""


def literals(tree: ast.AST) -> list[str]:
    """Return all texts in a piece of code, with … in the place of values."""
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            found.append("".join(p.value if isinstance(p, ast.Constant) else "…" for p in node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            found.append(node.value)
    return [re.sub(r"%[sdr]|%\.\d[fg]", "…", text) for text in found]


@cache
def sources(*folders: str) -> list[ast.Module]:
    """Return all modules in these folders."""
    return [ast.parse(file.read_text()) for folder in folders for file in sorted((ROOT / folder).rglob("*.py"))]


def name_of(call: ast.Call) -> str:
    return getattr(call.func, "id", getattr(call.func, "attr", ""))


def messages() -> set[str]:
    """Return the messages of the swarm and the exchanges: what is raised, logged, or described."""
    found: set[str] = set()
    for tree in sources("outerloop/swarm", "outerloop/exchange"):
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and name_of(node) in RAISED | CALLED and node.args:
                found.update(text for text in literals(node.args[0]))
            elif isinstance(node, ast.FunctionDef) and node.name in DESCRIBED:
                found.update(text for part in node.body[1:] or node.body for text in literals(part))
    return found


def fixed_parts(message: str) -> list[str]:
    return [part.strip(EDGES) for part in message.split("…") if len(part.strip(EDGES)) >= SHORTEST]


def test_every_message_on_the_page_is_one_of_the_code():
    known = "\n".join(" ".join(text.split()) for tree in sources("outerloop") for text in literals(tree))
    for entry in ENTRIES:
        parts = fixed_parts(entry) or [part.strip() for part in entry.split("…") if part.strip(" :;,.()")]
        assert parts and all(part in known for part in parts), f"correct docs/troubleshooting.md: {entry}"
    assert len(ENTRIES) > 80


def test_every_message_of_the_swarm_is_on_the_page():
    missing = []
    for message in messages():
        parts = fixed_parts(" ".join(message.split()))
        if parts and not any(part[:LONGEST] in SAID for part in parts):
            missing.append(message)
    assert sorted(missing) == [], "add or correct these in docs/troubleshooting.md"
