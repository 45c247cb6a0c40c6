"""Why no peer answers at an address: the reason and the advice, for each thing that a TCP connection can show."""

from __future__ import annotations

import socket
from typing import NoReturn

import pytest

from outerloop.commands.join import offer, silence
from outerloop.commands.join.silence import why_silent
from outerloop.swarm.p2p.daemon import unreachable
from outerloop.types import UserError
from tests.support.ports import free_port

ID = "12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp"


def test_a_closed_port() -> None:
    port = free_port()
    text = why_silent(f"/ip4/127.0.0.1/tcp/{port}/p2p/{ID}")
    assert text.startswith(f"no program listens on port {port} of 127.0.0.1 (the run has ended")
    assert text.endswith(": ask the operator of the run for the address of a running peer")


def test_an_open_port_of_another_program() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        text = why_silent(f"/dns4/localhost/tcp/{other.getsockname()[1]}/p2p/{ID}")
    assert "of localhost is open, but the peer …vnc6iDEp does not answer there" in text


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (TimeoutError("timed out"), "port 4 of 192.0.2.1 does not answer (the machine is off"),
        (OSError(113, "No route to host"), "port 4 of 192.0.2.1 cannot be reached (No route to host): check the"),
    ],
)
def test_a_host_that_cannot_be_reached(error: OSError, answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(target: tuple[str, int], *, timeout: float) -> NoReturn:
        assert target == ("192.0.2.1", 4) and timeout == silence.CONNECT_S
        raise error

    monkeypatch.setattr(socket, "create_connection", connect)
    assert why_silent(f"/ip4/192.0.2.1/tcp/4/p2p/{ID}").startswith(answer)


def test_an_address_without_a_port() -> None:
    assert why_silent(f"/p2p/{ID}").startswith(f"no peer answers at /p2p/{ID}: ask the operator")


def test_join_says_why_the_peer_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()

    def visit(*, initial_peers: list[str], open_internet: bool) -> NoReturn:
        raise unreachable(initial_peers)

    monkeypatch.setattr(offer, "visit", visit)
    with pytest.raises(UserError, match=f"^no program listens on port {port}"):
        offer.ask_peer(f"/ip4/127.0.0.1/tcp/{port}/p2p/{ID}")
