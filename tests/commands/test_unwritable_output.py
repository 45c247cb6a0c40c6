"""Output that cannot be written: full disk, closed stream, reader that has ended, encoding that lacks characters."""

import os
import subprocess
import sys

import pytest

PLAN = ["plan", "--params=1e9", "--peers=2", "--up=1gbit", "--step=1s", "--tokens-per-step=16384"]
PLAN += ["--recipe=noloco"]  # imports least
FULL = "outerloop: standard output cannot be written (No space left on device): redirect it to another file\n"


def run(shell: str, *arguments: str, **env: str) -> tuple[int, str, str]:
    """A command of `outerloop` with this redirection of its output: exit code, output and errors."""
    command = ["bash", "-c", f'"$0" -m outerloop "$@" {shell}', sys.executable, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | env, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", [["--version"], ["options"], ["options", "--help"]])
def test_a_full_disk_is_one_line_and_exit_code_1(arguments: list[str], unbuffered: str) -> None:
    assert run(">/dev/full", *arguments, PYTHONUNBUFFERED=unbuffered) == (1, "", FULL)


@pytest.mark.parametrize("shell", [">/dev/full", "| true"])
def test_an_error_of_another_file_is_not_hidden(shell: str) -> None:
    program = """
import sys
from outerloop.commands import main
def fails():
    raise OSError(28, "No space left on device", "/data/shard-3")
main.main = fails
main.entry()
"""
    command = ["bash", "-c", f'"$0" -c "$1" {shell}', sys.executable, program]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ, check=False)
    assert "No space left on device: '/data/shard-3'" in done.stderr


def test_a_full_disk_under_a_table_is_one_line_too() -> None:
    assert run(">/dev/full", *PLAN) == (1, "", FULL)


def test_an_error_keeps_its_exit_code_if_no_message_can_be_written() -> None:
    assert run("2>/dev/full", "trian") == (2, "", "")


@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-"])
def test_a_closed_stream_is_no_error(closed: str) -> None:
    assert run(closed, "options", "sync") == (0, "", "")


@pytest.mark.parametrize("arguments", [["options"], pytest.param(PLAN, marks=pytest.mark.slow)])
def test_a_reader_that_has_ended_gives_exit_code_141(arguments: list[str]) -> None:
    """Also for the tables that rich prints, whose own exit code would be 1."""
    command = [sys.executable, "-m", "outerloop", *arguments]
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(command, stdout=write_end, stderr=subprocess.PIPE, check=False)
    os.close(write_end)
    assert (done.returncode, done.stderr) == (141, b"")


def test_characters_that_the_encoding_lacks_are_escaped() -> None:
    code, out, err = run("", *PLAN, PYTHONIOENCODING="latin-1")
    assert (code, err) == (0, "") and "\\u2192" in out
