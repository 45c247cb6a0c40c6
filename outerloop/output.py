"""Standard output that may become unwritable: a full disk, a pipe whose reader has ended, a terminal that is gone."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, TextIO, cast

READER_ENDED = 141
"""Exit code if the program that reads standard output has ended: that of a program that SIGPIPE ends."""


class LenientOutput:
    """A text stream that drops what cannot be written, so that a run continues without its console."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write `text`, or drop it. Return its length."""
        with suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush the stream, unless it cannot be written."""
        with suppress(OSError, ValueError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def lenient_stdout() -> IO[str] | None:
    """Return standard output as a stream that never fails, for rich's Console and for print; None if it is closed."""
    return cast(IO[str], LenientOutput(sys.stdout)) if sys.stdout is not None else None


def prepare_streams() -> None:
    """Make standard output and errors usable: a closed one discards its text; unencodable characters are escaped."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w"))
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def print_error(text: str) -> None:
    """Print a line on standard error, if it can be written."""
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def finish_streams(code: int, *, text: str = "") -> int:
    """Write `text` to standard output, flush it and standard error, and return the exit code.

    It is `code`, unless that is 0 and standard output cannot be written: then READER_ENDED, or 1 after a message.
    """
    if (error := write_or_discard(sys.stdout, text)) is not None and not isinstance(error, BrokenPipeError):
        reason = error.strerror or error
        print_error(f"outerloop: standard output cannot be written ({reason}): redirect it to another file")
    write_or_discard(sys.stderr)
    failed = READER_ENDED if isinstance(error, BrokenPipeError) else 1
    return code or (0 if error is None else failed)


def write_or_discard(stream: TextIO, text: str = "") -> OSError | None:
    """Write `text`, flush the stream, and return the error.

    After an error, the text that is left is discarded, because Python would write it again as it exits.
    """
    try:
        stream.write(text)
        stream.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return error
    return None
