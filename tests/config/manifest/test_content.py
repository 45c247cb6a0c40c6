"""The content of a run manifest has one strict form: sizes, keys and types are checked before anything is used."""

from __future__ import annotations

import json
from typing import Any

import pytest

from outerloop.config.manifest.content import MAX_OPTIONS, MAX_TEXT, RunManifest, parse
from outerloop.swarm.validation import MAX_MANIFEST_BYTES, MalformedMessage

OPTIONS = {"recipe": "outerloop", "inner.lr": 0.01, "inner.clip_norm": None, "inner.optimizer.betas": [0.9, 0.95]}
MANIFEST = RunManifest(version="0.1.0", run="summer", fingerprint="ab" * 32, options=OPTIONS, needs=("data.files",))


def content(**changes: Any) -> bytes:
    return json.dumps(json.loads(MANIFEST.to_json()) | changes).encode()


@pytest.mark.parametrize("run", ["summer", 7])
def test_a_manifest_is_read_as_it_was_written(run: str | int) -> None:
    manifest = RunManifest(version="0.1.0", run=run, fingerprint="ab" * 32, options=OPTIONS, reason="none")
    assert parse(manifest.to_json().encode()) == manifest
    assert parse(content()) == MANIFEST


@pytest.mark.parametrize(
    ("hostile", "reason"),
    [
        (b"", "must be JSON"),
        (b"\xff\xfe", "must be JSON"),
        (b"[" * 10_000, "must be JSON"),
        (b"9" * 10_000, "must be JSON"),
        (b"[]", "keys"),
        (b'{"format": 1, "format": 1}', "twice"),
        (b" " * (MAX_MANIFEST_BYTES + 1), "at most"),
        (content(format=2), "format 2"),
        (content(format="1"), "format"),
        (content(format=True), "format"),
        (content(code="import os"), "keys"),
        (content(version="0.1.0\n"), "version"),
        (content(version=1), "version"),
        (content(run=""), "run id"),
        (content(run="x" * (MAX_TEXT + 1)), "run id"),
        (content(run="\x1b[2J"), "run id"),
        (content(run=None), "run id"),
        (content(run=True), "run id"),
        (content(fingerprint="AB" * 32), "fingerprint"),
        (content(fingerprint="ab"), "fingerprint"),
        (content(reason="x\ny"), "reason"),
        (content(reason=3), "reason"),
        (content(needs="data.files"), "options among data.files"),
        (content(needs=[3]), "options among data.files"),
        (content(options=[]), "options"),
        (content(options={"x" * 10_000: 1}), "options"),
        (content(options={f"x{number}": 1 for number in range(MAX_OPTIONS + 1)}), "options"),
        (content(options={"inner": {"lr": 1}}), "option inner"),
        (content(options={"inner.lr": [[1]]}), "option inner.lr"),
        (content(options={"inner.lr": "x" * (MAX_TEXT + 1)}), "option inner.lr"),
        (content(options={"inner.lr": 1 << 70}), "option inner.lr"),
        (content(options={"inner.lr": 10**400}), "option inner.lr"),
        (content(run=10**400), "run id"),
        (content(options={"inner.lr": [1] * 300}), "option inner.lr"),
        (content(options={"inner.lr": 0.5}).replace(b"0.5", b"NaN"), "finite"),
        (content(options={"inner.lr": 0.5}).replace(b"0.5", b"-Infinity"), "finite"),
        (content(options={"inner.lr": 0.5}).replace(b"0.5", b"1e999"), "option inner.lr"),
    ],
)
def test_any_other_content_is_refused(hostile: bytes, reason: str) -> None:
    with pytest.raises(MalformedMessage, match=reason):
        parse(hostile)


def test_a_manifest_that_others_would_refuse_is_not_written() -> None:
    with pytest.raises(MalformedMessage, match="at most"):
        RunManifest(
            version="0", run="r", fingerprint="ab" * 32, options={f"x{i}": "y" * 200 for i in range(99)}
        ).to_json()
