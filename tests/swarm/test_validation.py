"""Untrusted values in error messages: short, and however deeply they are nested."""

import pytest

from outerloop.swarm.validation import QUOTED, MalformedMessage, checked_int, fields, items, quote, row, unpacked

DEPTH = 1024
"""The deepest nesting that msgpack unpacks; repr fails at about 1000 levels."""
NESTED = unpacked(b"\x91" * DEPTH + b"\xc0", "nested lists")


@pytest.mark.parametrize(
    "value, text",
    [
        (7, "7"),
        ("\x1b[2J", r"'\x1b[2J'"),
        ("a" * QUOTED, "'" + "a" * (QUOTED - 1) + "..."),
        ("a" * (QUOTED + 1), f"str of {QUOTED + 1}"),
        (b"\x00" * 50, "bytes of 50"),
        ({"a": [1, {"b": None}]}, "{'a': [1, {'b': None}]}"),
        (list(range(8)), "[0, 1, 2, 3, 4, 5, 6, 7]"),
        (NESTED, "[[[[...]]]]"),
    ],
)
def test_a_quoted_value_is_short(value, text):
    assert quote(value) == text


@pytest.mark.parametrize(
    "check",
    [
        lambda value: checked_int(value, "x", maximum=1),
        lambda value: fields(value, "x", ["a"]),
        lambda value: items(value, "x", minimum=2),
        lambda value: row(value, 2, "x"),
    ],
)
def test_a_value_that_is_nested_as_deeply_as_msgpack_allows_is_malformed(check):
    with pytest.raises(MalformedMessage, match=r"\[\[\[\[\.\.\.\]\]\]\]"):
        check(NESTED)


def test_msgpack_refuses_deeper_values():
    with pytest.raises(MalformedMessage, match="unreadable"):
        unpacked(b"\x91" * (DEPTH + 1) + b"\xc0", "nested lists")
