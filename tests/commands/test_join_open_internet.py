"""With exchange.open_internet=true, every connection of `outerloop join` may use relays and hole punching."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from outerloop.commands import join
from outerloop.commands.join import invitation, offer, other_peers
from outerloop.commands.join.invitation import Invitation
from outerloop.commands.known_peers import with_known_peers
from outerloop.config import load
from outerloop.config.run_directory import identity_file
from outerloop.launcher import corpus_download
from outerloop.launcher.corpus_download import source_peers
from outerloop.swarm.access.invites import Token
from outerloop.swarm.membership import answering_peers
from outerloop.swarm.membership.known_addresses import addresses_file
from tests.support.swarm.dht_scene import id_of, trust

ADDRESS = f"/ip4/192.0.2.1/tcp/4/p2p/{id_of(1)}"
RUN = ["recipe=sparseloco", "exchange=swarm_gather", "run_dir=runs/join-summer"]


class Visited(Exception):
    """Raised instead of a connection. The argument is the value of open_internet."""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that has joined run summer before, and whose connections raise Visited."""

    def visit(*, open_internet: bool = False, **_: object) -> NoReturn:
        raise Visited(open_internet)

    monkeypatch.chdir(tmp_path)
    for module in (offer, invitation, answering_peers, corpus_download):
        monkeypatch.setattr(module, "visit", visit)
    monkeypatch.setattr(join, "of_machine", lambda: iter([]))
    monkeypatch.setattr(join.signal, "signal", lambda *_: None)
    identity = identity_file(Path("runs/join-summer"), 0)
    identity.parent.mkdir(parents=True)
    addresses_file(identity).write_text(f"{ADDRESS}\n")
    Path("runs/join-summer/config.yaml").write_text("exchange: {run: summer, allow: []}\n")


def ask(option: str) -> None:
    join.main([ADDRESS, "--yes", option, "run_dir=new"])


def print_unit(option: str) -> None:
    join.main([ADDRESS, "--systemd", option, "run_dir=new"])


def show_invite(option: str) -> None:
    until_s = int(time.time() + 600)
    token = Token.new(trust(1).signatures, run="summer", listed=[], name="", expires_s=until_s, rounds=0)
    Invitation.read(token.to_text(), [option], address=ADDRESS).ask_peer()


def ask_another(option: str) -> None:
    join.main([ADDRESS, "--yes", option])


def dial_remembered(option: str) -> None:
    overrides = [*RUN, option]
    with_known_peers(load.load(overrides), overrides)


def download(option: str) -> None:
    with source_peers(load.load([*RUN, option, f"exchange.initial_peers=[{ADDRESS}]"])):
        pass


def download_as_member(option: str) -> None:
    with source_peers(load.load([*RUN, option, f"exchange.initial_peers=[{ADDRESS}]", f"exchange.allow=[{id_of(1)}]"])):
        pass


@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize(
    "connect", [ask, print_unit, show_invite, ask_another, dial_remembered, download, download_as_member]
)
def test_every_connection_has_the_option_that_was_typed(
    connect: Callable[[str], None], is_open: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(other_peers, "connection_error", lambda address: ConnectionRefusedError())
    with pytest.raises(Visited) as visited:
        connect(f"exchange.open_internet={str(is_open).lower()}")
    assert visited.value.args == (is_open,)
