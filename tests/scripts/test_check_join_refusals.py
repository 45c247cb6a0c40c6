"""The check of refusals: what a terminal shows, which output counts as a refusal, and the edits of the wheels."""

from pathlib import Path

import pytest
from check_join_refusals import is_refused
from join_refusals import EDIT_SETTING, OTHER_VERSION, WHEELS
from terminal import Shown, run_on_terminal
from wheel_environment import apply, copy_sources

LINE = "outerloop: the invite has expired: ask the operator who sent it for a new one (outerloop invite)\n"


def shown(text: str, exit_code: int = 2) -> Shown:
    return Shown(text=text, exit_code=exit_code, first_s=1.0, seconds=2.0, cpu_s=0.5)


def test_a_command_runs_on_a_terminal_and_its_text_has_no_control_sequences(tmp_path: Path) -> None:
    script = r'test -t 0 && test -t 1 && printf "\033[1mone\033[0m\n"; pwd >&2; exit 2'
    found = run_on_terminal(["sh", "-c", script], tmp_path, limit_s=60)
    assert found.lines == ["one", str(tmp_path)] and found.exit_code == 2
    assert found.first_s is not None and found.first_s <= found.seconds


def test_a_command_that_waits_is_killed(tmp_path: Path) -> None:
    found = run_on_terminal(["sleep", "600"], tmp_path, limit_s=0.2)
    assert found.exit_code == -9 and found.first_s is None and found.text == ""


def test_only_the_line_of_the_case_with_exit_code_2_is_a_refusal() -> None:
    assert is_refused("expired invite", shown(LINE))
    assert not is_refused("expired invite", shown(LINE, exit_code=1))
    assert not is_refused("expired invite", shown("run          summer: 1 peer\n" + LINE))
    assert not is_refused("expired invite", shown(LINE + "Traceback\n"))
    assert not is_refused("expired invite", shown(""))
    assert not is_refused("no invite", shown(LINE))


def test_the_edits_of_the_wheels_fit_the_checkout(tmp_path: Path) -> None:
    copy_sources(tmp_path)
    for edit in WHEELS["other version"]:
        apply(edit, tmp_path)
    assert f'version = "{OTHER_VERSION}"' in (tmp_path / "pyproject.toml").read_text()
    with pytest.raises(ValueError, match=r"occurs 0 times in configs/feedback/ef\.yaml"):
        apply(EDIT_SETTING, tmp_path)
