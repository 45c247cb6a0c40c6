"""What a check came to, as one line: ✓ or ✗, or ? where it could not be told; what was found, and what to do."""

from __future__ import annotations

from dataclasses import dataclass

from outerloop.types import printable

MARKS = {True: "✓", False: "✗", None: "?"}


@dataclass(frozen=True)
class Finding:
    """`good`: True, False, or None when it could not be told or depends on what is wanted. `todo`: what to type."""

    what: str
    good: bool | None
    said: str
    todo: str = ""

    def line(self) -> str:
        """Printable, whatever a stranger or a library has said."""
        text = f"{MARKS[self.good]} {self.what:<9} {self.said}" + (f": {self.todo}" if self.todo else "")
        return printable(text)
