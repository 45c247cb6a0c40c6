"""Choose the group of the baseline recipe with which each group of a report is compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from outerloop.report import setting_diff

if TYPE_CHECKING:
    from outerloop.report.groups import Group


class Baseline:
    """The groups of the baseline recipe, and the one with which each group is compared.

    It is the comparable baseline group with the same values of `keys`. If none or several have them, it is the one with
    the lowest loss. Groups are comparable if they have equal `comparison_key`s.

    Args:
        recipe: the baseline recipe.
        finished: all groups with finished runs, sorted by loss.

    Attributes:
        groups: the groups of the baseline recipe.
        keys: the settings in which they differ from each other.
        of: label of each finished group that has a comparable baseline group -> the baseline group.
        matched, others: labels of the finished groups with exactly one such match, and of the rest.
    """

    def __init__(self, recipe: str, finished: Sequence[Group]) -> None:
        self.recipe = recipe
        self.groups = [group for group in finished if group.recipe == recipe]
        self.keys = setting_diff.differing_keys([group.settings for group in self.groups])
        self.of: dict[str, Group] = {}
        self.matched: list[str] = []
        self.others: list[str] = []
        for group in finished:
            comparable = [other for other in self.groups if other.comparison_key == group.comparison_key]
            matching = self.matching(group, comparable)
            if comparable:
                self.of[group.label] = matching[0] if len(matching) == 1 else comparable[0]
            (self.matched if len(matching) == 1 else self.others).append(group.label)

    def matching(self, group: Group, comparable: Sequence[Group]) -> list[Group]:
        """Return the comparable baseline groups that equal a group in those of `keys` that the group has."""
        keys = [key for key in self.keys if key in group.settings]
        own = values(group.settings, keys)
        return [other for other in comparable if values(other.settings, keys) == own]

    @property
    def caption(self) -> str:
        """Return which baseline groups the gaps are relative to, or "" if there is only one."""
        if len(self.groups) < 2:
            return ""
        best = f"the best of {len(self.groups)} {self.recipe} groups"
        if not self.matched:
            return f"gaps are relative to {best}"
        named = " and ".join(setting_diff.named_keys([group.settings for group in self.groups]))
        same = f"gaps are relative to the {self.recipe} group with equal {named}"
        return same + (f", those of {'; '.join(self.others)} to {best}" if self.others else "")


def values(settings: dict[str, Any], keys: Sequence[str]) -> list[str]:
    """Return the values of these settings, as text that can be compared."""
    return [setting_diff.comparable_value(settings, key) for key in keys]
