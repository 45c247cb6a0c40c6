"""--systemd and --docker of host, join and relay: the unit or the command that runs the same line again."""

from __future__ import annotations

import configparser
import shlex
import sys
from pathlib import Path

import pytest

from outerloop.commands import host, join, relay
from outerloop.commands.service import STOP_S, quoted
from outerloop.launcher.supervisor import ANSWER_S, SAVE_S

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
    command = shlex.split(capsys.readouterr().out.replace("\\\n", ""))
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
