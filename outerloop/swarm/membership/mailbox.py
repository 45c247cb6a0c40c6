"""A mailbox that holds one value per number. A reader of a number waits until its value is posted."""

from __future__ import annotations

from typing import Generic, TypeVar

from outerloop.swarm.notifier import Notifier

T = TypeVar("T")


class Mailbox(Generic[T]):
    """Values that can be awaited by number. Only the values of the `keep` highest numbers are kept."""

    def __init__(self, *, keep: int) -> None:
        self._keep = keep
        self._values: dict[int, T] = {}
        self._over = -1  # no value will be posted for numbers up to this one
        self._changed = Notifier()

    def post(self, number: int, value: T) -> None:
        """Post the value for a number, and declare that no more values will be posted for lower numbers."""
        self._values[number] = value
        for old in sorted(self._values)[: -self._keep]:
            del self._values[old]
        self.over(number - 1)

    def over(self, number: int) -> None:
        """Declare that no more values will be posted for this number or lower ones."""
        self._over = max(self._over, number)
        self._changed.notify()

    def get(self, number: int) -> T | None:
        return self._values.get(number)

    def take_back(self, number: int) -> None:
        """Remove the values for this number and higher ones, so that they can be posted again."""
        self._values = {known: value for known, value in self._values.items() if known < number}
        self._over = min(self._over, number - 1)

    async def read(self, number: int) -> T | None:
        """Wait for the value for a number and return it, or None if it will never be posted. There is no time limit."""
        while (value := self.get(number)) is None and number > self._over:
            await self._changed.wait()
        return value
