"""The default run directory of `outerloop join`: two runs with the same name do not share one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from outerloop.commands.join.run_folder import default_folder, note_on
from outerloop.config.run_directory import identity_file
from outerloop.swarm.membership.known_addresses import addresses_file
from tests.support.swarm.dht_scene import id_of

RUN = "open"
A, B, C, D = map(id_of, range(4))
FIRST, SECOND = Path("runs/join-open"), Path("runs/join-open-2")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def address_of(peer: str) -> str:
    return f"/ip4/192.0.2.1/tcp/4/p2p/{peer}"


def make_folder(folder: Path, *, met: str = "", dialed: str = "", allow: Sequence[str] = (), run: str = RUN) -> None:
    """Make a run directory that stores these peers."""
    identity = identity_file(folder, 0)
    identity.parent.mkdir(parents=True)
    exchange = {"run": run, "initial_peers": [address_of(dialed)] if dialed else [], "allow": list(allow)}
    (folder / "config.yaml").write_text(json.dumps({"exchange": exchange}))
    addresses_file(identity).write_text(f"{address_of(met)}\n" if met else "")


def test_the_first_run_with_a_name_has_the_plain_folder() -> None:
    assert default_folder(RUN, {A}) == FIRST and note_on(FIRST, RUN) == ""


@pytest.mark.parametrize("stored", [{"met": A}, {"dialed": A}, {"allow": [A]}])
def test_the_same_run_has_the_same_folder_whichever_peer_is_asked(stored: dict[str, str]) -> None:
    """It is the same run as long as one of its peers is stored."""
    make_folder(FIRST, **stored)  # type: ignore[arg-type]
    assert default_folder(RUN, {"new", A}) == FIRST
    assert default_folder(RUN, {"new"}) == SECOND


def test_two_runs_with_the_same_name_keep_their_folders() -> None:
    make_folder(FIRST, met=A)
    make_folder(default_folder(RUN, {B}), dialed=B)
    make_folder(default_folder(RUN, {C}), allow=[C])
    assert [default_folder(RUN, {peer}).name for peer in (A, B, C, D)] == [
        "join-open",
        "join-open-2",
        "join-open-3",
        "join-open-4",
    ]
    assert "runs/join-open is of another run with the name open" in note_on(SECOND, RUN)


def test_a_number_after_a_name_may_be_that_of_another_run() -> None:
    """The plain folder of the run "open-2" is the second one of the run "open"."""
    make_folder(SECOND, met=A, run="open-2")
    make_folder(FIRST, met=B)
    assert default_folder("open-2", {A}) == SECOND
    assert default_folder(RUN, {A}) == Path("runs/join-open-3")


def test_a_key_that_an_invite_admitted_is_used_if_training_never_started() -> None:
    identity = identity_file(FIRST, 0)
    identity.parent.mkdir(parents=True)
    identity.touch()
    assert default_folder(RUN, {A}) == FIRST


def test_a_folder_of_ones_own_choice_has_no_note() -> None:
    assert note_on(Path("/data/open-2"), RUN) == ""
