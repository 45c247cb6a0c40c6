"""The page in a real browser: what it shows, that it reads no name as markup, and that it fits a phone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from outerloop.core.contributor_rows import ContributorRow, to_maps
from outerloop.watch.model.run_state import Surroundings
from outerloop.watch.run_dir import RunDirectory
from outerloop.watch.sweep_dir import SweepDirectory
from tests.support.watch_browser import TIMEOUT_MS, browser_path, launched, served
from tests.support.watch_rows import HOSTILE, SETTINGS, many_peers, page_of, run_rows, said, state_of, status, write_run

pytest.importorskip("playwright", reason="playwright is not installed")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(browser_path() is None, reason="no chromium: apt-get install chromium"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with launched() as browser:
        yield browser


class Visit:
    """One open page, with everything that it must not do: errors, dialogs, requests to other servers."""

    def __init__(self, browser: Any, url: str, **options: Any) -> None:
        self.problems: list[str] = []
        self.page = browser.new_page(**{"viewport": {"width": 1200, "height": 900}} | options)
        self.page.set_default_timeout(TIMEOUT_MS)
        self.page.on("console", lambda said: self.problems.append(said.text) if said.type == "error" else None)
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("dialog", lambda dialog: self.problems.append(f"dialog {dialog.message}"))
        self.page.on("request", lambda request: self.check(request.url, url))
        self.page.goto(url)

    def check(self, asked: str, url: str) -> None:
        if not asked.startswith((url, "data:,")):
            self.problems.append(f"request to {asked}")

    def text(self, selector: str) -> str:
        return self.page.inner_text(selector)

    def wait(self, condition: str) -> None:
        """Ask again and again: waiting inside the page needs eval(), which the page's own policy forbids."""
        until_s = time.monotonic() + TIMEOUT_MS / 1000
        while not self.page.evaluate(condition):
            assert time.monotonic() < until_s, f"{condition}; {self.problems}"
            self.page.wait_for_timeout(100)

    def close(self) -> None:
        self.page.close()
        assert self.problems == []


ROWS = "document.querySelectorAll('#peers-table tbody tr').length"


def test_the_page_of_a_recorded_run(browser, tmp_path):
    source = RunDirectory(write_run(tmp_path / "mine", run_rows(3), finished=True))
    with served(source.read()) as (url, _):
        visit = Visit(browser, url)
        visit.wait(f"{ROWS} === 2 && document.querySelectorAll('#figures canvas').length === 3")
        assert visit.page.title() == "mine: finished"
        facts = visit.text("#facts")
        assert "3 of 10" in facts and "2.000 nats per token" in facts and "75.0 %" in facts
        assert visit.text("#peers-table tbody tr:nth-child(2) td:first-child code") == "001-b"
        assert "joined" in visit.text("#events-list") and "config.yaml" in visit.text("#links-list")
        visit.close()


def test_a_change_is_shown_without_a_reload(browser):
    with served(page_of(run_rows(3))) as (url, source):
        visit = Visit(browser, url)
        visit.wait(f"{ROWS} === 2")
        visit.page.evaluate("window.mark = 1")
        source.page = page_of([*run_rows(4), said(0, "waiting: round 5, view 0: none from 001-b")])
        visit.wait("document.querySelector('#phase-text').textContent.includes('none from 001-b')")
        assert "4 of 10" in visit.text("#facts") and visit.page.evaluate("window.mark") == 1
        assert visit.text("#stages [aria-current] span") == "gather"
        visit.close()


def test_names_of_peers_are_text(browser):
    """Script tags, image handlers and 10,000 letters, in a name and in a message."""
    rows = [*run_rows(2, names=(HOSTILE, "001-" + "n" * 10_000)), status(0, HOSTILE)]
    with served(page_of(rows)) as (url, _):
        visit = Visit(browser, url, viewport={"width": 390, "height": 800})
        visit.wait(f"{ROWS} === 2")
        assert visit.page.title() == "mine: running" and "<script>" in visit.text("#events-list")
        assert visit.page.evaluate("document.querySelectorAll('img, main script').length") == 0
        assert visit.page.evaluate("document.scrollingElement.scrollWidth") <= 390
        visit.close()


def test_contributors_are_listed_and_their_names_are_text(browser):
    listed = to_maps(
        [ContributorRow("b" * 52, "<b>Ada</b>" + "n" * 54, 3, 1500, 1, 3), ContributorRow("", "", 2, 500, 1, 2)]
    )
    rows = [*run_rows(3), {"event": "contributors", "worker": 0, "step": 12, "contributors": listed}]
    state = state_of(rows, SETTINGS | {"exchange.public_name": "<b>Eve</b>"})
    with served(state.page(Surroundings(name="mine", now_s=100.0))) as (url, _):
        visit = Visit(browser, url, viewport={"width": 390, "height": 800})
        visit.wait("document.querySelectorAll('#contributors-table tbody tr').length === 2")
        cells = visit.page.locator("#contributors-table tbody tr:first-child td").all_inner_texts()
        assert cells[0].startswith("<b>Ada</b>nnn")
        assert cells[1:] == ["…bbbbbbbb", "1,500", "75.0 %", "3", "1", "3", "–"]
        assert visit.text("#contributors-table tbody tr:last-child td:nth-child(2)") == "all others"
        assert visit.text("#contributors-text") == "rounds up to 3, of all peers of the run"
        assert visit.text("#peers-table tbody tr:first-child td.name") == "<b>Eve</b>"
        assert visit.text("#peers-table tbody tr:first-child .pill") == "training"
        assert visit.page.evaluate("document.querySelectorAll('main td b').length") == 0
        assert visit.page.evaluate("document.scrollingElement.scrollWidth") <= 390
        visit.close()


@pytest.mark.parametrize("count", [2, 500])
def test_two_and_five_hundred_peers_fit_a_phone(browser, count):
    with served(page_of(many_peers(count))) as (url, _):
        visit = Visit(browser, url, viewport={"width": 390, "height": 800})
        visit.wait(f"{ROWS} === {count}")
        assert visit.page.evaluate("document.scrollingElement.scrollWidth") <= 390
        assert visit.text("#peers-count") == str(count)
        visit.page.fill("#peers-filter", "001-")
        visit.wait(f"{ROWS} === 1")
        visit.close()


def test_columns_are_sorted_and_the_cursor_moves_by_keyboard(browser):
    with served(page_of(run_rows(3))) as (url, _):
        visit = Visit(browser, url)
        visit.wait(f"{ROWS} === 2")
        header = visit.page.get_by_role("button", name="loss", exact=True)
        header.focus()
        first = "#peers-table tbody tr:first-child td:first-child code"
        visit.page.keyboard.press("Enter")
        assert visit.text(first) == "000-a"
        visit.page.keyboard.press("Enter")
        assert visit.text(first) == "001-b"
        visit.page.focus("#timeline-canvas")
        visit.page.keyboard.press("ArrowDown")
        assert visit.text("#timeline-readout") == "round 3, 001-b: 1.50 s late"
        visit.close()


def test_the_event_log_is_filtered_by_kind_and_text(browser):
    with served(page_of([*run_rows(2), status(0, "left out, 001-b"), status(0, "a note")])) as (url, _):
        visit = Visit(browser, url)
        visit.wait("document.querySelectorAll('#events-list li').length === 4")
        visit.page.select_option("#events-kind", "refused")
        assert visit.text("#events-list").count("left out") == 1 and "joined" not in visit.text("#events-list")
        visit.page.select_option("#events-kind", "")
        visit.page.fill("#events-text", "a note")
        assert visit.page.locator("#events-list li").count() == 1
        visit.close()


def test_light_and_dark_follow_the_system(browser):
    with served(page_of(run_rows(3))) as (url, _):
        colours = []
        for scheme in ("light", "dark"):
            visit = Visit(browser, url, color_scheme=scheme)
            visit.wait(f"{ROWS} === 2")
            colours.append(visit.page.evaluate("getComputedStyle(document.body).backgroundColor"))
            visit.close()
        assert colours == ["rgb(255, 255, 255)", "rgb(20, 23, 27)"]


def test_the_axis_of_the_curves_can_be_chosen(browser):
    with served(page_of(run_rows(3))) as (url, _):
        visit = Visit(browser, url)
        visit.wait("document.querySelectorAll('#axes input').length === 5")
        visit.page.check("#axes input[value=bytes]")
        assert visit.page.get_attribute("#figures figure", "aria-label") == (
            "Loss [nats per token] against bytes sent by a worker"
        )
        visit.close()


def test_a_sweep_has_tables_and_a_figure(browser, tmp_path):
    write_run(tmp_path / "0", run_rows(3), finished=True)
    write_run(tmp_path / "1", run_rows(2))
    (tmp_path / "1/died.json").write_text('{"why": "<b>disk full</b>"}')
    with served(SweepDirectory(tmp_path).read()) as (url, _):
        visit = Visit(browser, url)
        visit.wait("document.querySelectorAll('#tables table').length === 2")
        assert "<b>disk full</b>" in visit.text("#tables") and not visit.page.is_visible("#run")
        assert "sparseloco (n=1)" in visit.text("#pareto") and visit.page.is_visible("#pareto canvas")
        visit.close()


def test_a_lost_server_is_reported(browser):
    with served(page_of(run_rows(3))) as (url, _):
        visit = Visit(browser, url)
        visit.wait(f"{ROWS} === 2")
    visit.wait("!document.querySelector('#problem').hidden")
    assert "no connection" in visit.text("#problem")
    visit.page.close()
