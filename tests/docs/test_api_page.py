"""docs/reference/api.md has every public name, at the place where it is defined."""

import re
from pathlib import Path

import outerloop

PAGE = (Path(__file__).parents[2] / "docs/reference/api.md").read_text()
SHOWN = re.findall(r"^::: (\S+)", PAGE, re.MULTILINE)


def test_every_public_name_is_on_the_page():
    homes = {name: f"{module}.{name}" for module, names in outerloop.HOMES.items() for name in names}
    assert {*outerloop.__all__, *outerloop.CALLBACKS} == homes.keys() | outerloop.MODULES.keys()
    assert [home for home in homes.values() if home not in SHOWN] == []
    for module in outerloop.MODULES.values():
        assert any(shown == module or shown.startswith(f"{module}.") for shown in SHOWN)
