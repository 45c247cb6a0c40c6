"""Joining does not depend on a single peer: others are found in the run, or remembered from the last time."""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from outerloop.commands import join
from outerloop.commands.join import offer, other_peers
from outerloop.commands.join.other_peers import OTHERS, address_to_ask, answering_others
from outerloop.config.manifest.content import RunManifest
from outerloop.config.run_directory import identity_file
from outerloop.swarm.membership.known_addresses import addresses_file, peer_of
from outerloop.swarm.membership.roster import Record
from outerloop.swarm.p2p.observer import visit
from tests.support.ports import free_port
from tests.support.run_command import run_command

ONE = "/ip4/127.0.0.1/tcp/{}/p2p/12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp"
LISTED = "/ip4/192.0.2.8/tcp/4242/p2p/12D3KooWQkrbANV9FKkcs48PRwK38ogmdpNNYPjyUK5n1Qy4VK5w"
OTHER = "/ip4/192.0.2.7/tcp/4242/p2p/12D3KooWGRUVh5ZnpLdW1dQnH5xG7vW3wqqkWn7a3aTfKQvyJ8Qb"


def record_of(address: str) -> tuple[Record, float]:
    return Record(f"000-{address.rpartition('/')[2]}", [address], "f", 1.0), 0.0


@pytest.fixture
def closed() -> str:
    """An address of this machine where no program listens."""
    return ONE.format(free_port())


def test_of_the_other_peers_of_a_run_those_that_answer(closed: str) -> None:
    with visit() as asker, visit() as typed, visit() as present:
        addresses = typed.addresses[0], present.addresses[0]
        seen = [record_of(address) for address in (*addresses, closed)]
        assert answering_others(asker, seen, addresses[0]) == [addresses[1]]


def test_a_peer_that_accepts_connections_and_says_nothing_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(other_peers, "ANSWER_S", 0.5)
    with visit() as asker, socket.create_server(("127.0.0.1", 0)) as silent:
        seen = [record_of(ONE.format(silent.getsockname()[1]))]
        assert answering_others(asker, seen, OTHER) == []


def test_few_of_many_are_asked() -> None:
    class Node:
        def answering(self, addresses: list[str], *, within_s: float) -> list[str]:
            return addresses

        def call(self, answering: object, *, timeout_s: float) -> object:
            return answering

    seen = [record_of(f"/ip4/192.0.2.1/tcp/{port}/p2p/{'Qm'}{port}") for port in range(1, 100)]
    asked = answering_others(Node(), seen, seen[0][0].addresses[0])  # type: ignore[arg-type]
    assert len(set(asked)) == OTHERS and seen[0][0].addresses[0] not in asked


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def remember(folder: Path, *addresses: str, run: str = "summer", allow: Sequence[str] = ()) -> Path:
    identity = identity_file(folder, 0)
    identity.parent.mkdir(parents=True)
    (folder / "config.yaml").write_text(f"exchange:\n  run: {run}\n  allow: {json.dumps(allow)}\n")
    addresses_file(identity).write_text("".join(f"{address}\n" for address in addresses))
    return identity


def answers(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> list[Path]:
    asked: list[Path] = []

    def answering(identity: Path, *, open_internet: bool) -> list[str]:
        asked.append(identity)
        return list(addresses)

    monkeypatch.setattr(other_peers, "answering_peers", answering)
    return asked


def test_a_newcomer_asks_the_typed_address_whatever_answers(home: Path, closed: str) -> None:
    remember(home / "runs/join-other", OTHER)
    assert address_to_ask(closed, {}, invited=False) == (closed, None)


@pytest.mark.parametrize("typed", [{}, {"run_dir": "runs/join-summer"}])
def test_a_machine_that_returns_asks_a_remembered_peer_of_the_same_run(
    typed: dict[str, str], home: Path, closed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    remember(home / "runs/join-another", OTHER, run="another")
    identity = remember(home / "runs/join-summer", OTHER, closed)
    asked = answers(monkeypatch, OTHER)
    assert address_to_ask(closed, typed, invited=False) == (OTHER, "summer") and asked == [identity]


def test_the_peer_counts_at_whatever_address(home: Path, closed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file may have another address of the peer than the typed one."""
    remember(home / "runs/join-summer", closed.replace("127.0.0.1", "10.0.0.1"))
    answers(monkeypatch, OTHER)
    assert address_to_ask(closed, {}, invited=False) == (OTHER, "summer")


def test_no_other_one_is_asked_while_a_program_listens_at_the_address(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = answers(monkeypatch, OTHER)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = ONE.format(server.getsockname()[1])
        remember(home / "runs/join-summer", address, OTHER)
        assert address_to_ask(address, {}, invited=False) == (address, None) and asked == []


def test_the_typed_address_stays_if_none_answers(home: Path, closed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    remember(home / "runs/join-summer", closed)
    answers(monkeypatch)
    assert address_to_ask(closed, {}, invited=False) == (closed, None)


def test_a_folder_without_settings_names_no_run_and_supplies_no_address(home: Path, closed: str) -> None:
    remember(home / "runs/join-summer", closed, OTHER)
    (home / "runs/join-summer/config.yaml").unlink()
    assert address_to_ask(closed, {}, invited=False) == (closed, None)


@pytest.mark.parametrize("listed", [LISTED, OTHER])
def test_an_invite_is_shown_only_to_a_listed_peer(
    listed: str, home: Path, closed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer that was invited itself accepts no invites."""
    remember(home / "runs/join-summer", closed, OTHER, LISTED, allow=[peer_of(closed), peer_of(listed)])
    answers(monkeypatch, OTHER, LISTED)
    assert {address_to_ask(closed, {}, invited=True) for _ in range(20)} == {(listed, "summer")}
    answers(monkeypatch, *{OTHER, LISTED} - {listed})
    assert address_to_ask(closed, {}, invited=True) == (closed, None)


@pytest.mark.parametrize("flags", [["--yes"], ["--systemd"]])
def test_a_remembered_peer_that_is_in_another_run_is_refused(
    flags: list[str], home: Path, closed: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A stranger that this machine met in the run may offer it any run."""
    remember(home / "runs/join-summer", closed, OTHER)
    answers(monkeypatch, OTHER)
    sent = RunManifest(version="0.1.0", run="winter", fingerprint="ab" * 32).to_json().encode()
    node = SimpleNamespace(call=lambda *_, **__: SimpleNamespace(content=sent, peer=peer_of(OTHER)))
    monkeypatch.setattr(offer, "visit", lambda **_: nullcontext(node))
    monkeypatch.setattr(offer, "fetch", lambda *_: None)
    monkeypatch.setattr(offer, "roster_from_dht", lambda *_: pytest.fail("the offer was read on"))
    monkeypatch.setattr(join, "of_machine", lambda: iter([]))
    monkeypatch.setattr(join.signal, "signal", lambda *_: None)
    code, _, said = run_command(monkeypatch, capsys, "join", closed, *flags)
    asked, refused = said.splitlines()
    assert code == 2 and f"asking {OTHER}, which is stored as a peer of run summer" in asked
    assert "stored as a peer of run 'summer', sent the settings of run 'winter': run the same command again" in refused
