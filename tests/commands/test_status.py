"""`outerloop status`: the table of a swarm, and how a worker's rows get into it."""

from __future__ import annotations

import signal
import time
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console, Group

from outerloop.commands import main, status
from outerloop.commands.observe import RunObservation, contributions_of, own_addresses
from outerloop.core.contributor_rows import ContributorTable
from outerloop.launcher.interrupts import Terminated, raise_terminated
from outerloop.sinks.peer_status import PeerStatusSink
from outerloop.swarm.access.public_names import KnownNames, PublicName
from outerloop.swarm.accountability.contributors import Totals
from outerloop.swarm.membership.roster import Record
from outerloop.swarm.membership.status import Status
from outerloop.types import Contributor
from tests.support.run_command import error_of
from tests.support.swarm.dht_scene import id_of, trust

IDS = ["12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp", "12D3KooWQkrbANV9FKkcs48PRwK38ogmdpNNYPjyUK5n1Qy4VK5w"]


def record(worker: int, told: Status | None) -> Record:
    return Record(f"{worker:03d}-{IDS[worker]}", [f"/ip4/192.0.2.{worker}/tcp/4/p2p/{IDS[worker]}"], "f", 1.0, told)


@contextmanager
def restored_signals() -> Iterator[None]:
    """SIGINT as in a terminal, which a program that was started in the background ignores; afterwards as before."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def printed(seen: status.SeenPeers, contributions: ContributorTable | None = None) -> list[str]:
    console = Console(width=180)
    with console.capture() as capture:
        console.print(status.page("r", seen, (), contributions))
    return capture.get().splitlines()


def test_peers_are_shown_with_what_they_told() -> None:
    told = Status(round=12, peers=2, loss=2.5, tokens_per_s=1234.5, bytes_sent=4_000_000, commit="0123456789")
    lines = printed([(record(0, told), 3.2), (record(1, Status(round=11)), 61.0)])
    assert lines[0] == "run r: 2 peers, 2 took part in round 12"
    rows = [" ".join(line.split()) for line in lines]
    first = "000-…vnc6iDEp /ip4/192.0.2.0/tcp/4 12 2 peers 2.5 1,234 4.0 MB 0 B 01234567 3 s ago"
    assert first in rows and "001-…1Qy4VK5w /ip4/192.0.2.1/tcp/4 11 no 0 B 0 B 61 s ago" in rows


def test_one_peer_that_claims_a_far_round_does_not_change_the_headline() -> None:
    claimed = [Status(round=12, peers=3), Status(round=12, peers=2), Status(round=1 << 40, peers=9), Status()]
    seen = [(record(i % 2, one), 1.0) for i, one in enumerate(claimed)]
    assert status.headline("r", seen) == "run r: 4 peers, 3 took part in round 12"


def test_one_peer_that_claims_many_peers_does_not_change_the_headline() -> None:
    for claimed in ([(12, 3), (12, 0), (12, 900), (12, 3)], [(12, 900), (12, 3), (11, 3), (13, 0)]):
        told = [Status(round=round, peers=peers) for round, peers in claimed]
        seen = [(record(i % 2, one), 1.0) for i, one in enumerate(told)]
        assert status.headline("r", seen) == "run r: 4 peers, 3 took part in round 12"


def test_a_peer_that_downloads_the_state_shows_how_much_it_has_received() -> None:
    assert status.status_cells(Status(loading=0.426))[1] == "loads the state: 43 %"


def named(worker: int, text: str) -> Record:
    """The record of a peer with a public name, which it has signed or not."""
    statement = PublicName(text, 7, b"s" * 64).to_bytes()
    return replace(record(worker, Status(round=12, peers=2)), public_name=statement)


def test_names_are_shown_as_text_with_the_end_of_the_peer_id() -> None:
    lines = printed([(named(0, "[red]<b>Ada"), 3.2), (named(1, "[red]<b>Ada"), 3.2)])
    rows = [" ".join(line.split()) for line in lines]
    assert any(row.startswith("000-…vnc6iDEp [red]<b>Ada /ip4/192.0.2.0") for row in rows)
    assert any(row.startswith("001-…1Qy4VK5w [red]<b>Ada /ip4/192.0.2.1") for row in rows)


def test_contributors_are_listed_by_samples_those_that_have_left_included() -> None:
    counts = Contributor("", 2, 16, 0, 3), Contributor(id_of(5), 12, 96, 0, 11), Contributor(IDS[0], 36, 288, 0, 11)
    signed = PublicName.signed(trust(5).signatures, run="r", text="Ada's laptop", time_s=7)
    told = Totals(11, counts, {id_of(5): signed.to_bytes()})
    names = KnownNames(trust(3).signatures, run="r")
    seen = [(record(0, None), 1.0)]
    found = contributions_of(told, names, seen, [told.digest, b"other" * 6 + b"xx"])
    assert (found.round, found.asked, found.equal) == (12, 2, 1)
    assert [(row.peer, row.name) for row in found.rows] == [(IDS[0], ""), (id_of(5), "Ada's laptop"), ("", "")]
    rows = [" ".join(line.split()) for line in printed(seen, found)]
    assert "contributors to rounds 1 to 12; 1 of 2 other peers state the same counts" in rows
    first = rows.index("…vnc6iDEp 288 72.0 % 36 1 12 yes")
    assert rows[first + 1] == f"Ada's laptop …{id_of(5)[-8:]} 96 24.0 % 12 1 12 no"
    assert rows[first + 2] == "all others 16 4.0 % 2 1 4 no"


def test_a_peer_that_states_the_counts_cannot_give_others_a_name() -> None:
    statement = PublicName.signed(trust(6).signatures, run="r", text="Eve", time_s=7).to_bytes()
    forged = Totals(11, (Contributor(id_of(5), 1, 8, 0, 0),), {id_of(5): statement})
    [row] = contributions_of(forged, KnownNames(trust(3).signatures, run="r"), []).rows
    assert row.name == "" and row.peer == id_of(5)


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_stopped_while_it_looks_for_peers(sent: signal.Signals, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "observe_run", lambda *_, **__: signal.raise_signal(sent))
    monkeypatch.setattr("sys.argv", ["outerloop", "status", f"/ip4/127.0.0.1/tcp/4/p2p/{IDS[0]}"])
    with restored_signals():
        assert main.main() == code


@pytest.mark.parametrize(
    ("sent", "expected"), [(signal.SIGTERM, pytest.raises(Terminated)), (signal.SIGINT, nullcontext())]
)
def test_the_live_table_ends_with_ctrl_c(sent: signal.Signals, expected: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    observation = SimpleNamespace(run="r", seen=lambda: [], expelled=lambda: {}, contributions=lambda: None)
    monkeypatch.setattr(time, "sleep", lambda _: signal.raise_signal(sent))
    monkeypatch.setattr(status, "page", lambda *_, **__: Group())
    with restored_signals(), expected:
        signal.signal(signal.SIGTERM, raise_terminated)
        status.watch(cast(RunObservation, observation), Console(), asked=IDS[0])


def test_peers_that_told_nothing_yet_and_nobody_at_all() -> None:
    assert printed([(record(0, None), 0.0)])[0] == "run r: 1 peer, no round yet"
    assert printed([])[0] == "run r: 0 peers, no round yet"


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), 1e18, -1e-18])
def test_any_number_has_a_width(loss: float) -> None:
    told = Status(round=1 << 40, peers=1024, loss=loss, tokens_per_s=4e18, bytes_sent=1 << 62, bytes_received=1 << 62)
    assert all(len(cell) <= 26 for cell in status.status_cells(told))


def test_a_workers_rows_become_its_status() -> None:
    seen: list[Status] = []
    sink = PeerStatusSink(seen.append)
    sink.write({"event": "ready"})
    sink.write({"event": "step", "loss": 3.0, "tokens_per_s": 10.0})
    sink.write({"event": "round", "round": 1, "failed": "", "peers": 4, "took_part": True})
    sink.write({"event": "round", "round": 2, "failed": "too late", "peers": 0, "took_part": False})
    sink.write({"event": "round", "round": 3, "failed": "", "peers": 3, "took_part": False})
    assert seen == [
        Status(loss=3.0, tokens_per_s=10.0),
        Status(loss=3.0, tokens_per_s=10.0, round=1, peers=4),
        Status(loss=3.0, tokens_per_s=10.0, round=2, peers=0, counted=False),
        Status(loss=3.0, tokens_per_s=10.0, round=3, peers=3, counted=False),
    ]
    assert [status.status_cells(told)[1] for told in seen] == ["", "4 peers", "no", "3 peers, not counted"]


def test_only_addresses_of_the_peer_itself_are_measured() -> None:
    """A record may name the addresses of others, or nothing that is an address."""
    own = f"/ip4/192.0.2.1/tcp/4/p2p/{IDS[1]}"
    honest = replace(record(1, Status()), addresses=[f"/ip4/192.0.2.7/tcp/4/p2p/{IDS[0]}", own])
    false = [replace(record(0, Status()), addresses=addresses) for addresses in ([own], [], ["garbage"])]
    assert own_addresses([(one, 1.0) for one in (*false, honest)]) == {IDS[1]: own}


class Asked:
    """A visitor that keeps the questions it is to ask, for the test to answer."""

    def __init__(self) -> None:
        self.answers: list[Future[Any]] = []

    def spawn(self, question: Coroutine[Any, Any, Any]) -> Future[Any]:
        question.close()
        self.answers.append(Future())
        return self.answers[-1]

    def look(self) -> RunObservation:
        return RunObservation(cast(Any, self), IDS[0], run="r", roster=list, is_open=True)


def test_a_peer_that_does_not_answer_who_is_expelled_holds_up_no_table() -> None:
    asked = Asked()
    look = asked.look()
    began = time.monotonic()
    assert look.expelled(wait_s=0.01) is None and look.expelled() is None and len(asked.answers) == 1
    asked.answers[0].set_result([])
    assert look.expelled() == [], "known"
    assert look.expelled() == [] and len(asked.answers) == 2, "known from before, while it is asked again"
    asked.answers[1].set_exception(TimeoutError())
    assert look.expelled() is None and time.monotonic() - began < 5


def test_that_nobody_answers_is_not_shown_as_nobody_expelled() -> None:
    console = Console(width=180)
    with console.capture() as capture:
        console.print(status.page("r", [], None))
    assert capture.get().splitlines()[-1] == "expelled: not known, because the peer at this address has not answered"
    assert "expelled" not in "".join(printed([]))


@pytest.mark.parametrize(
    ("asked", "why"), [(IDS[0], "has not answered"), (IDS[1], "does not take part in the run, like a relay")]
)
def test_through_a_relay_it_is_said_why_expelled_peers_are_not_known(asked: str, why: str) -> None:
    console = Console(width=180)
    with console.capture() as capture:
        console.print(status.page("r", [(record(0, None), 1.0)], None, asked=asked))
    assert f"expelled: not known, because the peer at this address {why}" in capture.get()


@pytest.mark.parametrize(
    ("arguments", "answer"), [([], "run outerloop status ADDR"), (["here"], "not a full address like /ip4/")]
)
def test_mistakes_are_one_line_and_exit_code_2(
    arguments: list[str], answer: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert answer in error_of(monkeypatch, capsys, "status", *arguments)
