"""Standard output that may become unwritable: a full disk, a pipe whose reader has ended, a terminal that is gone."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, TextIO, cast

READER_ENDED = 141
"""Exit code if the program that reads standard output has ended: 128 + SIGPIPE, as in a shell."""


class OutputLost(OSError):
    """Standard output cannot be written."""


class StrictOutput:
    """A text stream that raises OutputLost if it cannot be written, so that this differs from errors of other files.

    The attribute `lost` is the first such error, or None. Some callers of `write`, such as argparse, hide the error.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.lost: OSError | None = None

    def write(self, text: str) -> int:
        """Write `text` and return its length."""
        self.call(self._stream.write, text)
        return len(text)

    def flush(self) -> None:
        """Flush the stream."""
        self.call(self._stream.flush)

    def call(self, method: Any, *args: str) -> None:
        """Call a method of the stream. Raises OutputLost if it raises OSError."""
        try:
            method(*args)
        except OSError as error:
            self.lost = self.lost or error
            raise OutputLost(*error.args) from error

    def discard(self) -> None:
        """Discard the text that could not be written, because Python would write it again as it exits."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


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


def print_leniently(text: str) -> None:
    """Print a line at once, if standard output can be written."""
    print(text, file=lenient_stdout(), flush=True)


def prepare_streams() -> None:
    """Discard text for a closed standard output or error stream, and escape characters that the encoding lacks.

    From now on, standard output raises OutputLost if it cannot be written.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w", errors="backslashreplace"))
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    sys.stdout = cast(TextIO, StrictOutput(sys.stdout))


def print_error(text: str) -> None:
    """Print a line on standard error, if it can be written."""
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def finish_streams(code: int) -> int:
    """Flush standard output and standard error after `prepare_streams`, and return the exit code.

    It is `code`, unless that is 0 and standard output could not be written: then READER_ENDED, or 1 after a message.
    """
    stdout, stderr = cast(StrictOutput, sys.stdout), StrictOutput(sys.stderr)
    for stream in (stdout, stderr):
        with suppress(OutputLost):
            stream.flush()
        if stream.lost:
            stream.discard()
    if stdout.lost is None:
        return code
    if isinstance(stdout.lost, BrokenPipeError):
        return code or READER_ENDED
    reason = stdout.lost.strerror or stdout.lost
    print_error(f"outerloop: standard output cannot be written ({reason}): redirect it to another file")
    return code or 1
