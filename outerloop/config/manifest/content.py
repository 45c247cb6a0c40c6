"""The content of a run manifest: the settings of a run as JSON, for machines that want to join the run.

    {"format": 1, "version", "run", "fingerprint", "options", "needs", "reason"}

A manifest comes from another machine. `parse` checks its form, and allowed_options.py checks what its options may set.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NoReturn

from outerloop.swarm.validation import MAX_AMOUNT, MAX_MANIFEST_BYTES, MalformedMessage, fields, quote

FORMAT = 1
MAX_OPTIONS = 256
MAX_TEXT = 256
NEEDED = ("data.files", "data.data_files", "data.tokenizer")
"""Options with paths. If the other machines of the run set one of them, a machine that joins must set it too."""
VERSION = re.compile(r"[0-9A-Za-z.+_-]{1,64}")
FINGERPRINT = re.compile(r"[0-9a-f]{64}")

Scalar = str | int | float | bool | None
Value = Scalar | list[Scalar]


@dataclass(frozen=True, kw_only=True)
class RunManifest:
    """The settings of a run, as its peers describe them to machines that want to join.

    version       version of outerloop that the peer runs
    run           run id; a number if the run id is a number
    fingerprint   hash of the settings that must be equal on all peers
    options       option -> value; the options of `outerloop train` that a machine sets to join
    needs         options that each machine must set itself, such as the paths of its text files
    reason        why `options` cannot describe this run, or "" if they can
    """

    version: str
    run: str | int
    fingerprint: str
    options: Mapping[str, Value] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    reason: str = ""

    def to_json(self) -> str:
        """Return the content of the manifest. Raises MalformedMessage if `parse` would refuse it."""
        text = json.dumps({"format": FORMAT, **asdict(self)})
        parse(text.encode())
        return text


def parse(content: bytes) -> RunManifest:
    """Parse the content of a manifest from another peer. Raises MalformedMessage if its form is invalid."""
    found = _decoded(content)
    _check_texts(found)
    return RunManifest(
        version=found["version"],
        run=found["run"],
        fingerprint=found["fingerprint"],
        options=_options(found["options"]),
        needs=_needs(found["needs"]),
        reason=found["reason"],
    )


def is_joinable(manifest: str | None) -> bool:
    """Return whether other machines can join a run. `manifest`: its run manifest as JSON, or None if it has none."""
    return manifest is not None and not parse(manifest.encode()).reason


def _decoded(content: bytes) -> dict[str, Any]:
    """Return the JSON map in `content`, after checking its size, its format and its keys."""
    if len(content) > MAX_MANIFEST_BYTES:
        raise MalformedMessage(f"a run manifest has at most {MAX_MANIFEST_BYTES} bytes; got {len(content)}")
    try:
        found = json.loads(content, parse_constant=_refuse_constant, object_pairs_hook=_without_duplicates)
    except MalformedMessage:
        raise
    except (ValueError, RecursionError) as error:
        raise MalformedMessage(f"a run manifest must be JSON: {error}") from error
    number = found.get("format") if isinstance(found, dict) else FORMAT
    if type(number) is not int or number != FORMAT:
        raise MalformedMessage(
            f"the run manifest has format {quote(number)}, and this version of outerloop reads {FORMAT}"
        )
    return fields(found, "a run manifest", ("format", *RunManifest.__dataclass_fields__))


def _check_texts(found: Mapping[str, Any]) -> None:
    """Check the run id, the version, the fingerprint and the reason. Raises MalformedMessage if one is invalid."""
    run, version, fingerprint, reason = (found[name] for name in ("run", "version", "fingerprint", "reason"))
    if not (run and _is_line(run) if isinstance(run, str) else type(run) is int and abs(run) <= MAX_AMOUNT):
        raise MalformedMessage(f"the run id must be a short text or a whole number; got {quote(run)}")
    if type(version) is not str or not VERSION.fullmatch(version):
        raise MalformedMessage(f"the version must look like 0.1.0; got {quote(version)}")
    if type(fingerprint) is not str or not FINGERPRINT.fullmatch(fingerprint):
        raise MalformedMessage(f"the fingerprint must be a hash in hex; got {quote(fingerprint)}")
    if not _is_line(reason):
        raise MalformedMessage(f"the reason must be a short line; got {quote(reason)}")


def _refuse_constant(text: str) -> NoReturn:
    raise MalformedMessage(f"a run manifest contains only finite numbers; got {text}")


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise MalformedMessage("a key occurs twice in the run manifest")
    return found


def _options(value: Any) -> dict[str, Value]:
    if not isinstance(value, dict) or len(value) > MAX_OPTIONS or not all(map(_is_line, value)):
        raise MalformedMessage(f"the options must be a map of at most {MAX_OPTIONS} short names; got {quote(value)}")
    for key, setting in value.items():
        members = setting if isinstance(setting, list) else [setting]
        if len(members) > MAX_OPTIONS or not all(map(_is_scalar, members)):
            raise MalformedMessage(
                f"option {key} must be a number, true, false, null, a short string or a list of these"
            )
    return value


def _needs(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(key in NEEDED for key in value):
        raise MalformedMessage(f"needs must be a list of options among {', '.join(NEEDED)}; got {quote(value)}")
    return tuple(value)


def _is_scalar(value: Any) -> bool:
    if isinstance(value, int | float):
        return abs(value) <= MAX_AMOUNT  # excludes NaN and infinity, too
    return value is None or _is_line(value)


def _is_line(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= MAX_TEXT and value.isprintable()
