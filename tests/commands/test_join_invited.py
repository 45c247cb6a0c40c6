"""`outerloop join --invite`: what it refuses, in one line each, and what it asks of whom."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from outerloop.commands.join import invitation
from outerloop.commands.join.invitation import REFUSALS, Invitation
from outerloop.config.manifest.content import RunManifest
from outerloop.swarm.access.invites import Token
from outerloop.swarm.invites.invite_client import InviteRefused
from outerloop.swarm.p2p.transport import Unreachable
from outerloop.types import UserError
from tests.support.run_command import error_of
from tests.support.swarm.dht_scene import id_of, trust

LISTED = [id_of(1), id_of(2)]
ADDRESS = f"/ip4/192.0.2.1/tcp/4/p2p/{LISTED[1]}"


def token(*, expires_s: float = 0, run: str = "summer") -> str:
    one = trust(1).signatures
    until_s = int(expires_s or time.time() + 600)
    return Token.new(one, run=run, listed=LISTED, name="", expires_s=until_s, rounds=0).to_text()


def manifest(run: str | int) -> SimpleNamespace:
    """Return the signed manifest of a run, as `fetch` returns it."""
    found = RunManifest(version="0.1.0", run=run, fingerprint="ab" * 32)
    return SimpleNamespace(content=found.to_json().encode())


class Network:
    """A visit to the peer that answers each call with the next of `answers`, or raises it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: Any) -> None:
        self._answers = iter(answers)
        monkeypatch.setattr(invitation, "visit", self.visit)
        for name in ("look", "use", "fetch", "roster_from_worker"):
            monkeypatch.setattr(invitation, name, lambda *_, **__: None)

    @contextmanager
    def visit(self, *, open_internet: bool) -> Iterator[Any]:
        yield SimpleNamespace(dial=lambda address: None, call=self.call)

    def call(self, work: Any, *, timeout_s: float) -> Any:
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        return answer


def read(text: str, *typed: str) -> Invitation:
    return Invitation.read(text, typed, address=ADDRESS)


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["--invite", "hello"], "an invite starts with oli1_"),
        (["--invite", token()[:-20]], "the invite is incomplete: copy the whole token, or ask the operator"),
        (["--invite", token(), "workers=2"], "an invite admits one worker"),
        (["--invite", token(), "exchange.allow=[]"], "exchange.allow cannot be set"),
        (["--invite"], "expected one argument"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(
    arguments: list[str], answer: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert answer in error_of(monkeypatch, capsys, "join", ADDRESS, "--yes", *arguments)


@pytest.mark.parametrize("run", ["x/../mine", "../x", "/tmp/x", "..", "${oc.env:HOME}", "x'y"])
def test_a_token_whose_run_id_is_not_plain_text_is_refused(run: str) -> None:
    """The run id is part of the name of the folder with this machine's key."""
    with pytest.raises(UserError, match=r"contains only letters, digits, spaces and _ .*: ask the operator"):
        read(token(run=run))


@pytest.mark.parametrize("run", ["winter", 7, "summer/../winter"])
def test_the_settings_of_another_run_than_that_of_the_token_are_refused(
    run: str | int, monkeypatch: pytest.MonkeyPatch
) -> None:
    Network(monkeypatch, None, LISTED, manifest(run))
    with pytest.raises(UserError, match=r"^the peer at .* sent the settings of run .* for run 'summer': use the"):
        read(token()).ask_peer()


@pytest.mark.parametrize("run", ["summer", 7])
def test_the_settings_of_the_run_in_the_token_are_returned(run: str | int, monkeypatch: pytest.MonkeyPatch) -> None:
    Network(monkeypatch, None, LISTED, manifest(run))
    monkeypatch.setattr(invitation, "roster_from_worker", lambda *_: list)
    assert read(token(run=str(run))).ask_peer().manifest.run == run


@pytest.mark.parametrize("word", [*REFUSALS, "", "else"])
def test_each_refusal_says_what_to_do(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Network(monkeypatch, None, InviteRefused(word))
    with pytest.raises(UserError, match=r"^the invite (is|was|has|cannot).*: (ask|use|try)") as told:
        read(token()).ask_peer()
    assert REFUSALS.get(word, "is not accepted") in str(told.value)


def test_another_list_than_that_of_the_issuer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the peer at the address could name voters of its choice."""
    Network(monkeypatch, None, [*LISTED, id_of(9)])
    with pytest.raises(UserError, match="is not that of the peer that issued the invite: ask the operator"):
        read(token()).ask_peer()


def test_a_peer_that_accepts_no_invites(monkeypatch: pytest.MonkeyPatch) -> None:
    Network(monkeypatch, None, Unreachable("protocols not supported"))
    with pytest.raises(UserError, match="leave --invite out if the run has no allow-list"):
        read(token()).ask_peer()


def test_a_peer_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    Network(monkeypatch, Unreachable("connection refused"))
    monkeypatch.setattr(invitation, "why_silent", lambda address: f"no program listens at {address}")
    with pytest.raises(UserError, match=f"^no program listens at {ADDRESS}$"):
        read(token()).ask_peer()


def test_an_answer_without_an_admission_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    Network(monkeypatch, None, [])
    one = read(token(), f"run_dir={tmp_path}")
    one.listed = LISTED
    with pytest.raises(UserError, match="did not admit this machine"):
        one.use()


def test_the_clock_of_the_receiver_decides_whether_an_invite_has_expired(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    Network(monkeypatch, None, InviteRefused("expired"))
    with pytest.raises(UserError, match="has expired"):
        read(token(expires_s=1), f"run_dir={tmp_path}").ask_peer()
    Network(monkeypatch, None, LISTED[:1])
    with pytest.raises(UserError, match="is not that of the peer"):
        read(token(expires_s=1), f"run_dir={tmp_path}").ask_peer()
