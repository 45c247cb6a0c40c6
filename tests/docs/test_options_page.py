"""docs/reference/options.md is what scripts/docs_options.py writes."""

import docs_options


def test_the_page_of_options_is_up_to_date():
    assert docs_options.PAGE.read_text() == docs_options.page(), "run python scripts/docs_options.py"


def test_text_is_not_taken_for_markup():
    assert docs_options.cell("a|b, swarm_* <x>, `k_min`") == r"a\|b, swarm\_\* &lt;x>, `k_min`"
