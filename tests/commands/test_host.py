"""`outerloop host`: its options, what it refuses, and what it shows to volunteers."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from outerloop.commands import host, known_peers, train
from outerloop.commands.host.settings import host_overrides, refuse_closed
from outerloop.commands.join_line import JoinLine, join_command, qr_code
from outerloop.config import load
from outerloop.config.part_checks import check_parts
from outerloop.types import UserError
from tests.support.run_command import error_of

ID = "12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp"
LOCAL, LAN, PUBLIC = (f"/ip4/{ip}/tcp/4242/p2p/{ID}" for ip in ("127.0.0.1", "192.168.1.5", "8.8.8.8"))


def overrides(*typed: str, name: str = "summer", listen: str = "0.0.0.0") -> list[str]:
    return host_overrides(typed, name=name, host=listen, port=4242)


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["--name", "../home"], "--name ../home must be 1 to 40 letters"),
        (["--port", "65536"], "--port 65536 is not a port"),
        (["--host", "home"], "--host home is not an IP address"),
        (["exchange=inprocess"], "volunteers join over a network, so exchange=inprocess cannot be hosted"),
        (["exchange.run=x"], "exchange.run is set by --name"),
        (["island=sharded"], "without torchrun"),
        ([f"exchange.allow=[{ID}]"], "because it has an allow-list"),
        (["recipe=noloco"], "gossip starts with a fixed number of peers: add exchange.peers=N"),
        (["model=module", "model._target_=torch.nn.Linear"], "volunteers could not join this run, because"),
        (["run_dir"], "is not an option"),
        (["--systemd", "--docker"], "not allowed with"),
        (["--docker", "run_dir=/data"], "leave out the run folder"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(
    arguments: list[str], answer: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(host, "train", lambda *_, **__: pytest.fail("it trains"))
    assert answer in error_of(monkeypatch, capsys, "host", *arguments)


def test_an_open_run_has_its_own_defaults_and_typed_options_replace_them() -> None:
    assert overrides() == [
        "exchange=swarm_gather",
        "aggregate=median_cosine",
        "workers=1",
        "run_dir='runs/summer'",
        "exchange.run='summer'",
        "exchange.host='0.0.0.0'",
        "exchange.port=4242",
        "exchange.open_internet=true",
        "checkpoint.hf_every=20",
        "rounds=100000",
        "scores.payloads=2",
        "scores.windows=16",
        "exclude_accused=true",
    ]
    assert load.load(overrides()).exchange.peers == 1
    typed = overrides("workers=2", "steps=300", "run_dir=x")
    assert typed[-3:] == ["workers=2", "steps=300", "run_dir=x"]
    assert not any(text.startswith(("rounds=", "run_dir='")) for text in typed)
    assert load.load(typed).exchange.peers == 2
    assert "exchange.open_internet=false" in overrides(listen="127.0.0.1")


@pytest.mark.parametrize(
    ("typed", "scores"),
    [
        (["recipe=diloco"], True),
        (["recipe=muloco", "schedule.delay=2"], True),
        (["recipe=streaming_diloco"], False),  # a payload has a part of the weights
        (["recipe=ddp"], False),
        (["data=hf"], False),
        (["recipe=diloco", "eager=true", "schedule.delay=30"], False),
        (["exclude_accused=false"], False),
        (["scores.payloads=0"], False),
        (["scores.windows=8"], True),
    ],
)
def test_peers_of_an_open_run_vote_on_payloads_if_these_can_be_scored(typed: list[str], scores: bool) -> None:
    found = overrides(*typed)
    assert ("exclude_accused=true" in found, "scores.payloads=2" in found) == (scores, scores)
    assert ("scores.windows=16" in found) == (scores and "scores.windows=8" not in typed)


@pytest.mark.parametrize("recipe", ["sparseloco", "outerloop", "outerloop_v1"])
def test_an_open_run_weakens_payloads_whose_direction_differs(recipe: str) -> None:
    config = load.load(overrides(f"recipe={recipe}"))
    refuse_closed(config)
    check_parts(config)
    assert config.aggregate._target_.endswith("MedianCosine")


@pytest.mark.parametrize("recipe", ["diloco", "streaming_diloco", "loco", "demo", "muloco"])
def test_a_recipe_that_averages_over_all_peers_keeps_its_aggregate(recipe: str) -> None:
    assert load.load(overrides(f"recipe={recipe}")).aggregate == load.load([f"recipe={recipe}"]).aggregate


def test_the_aggregate_that_the_user_typed_is_kept() -> None:
    assert load.load(overrides("aggregate=senders")).aggregate._target_.endswith("Senders")


def test_a_gossip_recipe_is_hosted_with_a_fixed_number_of_peers() -> None:
    config = load.load(overrides("recipe=noloco", "exchange.peers=3"))
    refuse_closed(config)
    assert config.exchange._target_.endswith("SwarmGossip") and config.exchange.peers == 3


class Flow:
    """`outerloop host` without training: what it would train with."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, remembered: list[str]) -> None:
        self.trained: list[Any] = []
        self.looked_at: list[Path] = []
        monkeypatch.setattr(host, "train", self.train)
        monkeypatch.setattr(known_peers, "answering_peers", lambda key, **_: self.looked_at.append(key) or remembered)
        monkeypatch.setattr(host, "handle_interrupts", lambda: None)

    def train(self, config: Any, *, overrides: list[str], show_address: Any) -> None:
        self.trained.append(config)
        show_address([LOCAL, LAN])


def test_a_host_that_restarts_joins_the_peers_that_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flow = Flow(monkeypatch, [LAN])
    assert host.main(["--name", "summer"]) == 0
    assert list(flow.trained[0].exchange.initial_peers) == [LAN]
    assert flow.looked_at[0].parts[-5:] == ("runs", "summer", "workers", "0", "identity.key")
    said = capsys.readouterr().out
    assert f"outerloop join {LAN}\n" in said and "forward TCP port 4242" in said
    flow = Flow(monkeypatch, [])
    assert host.main([f"exchange.initial_peers=[{PUBLIC}]"]) == 0 and not flow.looked_at
    assert list(flow.trained[0].exchange.initial_peers) == [PUBLIC]


def test_train_dials_the_peers_that_it_remembers_as_well(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of a listed run, too; the remembered addresses are not among the options that the run directory records."""
    trained: list[Any] = []
    monkeypatch.setattr("outerloop.launcher.train.train", lambda config, overrides: trained.append((config, overrides)))
    monkeypatch.setattr(train, "handle_interrupts", lambda: None)
    looked_at: list[Path] = []
    monkeypatch.setattr(known_peers, "answering_peers", lambda key, **_: looked_at.append(key) or [LAN])
    listed = ["exchange=swarm_gather", f"exchange.allow=[{ID}]", f"run_dir={tmp_path}"]
    assert train.train(listed) == 0
    config, overrides = trained.pop()
    assert list(config.exchange.initial_peers) == [LAN] and not any("initial_peers" in text for text in overrides)
    assert looked_at == [tmp_path / "workers/0/identity.key"]
    assert train.train([*listed, f"exchange.initial_peers=[{PUBLIC}]"]) == 0
    assert train.train(["exchange=inprocess", f"run_dir={tmp_path}"]) == 0
    assert list(trained[0][0].exchange.initial_peers) == [PUBLIC] and len(looked_at) == 1


def test_the_join_line_has_the_address_that_most_machines_reach() -> None:
    assert join_command([LOCAL, LAN, PUBLIC]) == f"outerloop join {PUBLIC}"
    assert join_command([LOCAL, LAN]) == f"outerloop join {LAN}"
    assert join_command([LOCAL]) == f"outerloop join {LOCAL} --host 127.0.0.1"


@pytest.mark.parametrize(
    ("addresses", "hint"),
    [
        ([PUBLIC], ""),
        ([LAN, LOCAL], "announce the public address of the router with exchange.announce=[/ip4/ADDRESS/tcp/4242]"),
        ([LOCAL], "listen with --host 0.0.0.0"),
    ],
)
def test_the_reach_of_the_address_is_told(addresses: list[str], hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    JoinLine("summer", qr=False, announce="exchange.announce=[/ip4/ADDRESS/tcp/{port}]").show(addresses)
    said = capsys.readouterr().out
    assert "volunteers join run summer with\n" in said
    assert hint in said if hint else said.count("\n") == 2


def test_the_join_line_is_shown_again_only_if_it_has_changed(capsys: pytest.CaptureFixture[str]) -> None:
    shown = JoinLine("summer", qr=False, announce="")
    for addresses in ([LAN], [LAN, LOCAL], [PUBLIC], [PUBLIC], [LAN]):
        shown.show(addresses)
    said = capsys.readouterr().out
    assert [line.split()[2] for line in said.splitlines() if line.startswith("    ")] == [LAN, PUBLIC, LAN]


def fake_segno(drawn: list[str]) -> ModuleType:
    """The part of segno that is used."""
    module = ModuleType("segno")

    def make_qr(text: str) -> SimpleNamespace:
        drawn.append(text)
        return SimpleNamespace(terminal=lambda out, compact: out.write("▄▀\n" if compact else ""))

    module.make_qr = make_qr  # type: ignore[attr-defined]
    return module


def test_a_qr_code_of_the_join_line_is_drawn_on_request_and_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn: list[str] = []
    monkeypatch.setitem(sys.modules, "segno", fake_segno(drawn))
    JoinLine("summer", qr=False, announce="").show([PUBLIC])
    assert not drawn and "▄▀" not in capsys.readouterr().out
    JoinLine("summer", qr=True, announce="").show([PUBLIC])
    assert drawn == [f"outerloop join {PUBLIC}"] and "▄▀" in capsys.readouterr().out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    JoinLine("summer", qr=False, announce="").show([PUBLIC])
    assert len(drawn) == 2


def test_a_real_qr_code_has_three_corners() -> None:
    pytest.importorskip("segno")
    lines = qr_code(join_command([PUBLIC])).splitlines()
    assert len(lines) > 15 and len({len(line) for line in lines}) == 1


def test_without_the_package_it_is_told_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "segno", None)
    assert qr_code("x") == "no QR code: segno is not installed: run pip install 'outerloop-train[host]'"
    assert "outerloop-train[host]" in error_of(monkeypatch, capsys, "host", "--qr")


def test_the_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        host.main(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "outerloop host --name summer --systemd" in text and "volunteers join and leave" in text


def test_a_closed_run_is_refused_also_with_systemd() -> None:
    with pytest.raises(UserError, match="allow-list"):
        host.main(["--systemd", f"exchange.allow=[{ID}]"])
