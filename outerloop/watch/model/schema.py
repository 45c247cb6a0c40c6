"""Derive the JSON schema of /status.json from the types in page.py, so that the two cannot differ."""

from __future__ import annotations

import types
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

from outerloop.watch.model.page import VERSION, Page

DIALECT = "https://json-schema.org/draft/2020-12/schema"
SIMPLE: dict[Any, str] = {
    int: "integer",
    float: "number",
    str: "string",
    bool: "boolean",
    type(None): "null",
}


def json_schema() -> dict[str, Any]:
    """Return the schema of a page. Programs must accept additional fields, which later versions may add."""
    page = schema_of(Page)
    page["properties"]["version"] = {"const": VERSION}
    return {"$schema": DIALECT, "title": "outerloop watch: status.json", **page}


def schema_of(kind: Any) -> dict[str, Any]:
    """Return the schema of one type: a TypedDict, a list, a union, a Literal, or one of SIMPLE."""
    if is_typeddict(kind):
        hints = get_type_hints(kind)
        properties = {name: schema_of(hint) for name, hint in hints.items()}
        meaning = " ".join((kind.__doc__ or "").split())
        return {"type": "object", "description": meaning, "properties": properties, "required": sorted(properties)}
    origin, parts = get_origin(kind), get_args(kind)
    if origin is list:
        return {"type": "array", "items": schema_of(parts[0])}
    if origin is Literal:
        return {"enum": list(parts)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [schema_of(part) for part in parts]}
    return {"type": SIMPLE[kind]}
