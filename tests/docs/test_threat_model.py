"""The threat model names tests that are there, and files that can be opened."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOC = ROOT / "docs/explanation/threat-model.md"
NAMED = re.compile(r"`([\w/]*test_\w+\.py)(?:::(\w+))?`")
LINKED = re.compile(r"\]\(([^)#]+)\)")


def test_every_test_that_it_names_is_there():
    found = NAMED.findall(DOC.read_text())
    assert len(found) > 20
    for path, name in found:
        file = ROOT / "tests" / path
        assert file.is_file(), path
        tests = re.findall(r"^(?:async )?def (test_\w+)\(", file.read_text(), re.MULTILINE)
        assert name in tests if name else tests, (path, name)


def test_every_link_leads_somewhere():
    links = LINKED.findall(DOC.read_text())
    assert links and all((DOC.parent / link).exists() for link in links)
    assert "(docs/explanation/threat-model.md)" in (ROOT / "README.md").read_text()
