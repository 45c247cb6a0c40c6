"""`outerloop invite --withdraw`: which tokens it withdraws, what it prints, and what it refuses, in one line each."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from outerloop.commands import invite
from outerloop.commands.invite import withdrawal
from outerloop.swarm.access.admissions import Withdrawal
from outerloop.swarm.access.invited_peers import KEEP_S
from outerloop.swarm.access.invites import Token
from tests.support.listed_run_dir import (
    INVITED,
    OTHER,
    admission,
    listed_run_dir,
    own,
    statements_of_commands,
    store,
    write_config,
)
from tests.support.run_command import run_command
from tests.support.swarm.dht_scene import trust

Command = Callable[..., tuple[int, str]]
DAY_S = 86_400


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return listed_run_dir(tmp_path)


@pytest.fixture
def command(run_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run `outerloop invite`. Return its exit code, and what it prints."""

    def run(*arguments: object) -> tuple[int, str]:
        code, out, err = run_command(monkeypatch, capsys, "invite", run_dir, *arguments)
        return code, out + err

    return run


def issue(command: Command, *arguments: object) -> Token:
    return Token.from_text(command(*arguments)[1].split()[-1])


def short(token: Token) -> str:
    """The id of a token in the list."""
    return token.invite.digest.hex()[:8]


def refused(answer: tuple[int, str]) -> str:
    code, text = answer
    assert code == 2 and text.count("\n") == 1 and text.startswith("outerloop: invite: "), answer
    return text


@pytest.mark.parametrize("form", ["name", "id", "text"])
def test_a_token_is_withdrawn_by_its_name_its_id_or_its_text(form: str, run_dir: Path, command: Command) -> None:
    one, other = issue(command, "--name", "wrong"), issue(command, "--name", "right")
    given = {"name": "wrong", "id": short(one), "text": one.to_text()}[form]
    code, text = command("--withdraw", given)
    assert code == 0 and text.count("\n") == 1
    assert text.startswith(f"token {short(one)} wrong is withdrawn on all machines: within 10 s if the run is active")
    [statement] = statements_of_commands(run_dir)
    assert isinstance(statement, Withdrawal) and statement.is_signed(trust(1).signatures)
    assert statement.subject == (own(run_dir).peer_id, one.invite.digest)
    assert statement.expires_s == one.invite.expires_s and abs(statement.at_s - time.time()) < 600
    listed = command("--list")[1].splitlines()
    assert listed[0] == "no peer was invited" and listed[1].startswith(f"unused token {short(other)} right")
    assert listed[2].startswith(f"token {short(one)} wrong was withdrawn 20") and len(listed) == 3
    assert one.to_text() not in "".join(listed)


def test_withdrawing_twice_changes_nothing(run_dir: Path, command: Command) -> None:
    one = issue(command, "--name", "lab")
    command("--withdraw", "lab")
    first = statements_of_commands(run_dir)
    for _ in range(2):
        code, text = command("--withdraw", "lab")
        assert code == 0 and text.count("\n") == 1
        assert text.startswith(f"token {short(one)} lab was withdrawn before, 20") and "nothing to do" in text
        assert statements_of_commands(run_dir) == first
        store(run_dir, *first)  # as the running worker does


@pytest.mark.parametrize("given", ["lab-9", "", "-", "0a0b0c0d", "no such name"])
def test_an_unknown_name_is_one_line(given: str, command: Command) -> None:
    command()
    text = refused(command(f"--withdraw={given}"))
    assert f"has issued no token {given}, or it has expired: run outerloop invite RUN_DIR --list" in text


def test_an_expired_token_is_one_line(run_dir: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    one = issue(command, "--name", "lab", "--expires", "2d")
    later = time.time() + 3 * DAY_S
    monkeypatch.setattr(invite.time, "time", lambda: later)
    for given in ("lab", short(one), one.to_text()):
        text = refused(command("--withdraw", given))
        assert f"token {short(one)} lab expired 20" in text and "no machine can use it" in text
    assert statements_of_commands(run_dir) == []


@pytest.mark.parametrize("form", ["name", "id", "text"])
def test_the_user_of_a_used_token_must_be_expelled(form: str, run_dir: Path, command: Command) -> None:
    one = issue(command, "--name", "lab")
    store(run_dir, admission(run_dir, one, INVITED))
    issue(command, "--name", "other")
    given = {"name": "lab", "id": short(one), "text": one.to_text()}[form]
    text = refused(command("--withdraw", given))
    assert f"token {short(one)} lab was used already" in text
    assert f"run outerloop expel RUN_DIR {INVITED}\n" in text and statements_of_commands(run_dir) == []


def test_a_used_token_of_another_machine_must_be_expelled_too(run_dir: Path, command: Command) -> None:
    one = Token.new(trust(1).signatures, run="summer", listed=[OTHER], name="theirs", expires_s=2_000_000_000, rounds=0)
    text = refused(command("--withdraw", one.to_text()))
    assert f"token {short(one)} theirs was issued by {OTHER}: run this command on the machine of that peer" in text
    assert "has issued no token theirs" in refused(command("--withdraw", "theirs"))
    store(run_dir, admission(run_dir, one, INVITED))
    for given in (one.to_text(), "theirs"):
        assert f"was used already: to remove its user, run outerloop expel RUN_DIR {INVITED}" in refused(
            command("--withdraw", given)
        )


def test_a_name_of_two_unused_tokens_is_not_clear(run_dir: Path, command: Command) -> None:
    one, other = issue(command, "--name", "lab"), issue(command, "--name", "lab")
    text = refused(command("--withdraw", "lab"))
    assert f"2 unused tokens have the name lab: pass the id of one, {short(one)} or {short(other)}" in text
    assert command("--withdraw", short(other))[0] == 0
    assert command("--withdraw", "lab")[1].startswith(f"token {short(one)} lab is withdrawn"), "the one that is left"
    assert len(statements_of_commands(run_dir)) == 2


def test_malformed_tokens_and_those_of_other_runs_are_one_line(run_dir: Path, command: Command) -> None:
    one = issue(command)
    assert "copy the whole token, or pass its name" in refused(command("--withdraw", one.to_text()[:-9]))
    winter = Token.new(own(run_dir), run="winter", listed=[OTHER], name="", expires_s=2_000_000_000, rounds=0)
    text = refused(command("--withdraw", winter.to_text()))
    assert "the token is for run winter, not summer: pass the run_dir of run winter" in text
    assert "not allowed with argument" in refused(command("--withdraw", "lab", "--list"))


def test_only_a_listed_worker_may_withdraw(run_dir: Path, command: Command) -> None:
    write_config(run_dir, [OTHER])
    assert "no worker of" in refused(command("--withdraw", "lab"))


def test_a_withdrawn_token_counts_as_issued_until_it_is_forgotten(
    run_dir: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a machine could withdraw more tokens than the others keep."""
    monkeypatch.setattr(invite, "MAX_PER_ISSUER", 1)
    issue(command, "--name", "lab", "--expires", "1d")
    command("--withdraw", "lab")
    assert "invited peers, unused and withdrawn tokens: wait" in refused(command())
    store(run_dir, *statements_of_commands(run_dir))
    now_s = time.time()
    for later_s, code in ((KEEP_S, 2), (KEEP_S + 2 * DAY_S, 0)):
        monkeypatch.setattr(invite.time, "time", lambda later_s=later_s: now_s + later_s)
        assert command()[0] == code


def test_at_the_limit_of_the_run_nothing_is_withdrawn(
    run_dir: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(withdrawal, "MAX_ADMISSIONS", 1)
    issue(command, "--name", "a"), issue(command, "--name", "b")
    assert command("--withdraw", "a")[0] == 0
    assert "1 tokens of this run are withdrawn, which is the limit" in refused(command("--withdraw", "b"))
    assert len(statements_of_commands(run_dir)) == 1


def test_the_list_names_a_peer_that_used_a_withdrawn_token(run_dir: Path, command: Command) -> None:
    one = issue(command, "--name", "lab")
    command("--withdraw", "lab")
    late = admission(run_dir, one, INVITED, at_s=int(time.time()) + 60)
    store(run_dir, late)
    listed = command("--list")[1].splitlines()
    assert listed[0] == "no peer was invited" and len(listed) == 2
    assert listed[1].endswith(f"; {INVITED} used it later and may not take part")
