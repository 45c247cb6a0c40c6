"""--systemd and --docker of host, join and relay: the unit or the command that runs the same line again."""

from __future__ import annotations

import configparser
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from outerloop.commands import host, join, relay
from outerloop.commands.service import STOP_S, quoted
from outerloop.launcher.supervisor import ANSWER_S, SAVE_S
from outerloop.swarm.access.invites import Token
from tests.support.swarm.dht_scene import trust

ADDRESS = "/ip4/192.0.2.1/tcp/4/p2p/12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp"


def unit(text: str) -> configparser.ConfigParser:
    parsed = configparser.ConfigParser(interpolation=None)
    parsed.optionxform = str  # type: ignore[method-assign, assignment]
    parsed.read_string(text)
    return parsed


def test_the_unit_runs_this_very_command(capsys: pytest.CaptureFixture[str]) -> None:
    announce = "exchange.announce=[/ip4/1.2.3.4/tcp/4242]"
    assert host.main(["recipe=sparseloco", "--systemd", "--name", "summer", announce]) == 0
    text = capsys.readouterr().out
    service = unit(text)["Service"]
    assert shlex.split(service["ExecStart"]) == [
        *(sys.executable, "-m", "outerloop", "host", "recipe=sparseloco", "--name", "summer", announce)
    ]
    assert service["WorkingDirectory"] == str(Path.cwd()) and service["Restart"] == "on-failure"
    assert unit(text)["Install"]["WantedBy"] == "multi-user.target"
    assert "/etc/systemd/system/outerloop-summer.service" in text
    assert int(service["TimeoutStopSec"]) == STOP_S > ANSWER_S + SAVE_S


@pytest.fixture(autouse=True)
def answering_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer whose run has a name that is no file name."""
    offer = SimpleNamespace(manifest=SimpleNamespace(run="../a summer;" + "x" * 100))
    monkeypatch.setattr(join, "ask_peer", lambda address, **_: offer)
    monkeypatch.setattr(relay, "ask_peer", lambda address: offer)


def test_a_unit_is_named_after_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    named = "..-a-summer-" + "x" * 28
    for command, name in ((join, "join"), (relay, "relay")):
        assert command.main([ADDRESS, "--systemd"]) == 0
        assert f"/etc/systemd/system/outerloop-{name}-{named}.service\n" in capsys.readouterr().out
        assert command.main([ADDRESS, "--docker"]) == 0
        assert f"--name outerloop-{name}-{named} " in capsys.readouterr().out
    token = Token.new(trust(1).signatures, run="autumn", listed=[], name="", expires_s=2_000_000_000, rounds=0)
    assert join.main([ADDRESS, "--systemd", "--invite", token.to_text()]) == 0
    assert "/outerloop-join-autumn.service" in capsys.readouterr().out


def test_a_volunteer_joins_after_a_reboot_without_being_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert join.main([ADDRESS, "--systemd", "threads=2"]) == 0
    command = shlex.split(unit(capsys.readouterr().out)["Service"]["ExecStart"])
    assert command[3:] == ["join", ADDRESS, "threads=2", "--yes"]
    assert join.main([ADDRESS, "--docker", "--yes"]) == 0
    kept = "corpus.folder=/work/runs/corpus"
    assert capsys.readouterr().out.rstrip().endswith(f"outerloop join {ADDRESS} --yes {kept}")
    assert join.main([ADDRESS, "--docker", "--yes", "corpus.folder=/data"]) == 0
    assert capsys.readouterr().out.rstrip().endswith(f"outerloop join {ADDRESS} --yes corpus.folder=/data")


def test_the_docker_command_uses_the_network_of_the_machine_and_keeps_the_results(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert relay.main([ADDRESS, "--docker", "--port", "4711"]) == 0
    first, _, rest = capsys.readouterr().out.partition("\n")
    assert first == "# first, in a clone of the repository: docker build -t outerloop ."
    command = shlex.split(rest.replace("\\\n", ""))
    assert command[:3] == ["docker", "run", "--detach"]
    assert command[-5:] == ["outerloop", "relay", ADDRESS, "--port", "4711"]
    assert command[command.index("--network") + 1] == "host"
    assert command[command.index("--restart") + 1] == "unless-stopped"
    assert command[command.index("--volume") + 1] == "outerloop-runs:/work/runs"


@pytest.mark.parametrize(
    ("argument", "in_unit"),
    [
        ("rounds=5", "rounds=5"),
        ("exchange.announce=[/ip4/1.2.3.4/tcp/1]", '"exchange.announce=[/ip4/1.2.3.4/tcp/1]"'),
        ("a b", '"a b"'),
        ("50%", '"50%%"'),
        ("$HOME", '"$$HOME"'),
        ('say "x"', '"say \\"x\\""'),
        ("a\nb", '"a\\nb"'),
        ("", '""'),
    ],
)
def test_arguments_are_quoted_as_systemd_reads_them(argument: str, in_unit: str) -> None:
    assert quoted(argument) == in_unit


def test_the_help_says_which_peer_must_answer() -> None:
    shown = {command: " ".join(command.parser().format_help().split()) for command in (host, join, relay)}
    assert shown[relay].count("and exit; the peer at ADDRESS must answer") == 2
    assert shown[join].count("and exit; without --invite, the peer at ADDRESS must answer") == 2
    assert "must answer" not in shown[host]
