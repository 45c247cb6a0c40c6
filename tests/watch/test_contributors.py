"""Contributors and public names on the page. The counts are small numbers, chosen so that shares are easy to check."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import jsonschema
import pytest

from outerloop.core.contributor_rows import ContributorRow, ContributorTable, to_maps
from outerloop.swarm.access.public_names import PublicName
from outerloop.swarm.membership.roster import Record
from outerloop.swarm.membership.status import Status
from outerloop.watch.model.contributors import MAX_CONTRIBUTORS
from outerloop.watch.model.page import Page
from outerloop.watch.model.run_state import Surroundings
from outerloop.watch.model.schema import json_schema
from outerloop.watch.model.swarm_state import SwarmState
from outerloop.watch.prometheus import MAX_NAMES, Counters, metrics_text
from outerloop.watch.text import page_text
from tests.support.watch_rows import HOSTILE, SETTINGS, landed, page_of, run_rows, state_of, steps

ADA = ContributorRow("12D3KooWaaaaaaaaAda", "Ada", 3, 60, 1, 3)
BOB = ContributorRow("12D3KooWbbbbbbbbBob", "", 2, 30, 2, 3)
OTHERS = ContributorRow("", "", 4, 10, 1, 2)
QUOTES = 'A"d\\a</td><script>'


def brief(page: Page) -> list[tuple[Any, ...]]:
    return [(one["peer"], one["samples"], one["rounds"], one["online"]) for one in page["contributors"]]


def credited(worker: int, number: int, rounds: int, samples: int) -> dict[str, Any]:
    return landed(worker, number, credited_rounds=rounds, credited_samples=samples)


def counted_at_the_end(*rows: ContributorRow) -> dict[str, Any]:
    return {"event": "contributors", "worker": 0, "step": 12, "contributors": to_maps(rows)}


def swarm_page(contributions: ContributorTable | None, *names: str, settings: dict[str, Any] | None = None) -> Page:
    """A swarm with one peer for each public name: the first is Ada's peer, the second Bob's."""
    seen = []
    for peer, name in zip((ADA.peer, BOB.peer), names, strict=False):
        statement = PublicName(name, 7, b"s" * 64).to_bytes() if name else b""
        record = Record(f"000-{peer}", ["/ip4/192.0.2.1/tcp/4"], "f", 1.0, Status(round=3, peers=2, loss=2.0))
        seen.append((replace(record, public_name=statement), 1.0))
    state = SwarmState("mine", settings or {})
    state.add(100.0, seen, {}, contributions)
    state.add(102.0, seen, {})
    return state.page()


def samples_of(page: Page) -> dict[str, str]:
    lines = metrics_text(page, is_up=True, counters=Counters()).splitlines()
    return dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))


def test_a_run_that_does_not_count_ranks_its_workers_by_their_own_samples():
    page = page_of([*run_rows(1), *steps(1, 2, loss=1.0)])
    assert brief(page) == [("b", 16, None, True), ("a", 8, None, True)]
    assert page["counted"] is not None and page["counted"]["round"] is None and page["counted"]["samples"] == 24


def test_while_a_run_lasts_the_workers_of_its_machine_are_counted():
    """The second worker was left out of round 2, and its messages are credited with fewer samples."""
    rows = [*run_rows(1), credited(0, 1, 1, 8), credited(1, 1, 1, 4), credited(0, 2, 2, 16), credited(1, 2, 1, 4)]
    page = page_of(rows)
    assert brief(page) == [("a", 16, 2, True), ("b", 4, 1, True)]
    assert [(one["first_round"], one["last_round"]) for one in page["contributors"]] == [(1, 2), (1, 1)]
    assert page["counted"] == {
        "text": "rounds up to 2, of the workers of this machine",
        "round": 2,
        "peers": 2,
        "samples": 20,
        "complete": False,
        "asked": 0,
        "equal": 0,
    }


def test_the_first_round_of_a_worker_that_was_counted_before_is_not_known():
    assert page_of([*run_rows(1), credited(0, 9, 5, 40)])["contributors"][0]["first_round"] is None


def test_at_its_end_a_run_lists_all_peers_until_it_is_resumed():
    """A row of the last round may follow the row `contributors` of another worker."""
    ended = [*run_rows(1), credited(0, 3, 3, 24), counted_at_the_end(ADA, BOB, OTHERS), credited(1, 3, 3, 12)]
    page = page_of(ended)
    assert brief(page) == [(ADA.peer, 60, 3, None), (BOB.peer, 30, 2, None), ("", 10, 4, None)]
    assert page["counted"] is not None and page["counted"]["complete"] and page["counted"]["samples"] == 100
    resumed = page_of([*ended, credited(0, 4, 4, 32)])
    assert brief(resumed) == [("a", 32, 4, True)]
    assert resumed["counted"] is not None and not resumed["counted"]["complete"]


def test_a_finished_worker_is_not_online():
    done = {"event": "done", "worker": 0, "step": 4, "peer": "000-a"}
    assert brief(page_of([*run_rows(1), credited(0, 1, 1, 8), done])) == [("a", 8, 1, False)]


def test_the_name_of_a_machine_is_that_of_its_settings():
    state = state_of([*run_rows(1), credited(0, 1, 1, 8)], SETTINGS | {"exchange.public_name": "Ada"})
    page = state.page(Surroundings(name="mine", now_s=100.0))
    assert [peer["public_name"] for peer in page["peers"]] == ["Ada", "Ada"]
    assert page["contributors"][0]["name"] == "Ada"


def test_a_swarm_lists_all_contributors_those_that_have_left_included():
    """The counts of the first read stay when the peer does not answer at the second."""
    page = swarm_page(ContributorTable(3, [ADA, BOB, OTHERS], asked=2, equal=1), "Ada")
    assert brief(page) == [(ADA.peer, 60, 3, True), (BOB.peer, 30, 2, False), ("", 10, 4, None)]
    assert page["counted"] is not None and (page["counted"]["round"], page["counted"]["equal"]) == (3, 1)
    assert page["counted"]["text"] == "rounds 1 to 3; 1 of 2 other peers state the same counts"
    jsonschema.validate(page, json_schema())


@pytest.mark.parametrize(("settings", "tokens"), [({"inner.seq_len": 128}, 12_800), ({}, None)])
def test_the_tokens_of_a_swarm_are_those_of_the_counted_samples(settings: dict[str, Any], tokens: int | None):
    page = swarm_page(ContributorTable(3, [ADA, BOB, OTHERS]), "Ada", settings=settings)
    assert page["run"]["tokens"] == tokens
    assert swarm_page(None, "Ada", settings=settings)["run"]["tokens"] is None


def test_a_swarm_that_does_not_count_lists_no_contributors():
    page = swarm_page(None, "Ada", "")
    assert (page["contributors"], page["counted"]) == ([], None)
    assert [peer["public_name"] for peer in page["peers"]] == ["Ada", ""]
    assert "contributors" not in page_text(page, "")


def test_the_text_page_has_names_and_contributors():
    lines = page_text(swarm_page(ContributorTable(3, [ADA, BOB, OTHERS]), "Ada"), "").splitlines()
    words = [" ".join(line.split()) for line in lines]
    assert words[words.index("contributors (rounds 1 to 3)") + 1 :][:4] == [
        "name peer samples share rounds first round last round online",
        "Ada …aaaaaAda 60 60.0 % 3 1 3 yes",
        "…bbbbbBob 30 30.0 % 2 2 3 no",
        "all others 10 10.0 % 4 1 2 –",
    ]
    assert any(line.startswith("000-…aaaaaAda Ada training 3") for line in words)


def test_metrics_have_names_as_labels_that_are_escaped():
    page = swarm_page(ContributorTable(3, [replace(ADA, name=QUOTES), OTHERS]), QUOTES)
    found = samples_of(page)
    label = 'name="A\\"d\\\\a</td><script>"'
    assert found[f'outerloop_contributor_info{{peer="{ADA.peer}",{label}}}'] == "1"
    assert found[f'outerloop_peer_info{{peer="000-{ADA.peer}",id="{ADA.peer}",{label}}}'] == "1"
    assert found[f'outerloop_contributor_samples_total{{peer="{ADA.peer}"}}'] == "60"
    assert found['outerloop_contributor_rounds_total{peer="all others"}'] == "4"


def test_a_flood_of_contributors_is_bounded():
    many = [ContributorRow(f"p{i}", f"name {i}", 1, 5000 - i, 1, 1) for i in range(4096)]
    page = swarm_page(ContributorTable(1, many), "Ada")
    assert len(page["contributors"]) == MAX_CONTRIBUTORS
    assert page["counted"] is not None and page["counted"]["peers"] == 4096
    assert page["counted"]["samples"] == sum(5000 - i for i in range(4096)), "those that are not listed included"
    found = [name for name in samples_of(page) if name.startswith("outerloop_contributor_info")]
    assert len(found) == MAX_NAMES
    assert "and 4076 more" in page_text(page, "")


@pytest.mark.parametrize(
    ("listed", "shown"),
    [
        ("none", 2),
        ([{"peer": 1}], 2),
        ([{**to_maps([ADA])[0], "samples": "many"}], 2),
        (to_maps([ContributorRow(HOSTILE * 1000, HOSTILE * 1000, 1 << 80, -1, -5, 1 << 80)]), 1),
    ],
)
def test_hostile_rows_of_contributors_fit_the_schema(listed, shown):
    """Without a valid row, the page lists the two senders of the rounds."""
    page = page_of([*run_rows(1), {"event": "contributors", "worker": 0, "step": 1, "contributors": listed}])
    text = json.dumps(page, allow_nan=False)
    jsonschema.validate(json.loads(text), json_schema())
    assert len(text) < 20_000
    assert len(page["contributors"]) == shown
    assert all((one["peer"] + one["name"]).isprintable() for one in page["contributors"])


def test_accusations_and_audits_are_in_the_event_log_once():
    why = "repeats 90% of 001-b of round 2"
    rows = [
        {"event": "accusation", "worker": 0, "step": 8, "round": 3, "peer": "002-c", "commit": "ab", "why": why},
        {"event": "status", "worker": 0, "step": 8, "text": f"002-c is accused: it {why}"},
        {
            "event": "status",
            "worker": 0,
            "step": 8,
            "text": "audit of round 3, window 2 of 002-c: first differing leaf 3",
        },
    ]
    events = page_of([*run_rows(1), *rows])["events"][2:]
    assert [(entry["kind"], entry["peer"]) for entry in events] == [("accused", "000-a"), ("audited", "000-a")]
    assert events[0]["text"] == "002-c repeats 90% of 001-b of round 2, by the scores of round 3"
