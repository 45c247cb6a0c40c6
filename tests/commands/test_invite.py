"""`outerloop invite`, `expel` and `expelled`: who may use them, what they print, and what they write for the run."""

from __future__ import annotations

import asyncio
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgpack
import pytest
from omegaconf import OmegaConf

from outerloop.commands import invite
from outerloop.commands.invite import MAX_EXPIRES_S, issued_tokens, seconds
from outerloop.commands.invite.issued_tokens import IssuedToken, add_token, read_tokens
from outerloop.commands.listed_workers import ListedWorker
from outerloop.config.run_directory import identity_file, may_precede_run
from outerloop.swarm.access.invites import Token, digest_of_list
from outerloop.swarm.access.register_files import ADDRESS, FOLDER, ISSUED
from outerloop.types import UserError
from tests.support.listed_run_dir import (
    ADDRESS_OF_RUN,
    INVITED,
    OTHER,
    access,
    admission,
    listed_run_dir,
    own,
    statements_of_commands,
    store,
    write_config,
)
from tests.support.run_command import run_command
from tests.support.swarm.dht_scene import id_of, trust


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return listed_run_dir(tmp_path)


def admit(run_dir: Path, *numbers: int, name: str = "lab") -> None:
    """Put peers into the register, as the running worker does."""

    def token() -> Token:
        one = own(run_dir)
        return Token.new(one, run="summer", listed=[OTHER], name=name, expires_s=2_000_000_000, rounds=0)

    store(run_dir, *(admission(run_dir, token(), id_of(number)) for number in numbers))


class Command:
    """Runs a command; its exit code and what it prints."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, *arguments: object) -> tuple[int, str]:
        code, out, err = run_command(self._monkeypatch, self._capsys, *arguments)
        return code, out + err


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(monkeypatch, capsys)


def test_it_prints_a_token_and_the_line_to_type(run_dir: Path, command: Command) -> None:
    code, text = command("invite", run_dir, "--name", "lab-2", "--rounds", 5, "--expires", "2h")
    assert code == 0
    line = text.splitlines()[-1]
    assert line.startswith(f"outerloop join {ADDRESS_OF_RUN} --invite oli1_")
    one = Token.from_text(line.split()[-1])
    assert text.count("oli1_") == 1
    assert one.invite.issuer == own(run_dir).peer_id and one.invite.run == "summer"
    assert one.invite.name == "lab-2" and one.invite.rounds == 5
    assert one.invite.listed == digest_of_list([OTHER, own(run_dir).peer_id])
    assert 2 * 3600 - 60 < one.invite.expires_s - time.time() <= 2 * 3600


@pytest.mark.parametrize(
    ("addresses", "hint", "line"),
    [
        (["/ip4/127.0.0.1/tcp/4/p2p/X"], "from this machine only", "/ip4/127.0.0.1/tcp/4/p2p/X --host 127.0.0.1"),
        (
            ["/ip4/127.0.0.1/tcp/4/p2p/X", "/ip4/10.0.0.5/tcp/4/p2p/X"],
            "forward TCP port 4",
            "/ip4/10.0.0.5/tcp/4/p2p/X",
        ),
        ([], "replace ADDRESS with the address that this machine prints when the run starts", "ADDRESS"),
    ],
)
def test_it_says_from_where_the_address_works(
    addresses: list[str], hint: str, line: str, run_dir: Path, command: Command
) -> None:
    access(run_dir).remove(ADDRESS)
    if addresses:
        asyncio.run(access(run_dir).write(ADDRESS, "\n".join(addresses).encode()))
    code, text = command("invite", run_dir)
    assert code == 0 and hint in text
    assert text.splitlines()[-1].startswith(f"outerloop join {line} --invite oli1_")


@pytest.mark.parametrize(
    ("options", "address"),
    [
        ({"host": "127.0.0.1", "port": 4242}, "/ip4/127.0.0.1/tcp/4242/p2p/{id} --host 127.0.0.1"),
        ({"host": "192.0.2.9", "port": 4242}, "/ip4/192.0.2.9/tcp/4242/p2p/{id}"),
        ({"host": "0.0.0.0", "port": 4242}, "/ip4/10.0.0.5/tcp/4242/p2p/{id}"),
        ({"port": 0, "announce": ["/ip4/198.51.100.7/tcp/4242"]}, "/ip4/198.51.100.7/tcp/4242/p2p/{id}"),
        ({"host": "0.0.0.0", "port": 0}, "ADDRESS"),
    ],
)
def test_before_the_first_start_the_address_is_that_of_the_options(
    options: dict[str, object], address: str, run_dir: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(invite, "local_ip", lambda towards: "10.0.0.5")
    access(run_dir).remove(ADDRESS)
    config = OmegaConf.load(run_dir / "config.yaml")
    config.exchange.update(options)
    OmegaConf.save(config, run_dir / "config.yaml")
    code, text = command("invite", run_dir)
    line = f"outerloop join {address.format(id=own(run_dir).peer_id)} --invite oli1_"
    assert code == 0 and text.splitlines()[-1].startswith(line)


@pytest.mark.parametrize(("text", "value"), [("30m", 1800), ("12h", 43_200), ("7d", 604_800), ("90d", MAX_EXPIRES_S)])
def test_durations(text: str, value: int) -> None:
    assert seconds(text) == value


@pytest.mark.parametrize("text", ["", "7", "0d", "-1d", "91d", "1w", "1.5h", "9999999m", "7d "])
def test_other_durations_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="pass --expires 30m, 12h or 7d"):
        seconds(text)


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["--name", "a b"], "must be 1 to 32 letters, digits"),
        (["--rounds", "-1"], "out of range"),
        (["--expires", "never"], "pass --expires"),
        (["--maybe"], "--maybe"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(
    arguments: list[str], answer: str, run_dir: Path, command: Command
) -> None:
    code, text = command("invite", run_dir, *arguments)
    assert code == 2 and answer in text and text.count("\n") == 1


@pytest.mark.parametrize("arguments", [["invite"], ["expel", INVITED]])
def test_only_a_listed_worker_may_do_it(arguments: list[str], run_dir: Path, command: Command) -> None:
    name, *rest = arguments
    assert command(name, run_dir / "none", *rest)[1].startswith(f"outerloop: {name}: no run found")
    write_config(run_dir, [])
    code, text = command(name, run_dir, *rest)
    assert code == 2 and text.count("\n") == 1 and "needs an allow-list, but the run in" in text
    assert f"init_from={run_dir} exchange.allow=[IDS] exchange.invites=true" in text
    write_config(run_dir, [OTHER])
    code, text = command(name, run_dir, *rest)
    assert code == 2 and "no worker of" in text and text.count("\n") == 1


@pytest.mark.parametrize("arguments", [["invite"], ["expel", OTHER]])
def test_a_copy_of_a_workers_folder_is_skipped(arguments: list[str], run_dir: Path, command: Command) -> None:
    shutil.copytree(run_dir / "workers" / "0", run_dir / "workers" / "0.bak")
    name, *rest = arguments
    code, text = command(name, run_dir, *rest)
    assert (code, "0.bak" in text) == (0, False), text


def test_a_run_that_cannot_be_described_says_so_at_once(run_dir: Path, command: Command) -> None:
    config = OmegaConf.load(run_dir / "config.yaml")
    config.recipe = "mine"
    OmegaConf.save(config, run_dir / "config.yaml")
    code, text = command("invite", run_dir)
    assert code == 2 and "its recipe is not one of outerloop's own" in text


def test_a_run_without_invites_says_so(run_dir: Path, command: Command) -> None:
    config = OmegaConf.load(run_dir / "config.yaml")
    config.exchange.invites = False
    OmegaConf.save(config, run_dir / "config.yaml")
    code, text = command("invite", run_dir)
    assert code == 2 and "restart it with exchange.invites=true on all machines" in text and text.count("\n") == 1


def test_used_and_unused_tokens_are_limited(run_dir: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invite, "MAX_PER_ISSUER", 3)
    admit(run_dir, 7)
    assert [command("invite", run_dir)[0] for _ in range(3)] == [0, 0, 2]
    later = time.time() + 8 * 86_400
    monkeypatch.setattr(invite.time, "time", lambda: later)
    assert command("invite", run_dir)[0] == 0, "the unused ones have expired"


def test_the_invited_peers_are_listed(run_dir: Path, command: Command) -> None:
    assert command("invite", run_dir, "--list") == (0, "no peer was invited\n")
    admit(run_dir, 7, 8)
    code, text = command("invite", run_dir, "--list")
    assert code == 0 and text.count("\n") == 2
    assert f"{INVITED} lab invited by {own(run_dir).peer_id}, joined 2023-11-1" in text
    command("expel", run_dir, INVITED)
    assert command("invite", run_dir, "--list")[1].count("removed from the run") == 1


def test_tokens_that_several_commands_issue_at_once_are_all_listed(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = ListedWorker(0, own(run_dir), access(run_dir))

    def slow_read(worker: ListedWorker) -> list[IssuedToken]:
        tokens = read_tokens(worker)
        time.sleep(0.05)
        return tokens

    monkeypatch.setattr(issued_tokens, "read_tokens", slow_read)
    tokens = [IssuedToken(bytes([number]) * 32, 2_000_000_000, "") for number in range(4)]
    with ThreadPoolExecutor() as commands:
        list(commands.map(lambda token: add_token(worker, token, now_s=0.0), tokens))
    assert {token.digest for token in read_tokens(worker)} == {token.digest for token in tokens}


def test_unused_tokens_are_listed_by_id_name_and_expiry(
    run_dir: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is used by a peer, one is unused, and one has expired a week later."""
    used = Token.from_text(command("invite", run_dir, "--name", "lab-1")[1].split()[-1])
    left = Token.from_text(command("invite", run_dir, "--name", "lab-2", "--expires", "30d")[1].split()[-1])
    command("invite", run_dir, "--expires", "12h")
    store(run_dir, admission(run_dir, used, INVITED))
    later = time.time() + 6 * 86_400
    monkeypatch.setattr(invite.time, "time", lambda: later)
    code, text = command("invite", run_dir, "--list")
    until = time.strftime("%Y-%m-%d %H:%M", time.localtime(left.invite.expires_s))
    unused = f"unused token {left.invite.digest.hex()[:8]} lab-2, can be used before {until}"
    assert code == 0 and text.splitlines()[1:] == [unused] and text.startswith(f"{INVITED} lab-1 invited by")
    assert left.to_text() not in text, "a list is no secret"


def test_tokens_without_names_of_earlier_versions_are_listed(run_dir: Path, command: Command) -> None:
    asyncio.run(access(run_dir).write(ISSUED, msgpack.packb({b"d" * 32: 2_000_000_000})))
    text = command("invite", run_dir, "--list")[1]
    assert text.startswith("no peer was invited\nunused token 64646464 -, can be used before 2033-05-1")
    assert command("invite", run_dir)[0] == 0
    assert command("invite", run_dir, "--list")[1].count("unused token") == 2


@pytest.mark.parametrize("given", [INVITED, "lab", f"003-{INVITED}"])
def test_an_invited_peer_is_expelled_listed_and_readmitted(given: str, run_dir: Path, command: Command) -> None:
    (identity_file(run_dir, 0).with_suffix(".rounds")).mkdir()
    admit(run_dir, 7)
    code, text = command("expel", run_dir, given)
    assert code == 0 and text.startswith(f"{INVITED} is removed on all machines: within 10 s")
    [removal] = statements_of_commands(run_dir)
    assert removal.is_signed(trust(1).signatures) and removal.peer == INVITED and not removal.lifted
    code, text = command("expelled", run_dir)
    assert code == 0 and text.startswith(f"{INVITED} removed by {own(run_dir).peer_id}") and text.count("\n") == 1
    assert command("expelled", run_dir, "--lift", given) == (0, "no peer is expelled\n")
    [lifted] = [one for one in statements_of_commands(run_dir) if one != removal]
    assert lifted.lifted and lifted.at_s > removal.at_s and lifted.is_signed(trust(1).signatures)


def test_a_name_of_two_peers_lifts_nothing(run_dir: Path, command: Command) -> None:
    (identity_file(run_dir, 0).with_suffix(".rounds")).mkdir()
    admit(run_dir, 7, 8)
    command("expel", run_dir, INVITED)
    code, text = command("expelled", run_dir, "--lift", "lab")
    assert code == 2 and "2 invited peers have the name lab" in text and text.count("\n") == 1
    assert len(statements_of_commands(run_dir)) == 1


def test_a_listed_peer_is_refused_by_this_machine_only(run_dir: Path, command: Command) -> None:
    code, text = command("expel", run_dir, OTHER)
    assert code == 0 and "by this machine only" in text and statements_of_commands(run_dir)[0].peer == OTHER


@pytest.mark.parametrize(
    ("given", "answer"), [("nobody", "no peer nobody was invited"), ("lab", "2 invited peers have the name lab")]
)
def test_a_peer_that_is_not_clear(given: str, answer: str, run_dir: Path, command: Command) -> None:
    admit(run_dir, 7, 8)
    code, text = command("expel", run_dir, given)
    assert code == 2 and answer in text and text.count("\n") == 1


def test_this_machine_does_not_expel_itself(run_dir: Path, command: Command) -> None:
    assert "is a worker of this machine" in command("expel", run_dir, own(run_dir).peer_id)[1]


def test_the_folder_of_invited_peers_may_precede_the_run() -> None:
    assert may_precede_run(Path(f"runs/a/workers/0/{FOLDER}/register"))
    assert not may_precede_run(Path("runs/a/workers/0/register"))
