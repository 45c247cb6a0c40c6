"""Rows whose texts and numbers are as bad as a file can hold them give a page that fits its schema."""

from __future__ import annotations

import json
import math
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outerloop.watch.model.page import VERSION
from outerloop.watch.model.schema import json_schema
from tests.support.watch_rows import HOSTILE, page_of, run_rows, status


def hostile_rows() -> list[dict[str, Any]]:
    """Rows whose texts and numbers are as bad as a file can hold them."""
    name = "000-" + "x" * 10_000
    return [
        *run_rows(2, names=(HOSTILE, name)),
        status(0, HOSTILE * 1000),
        {
            "event": "step",
            "worker": 0,
            "step": 9,
            "loss": math.nan,
            "lr": 0,
            "tokens": 1 << 80,
            "tokens_per_s": math.inf,
        },
        {"event": "step", "worker": 3, "step": 9, "loss": 10**400},
        {"event": "step", "worker": 1, "step": 9, "loss": -math.inf, "tokens": None, "tokens_per_s": "fast"},
        {
            "event": "round",
            "worker": 1,
            "step": 1 << 70,
            "round": 3,
            "payload_bytes": 1e300,
            "bytes_sent": -1,
            "wait_s": "x",
        },
        {"event": "validation", "step": 9, "round": 3, "tokens": 1, "val_loss": math.nan},
        {"event": "ready", "worker": 2, "step": 0, "peer": ["a", "list"], "params": True, "size": {}},
        {"event": "address", "worker": 2, "step": 0, "addresses": "none"},
        {"event": "unheard of", "worker": 3, "step": 0},
        {"event": "died", "worker": 2, "step": 0, "text": None},
    ]


def texts(part: Any) -> list[str]:
    """All texts in a page."""
    if isinstance(part, str):
        return [part]
    inside = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    return [text for one in inside for text in texts(one)]


def test_hostile_rows_give_a_page_that_fits_its_schema_and_is_json():
    page = page_of(hostile_rows())
    text = json.dumps(page, allow_nan=False)
    jsonschema.validate(json.loads(text), json_schema())
    assert len(text) < 20_000 and all(part.isprintable() for part in texts(page)), "shortened and escaped"
    assert page["peers"][0]["loss"] == "nan" and page["peers"][1]["loss"] == "-inf"
    assert page["run"]["val_loss"] == "nan" and page["run"]["loss"] == "nan"


EVENTS = [
    "ready",
    "step",
    "round",
    "eval",
    "validation",
    "done",
    "status",
    "address",
    "state",
    "died",
    "error",
    "left",
    "saved",
    "page",
]
FIELDS = [
    "loss",
    "tokens",
    "round",
    "wall_s",
    "payload_bytes",
    "wait_s",
    "text",
    "peer",
    "addresses",
    "failed",
    "val_loss",
    "spread",
    "took_part",
]
ANY = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.lists(st.integers())


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.builds(
            lambda event, worker, step, fields: {"event": event, "worker": worker, "step": step, **fields},
            st.sampled_from(EVENTS),
            st.integers(0, 3),
            ANY,
            st.dictionaries(st.sampled_from(FIELDS), ANY),
        ),
        max_size=12,
    )
)
def test_any_rows_give_a_page_that_fits_its_schema(rows):
    """Rows of every event with values of every type."""
    page = page_of(rows)
    jsonschema.validate(json.loads(json.dumps(page, allow_nan=False)), json_schema())


@pytest.mark.parametrize("rows", [[], run_rows(1), run_rows(60)])
def test_every_page_fits_the_schema(rows):
    page = page_of(rows)
    jsonschema.validate(page, json_schema())
    assert page["version"] == VERSION


def test_the_schema_refuses_what_is_not_a_page():
    page: dict[str, Any] = {**page_of(run_rows(1))}
    for change in ({"version": VERSION + 1}, {"peers": [{}]}, {"kind": "other"}, {"run": None}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(page | change, json_schema())
