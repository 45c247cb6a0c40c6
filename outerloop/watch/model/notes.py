"""Read the values that adapt during a run (H, k, agreement) from the lines that a worker logs when they change."""

from __future__ import annotations

import re

CHANGES = {
    "H": re.compile(r"schedule: H (\d{1,12}) -> (\d{1,12}) inner steps"),
    "k": re.compile(r"compress: k (\d{1,12}) -> (\d{1,12}) per chunk"),
}
"""Name of a curve -> pattern of the line that states its value before and after a change."""
AGREEMENT = re.compile(r"because the agreement of the payloads is (-?\d{1,3}(?:\.\d{1,9})?(?:e-\d{1,3})?)")
"""Pattern of the agreement of the payloads (-1 to 1), which the line of an adaptive schedule states as well."""


def changed_values(line: str) -> dict[str, list[float]]:
    """Return the values that a line states: "H" or "k" -> [before, after], and "agreement" -> [agreement]."""
    found = {name: pattern.match(line) for name, pattern in CHANGES.items()}
    values = {name: [float(number) for number in match.groups()] for name, match in found.items() if match}
    if agreement := AGREEMENT.search(line):
        values["agreement"] = [float(agreement[1])]
    return values
