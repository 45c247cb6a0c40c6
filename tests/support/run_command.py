"""A command of `outerloop` in this process: its exit code and what it prints."""

from __future__ import annotations

import pytest

from outerloop.commands import main


def run_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: object
) -> tuple[int, str, str]:
    """Exit code, output, and what went to standard error."""
    monkeypatch.setattr("sys.argv", ["outerloop", *map(str, arguments)])
    code = main.main()
    said = capsys.readouterr()
    return code, said.out, said.err


def error_of(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line on standard error with which a command refuses its arguments, with exit code 2."""
    code, _, err = run_command(monkeypatch, capsys, *arguments)
    assert code == 2 and err.count("\n") == 1, err
    return err
