"""Read and write the JSON files in which benchmarks keep their records, and refuse records of other options.

A benchmark that finds a record does not measure again, so it must not take the record of another measurement for its
own. Records of earlier versions may lack some of the options; these are not compared.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from outerloop.state.checkpoint import write_atomically

Records = TypeVar("Records", list[dict[str, Any]], dict[str, Any])


def refuse(why: str) -> NoReturn:
    """Print one line to stderr, and exit with code 2."""
    print(why, file=sys.stderr)
    raise SystemExit(2)


def read_records(file: Path, empty: Records) -> Records:
    """Return the content of a JSON file, or `empty` if it does not exist.

    Refuses a file that cannot be read, is not JSON, or has a content of another type than `empty`.
    """
    try:
        found = json.loads(file.read_text())
    except FileNotFoundError:
        return empty
    except (OSError, ValueError) as error:
        refuse(f"{file} cannot be read ({error}): remove it, or pass another file")
    if not isinstance(found, type(empty)):
        kinds = f"a {type(found).__name__} instead of a {type(empty).__name__} of records"
        refuse(f"{file} contains {kinds}: pass another file")
    return found


def write_records(file: Path, records: Any, *, indent: int | None = 1) -> None:
    """Write the records as JSON. The file is replaced atomically, so that it is complete after an interruption."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, (json.dumps(records, indent=indent) + "\n").encode())


def check_options(record: Mapping[str, Any], options: Mapping[str, Any], *, what: str) -> None:
    """Refuse a record that was made with other options.

    Args:
        record: the record.
        options: name -> value that this command has. Names that the record lacks are not compared.
        what: the record in words, for the message.
    """
    for name, value in options.items():
        if name in record and record[name] != value:
            refuse(
                f"{what} was made with {name} {record[name]}, but this command has {value}:"
                " pass the same options, or another file"
            )


def check_divisible(total: int, parts: int, *, what: str, by: str) -> None:
    """Refuse a number that is not a multiple of `parts`. `what`, `by`: the options of both numbers."""
    if parts < 1 or total % parts:
        refuse(f"{what} {total} is not a multiple of {by} {parts}: choose one that is")
