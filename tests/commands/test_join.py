"""`outerloop join`: what it refuses, what it shows and asks, and with which options it then trains."""

from __future__ import annotations

import io
import json
import re
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import outerloop
from outerloop.commands import join, main
from outerloop.commands.doctor.finding import Finding
from outerloop.commands.join import checks, settings
from outerloop.commands.join.offer import Offer, checked_manifest, refuse_without_peers
from outerloop.commands.join.settings import chosen_overrides, load_settings
from outerloop.commands.join.summary import summary
from outerloop.config.manifest.content import RunManifest, parse
from outerloop.config.manifest.describe_run import describe, packaged
from outerloop.types import UserError
from tests.support.run_command import error_of

ID = "12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp"
OTHER_ID = "12D3KooWQkrbANV9FKkcs48PRwK38ogmdpNNYPjyUK5n1Qy4VK5w"
ADDRESS = f"/ip4/192.0.2.1/tcp/4/p2p/{ID}"
CONFIG = packaged(recipe="sparseloco", exchange="swarm_gather", model="nano")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="module")
def manifest() -> RunManifest:
    config = CONFIG.copy()
    config.exchange.run = "summer"
    return parse(describe(config).encode())


def overrides(manifest: RunManifest, *typed: str) -> list[str]:
    return chosen_overrides(manifest, typed, addresses=[ADDRESS], peers={ID}, host="0.0.0.0", port=0)


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        ([], "run outerloop join ADDRESS"),
        (["here", "--yes"], "not a full address like /ip4/"),
        ([ADDRESS], "standard input is not a terminal: pass --yes"),
        ([ADDRESS, "rounds=5", "--yes"], "rounds is shared by all machines of the run: leave it out"),
        ([ADDRESS, "steps=5", "--yes"], "steps is shared"),
        ([ADDRESS, "model=tiny", "--yes"], "model is shared"),
        ([ADDRESS, "exchange.grace_s=1", "--yes"], "exchange.grace_s is shared"),
        ([ADDRESS, "exchange.initial_peers=[]", "--yes"], "exchange.initial_peers cannot be set"),
        ([ADDRESS, "hydra.searchpath=[x]", "--yes"], "hydra.searchpath cannot be set"),
        ([ADDRESS, "island=sharded", "--yes"], "island cannot be set"),
        ([ADDRESS, "corpus.share=mine", "--yes"], "corpus.share cannot be set"),
        ([ADDRESS, "run_dir", "--yes"], "is not an option"),
        ([ADDRESS, "--yes", "--host", "home"], "--host home is not an IP address"),
        ([ADDRESS, "--yes", "--port", "65536"], "--port 65536 is not a port"),
        ([ADDRESS, "--maybe"], "--maybe"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(
    arguments: list[str], answer: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert answer in error_of(monkeypatch, capsys, "join", *arguments)


def test_the_machine_trains_with_the_options_of_the_run_and_its_own(manifest: RunManifest) -> None:
    assert overrides(manifest) == [
        "recipe='sparseloco'",
        "exchange='swarm_gather'",
        "model='nano'",
        "exchange.peers=1",
        "exchange.run='summer'",
        "workers=1",
        "run_dir='runs/join-summer'",
        f"exchange.initial_peers=['{ADDRESS}']",
        "exchange.host='0.0.0.0'",
        "exchange.port=0",
        "inner.micro_batch='auto'",
    ]
    typed = overrides(manifest, "run_dir=/data/x", "exchange.port=4711", "threads=2")
    assert "run_dir='runs/join-summer'" not in typed and "exchange.port=0" not in typed
    assert typed[-3:] == ["run_dir=/data/x", "exchange.port=4711", "threads=2"]


def test_a_run_directory_of_another_run_with_the_same_name_is_not_used(
    manifest: RunManifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("runs/join-summer").mkdir(parents=True)
    config = {"exchange": {"run": "summer", "initial_peers": [f"/ip4/192.0.2.2/tcp/4/p2p/{OTHER_ID}"]}}
    Path("runs/join-summer/config.yaml").write_text(json.dumps(config))
    assert "run_dir='runs/join-summer-2'" in overrides(manifest)
    offered = Offer(manifest, ID, [])
    shown = CONFIG.copy()
    shown.exchange.initial_peers, shown.run_dir = [ADDRESS], "runs/join-summer-2"
    assert "runs/join-summer is of another run with the name summer" in summary(offered, shown, 1, data="")[-1]
    config["exchange"]["initial_peers"] = [ADDRESS]
    Path("runs/join-summer/config.yaml").write_text(json.dumps(config))
    assert "run_dir='runs/join-summer'" in overrides(manifest)


def test_a_typed_micro_batch_is_not_measured(manifest: RunManifest) -> None:
    micro_batches = [text for text in overrides(manifest, "inner.micro_batch=null") if "micro_batch" in text]
    assert micro_batches == ["inner.micro_batch=null"]


def test_a_machine_computes_in_bfloat16_only_if_it_can_or_is_told_to(manifest: RunManifest) -> None:
    def precision(of_run: dict[str, str], *typed: str) -> str:
        offered = replace(manifest, options={**manifest.options, **of_run})
        return str(load_settings(offered, overrides(offered, *typed)).inner.precision)

    assert precision({}) == "auto"
    assert precision({"inner.precision": "bfloat16"}) == "auto"
    assert precision({"inner.precision": "bfloat16"}, "inner.precision=bfloat16") == "bfloat16"
    assert precision({"inner.precision": "float32"}) == "float32"
    assert precision({"inner.precision": "float32"}, "inner.precision=auto") == "auto"


def test_other_data_replaces_that_of_the_run_and_a_path_must_be_set(manifest: RunManifest) -> None:
    options = {**manifest.options, "data": "text"}
    of_text = replace(manifest, options=options, needs=("data.files",))
    with pytest.raises(UserError, match=r"add data\.files=\.\.\. after the address"):
        overrides(of_text)
    assert "data='text'" in overrides(of_text, "data.files=[/x/*.txt]")
    assert not any(text.startswith("data='text'") for text in overrides(of_text, "data=stdlib"))


def test_data_that_the_peers_share_cannot_be_replaced(manifest: RunManifest) -> None:
    shared = replace(manifest, options={**manifest.options, "data": "shared", "data.sha256": "ab" * 32})
    assert f"data.sha256='{'ab' * 32}'" in overrides(shared, "corpus.max_gb=80", "data.tokenizer=/x")
    for key, value in {"data": "stdlib", "data.sha256": "cd" * 32, "data.files": "[/x]"}.items():
        with pytest.raises(UserError, match=f"train on the corpus that its peers share: leave {key}= out"):
            overrides(shared, f"{key}={value}")


def test_a_hostile_manifest_is_refused(manifest: RunManifest) -> None:
    with pytest.raises(UserError, match=r"sets 'model\._target_'"):
        overrides(replace(manifest, options={**manifest.options, "model._target_": "os.system"}))


def test_a_dataset_that_would_be_a_folder_of_this_machine_is_refused(
    manifest: RunManifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    of_hub = replace(manifest, options={**manifest.options, "data": "hf", "data.path": "Documents/private"})
    assert "data.path='Documents/private'" in overrides(of_hub)
    (tmp_path / "Documents/private").mkdir(parents=True)
    with pytest.raises(UserError, match="is also a file or folder here"):
        overrides(of_hub)


@pytest.mark.parametrize("path", ["text", "json", "imdb"])
def test_a_dataset_that_may_be_a_file_format_needs_the_files_that_are_to_be_read(
    path: str, manifest: RunManifest
) -> None:
    """Otherwise `datasets` would read all text files below the current folder."""
    of_files = replace(manifest, options={**manifest.options, "data": "hf", "data.path": path})
    with pytest.raises(UserError, match=rf"'{path}' has no account in its name.*add data\.data_files="):
        overrides(of_files)
    assert "data.data_files=[/a.txt]" in overrides(of_files, "data.data_files=[/a.txt]")
    split = replace(of_files, options={**of_files.options, "data.val_split": "train"})
    with pytest.raises(UserError, match=r"add data\.val_files="):
        overrides(split, "data.data_files=[/a.txt]")


@pytest.mark.parametrize("run", ["../../home", "/tmp/x", "${oc.env:HOME}", "..", "x'y"])
def test_the_name_of_a_run_is_no_path_and_no_reference(run: str, manifest: RunManifest) -> None:
    with pytest.raises(UserError, match=r"sets 'exchange\.run'"):
        overrides(replace(manifest, run=run))


@pytest.mark.parametrize(
    ("version", "advice"),
    [("9.9.9", "install outerloop 9.9.9"), (outerloop.__version__, "another commit")],
)
def test_another_fingerprint_names_the_versions(
    version: str, advice: str, manifest: RunManifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings.load, "load", lambda overrides: CONFIG)
    assert load_settings(manifest, []) is CONFIG
    with pytest.raises(UserError, match=advice):
        load_settings(replace(manifest, version=version, fingerprint="ab" * 32), [])


def test_an_option_that_this_version_does_not_have_names_the_versions(manifest: RunManifest) -> None:
    newer = replace(manifest, version="9.9.9", options={**manifest.options, "inner.new": 3})
    with pytest.raises(UserError, match=r"inner\.new: no such option.*install outerloop 9\.9\.9"):
        load_settings(newer, overrides(newer))


@pytest.mark.parametrize(
    ("content", "answer"),
    [
        (b"", "use their own training program"),
        (b"{}", "install the version of outerloop that the run uses"),
        (b'{"format": 2}', "format 2"),
        (
            json.dumps({**json.loads(describe(CONFIG)), "reason": "its recipe is a file"}).encode(),
            "because its recipe is a file",
        ),
    ],
)
def test_a_run_that_cannot_be_joined_says_why(content: bytes, answer: str) -> None:
    with pytest.raises(UserError, match=answer):
        checked_manifest(content)


def test_the_run_is_shown_in_about_ten_lines(manifest: RunManifest) -> None:
    config = CONFIG.copy()
    config.exchange.initial_peers, config.run_dir = [ADDRESS], "runs/join-summer"
    hostile = replace(manifest, options={**manifest.options, "inner.lr_schedule": "\x1b[2J"})
    lines = summary(Offer(hostile, ID, []), config, 530_000, data="data=stdlib")
    assert 8 <= len(lines) <= 12
    text = "\n".join(lines)
    assert "summer: 0 peers" in lines[0] and "530,000 parameters" in text
    assert re.search(r"^payload +about [\d.]+ KB, 0\.\d+ bits per parameter and round$", text, re.MULTILINE)
    assert "1 worker on cpu, inner steps in float32, results in runs/join-summer" in text
    assert "…vnc6iDEp" in text and "\x1b" not in text and "results in runs/join-summer" in text


def test_every_option_that_no_other_line_shows_is_shown(
    manifest: RunManifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = CONFIG.copy()
    config.exchange.initial_peers, config.run_dir = [ADDRESS], "mine"
    options = {**manifest.options, "clip": "none", "aggregate": "mean", "inner.lr": 1}
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/config.yaml").touch()
    text = "\n".join(summary(Offer(replace(manifest, options=options), ID, []), config, 530_000, data="my text"))
    assert "clip=none aggregate=mean inner.lr=1\n" in text and "my text" in text
    assert "continues the run in mine" in text


class Flow:
    """`outerloop join` without a network: what it would train with."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, manifest: RunManifest, finding: Finding, *, author: str = ID
    ) -> None:
        self.trained: list[list[str]] = []
        config = CONFIG.copy()
        config.run_dir = "runs/join-summer"
        self.config = config
        monkeypatch.setattr(join, "ask_peer", lambda address, **_: Offer(manifest, author, []))
        monkeypatch.setattr(join, "load_settings", lambda manifest, overrides: config)
        monkeypatch.setattr(join, "summary", lambda *_, data: ["the run"])
        monkeypatch.setattr(join, "of_machine", lambda: iter([]))
        monkeypatch.setattr(join, "of_network", lambda config: iter([finding]))
        monkeypatch.setattr(join, "train_with", self.train)
        monkeypatch.setattr(join.signal, "signal", lambda *_: None)

    def train(self, settings: Any, overrides: list[str]) -> int:
        self.trained.append(overrides)
        return 0


PASSED = Finding("port", True, "open")


@pytest.mark.parametrize(
    ("answer", "trains"), [("y\n", True), ("yes\n", True), ("\n", False), ("n\n", False), ("", False)]
)
def test_it_asks_before_it_joins(
    answer: str, trains: bool, manifest: RunManifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = Flow(monkeypatch, manifest, PASSED)
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    assert join.main([ADDRESS, "threads=2"]) == 0
    assert bool(flow.trained) is trains
    assert not trains or flow.trained[0][-1] == "threads=2"


@pytest.mark.parametrize("author", [ID, OTHER_ID])
def test_a_machine_with_a_checkpoint_may_start_the_run_alone_and_another_one_may_not(
    author: str, manifest: RunManifest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No peer is in the roster. If `author` is not the peer that was asked, that peer is a relay."""
    flow = Flow(monkeypatch, manifest, PASSED, author=author)
    flow.config.run_dir = str(tmp_path)
    with pytest.raises(UserError, match="finds no active peer") if author == OTHER_ID else nullcontext():
        join.main([ADDRESS, "--yes"])
        assert "exchange.newcomer=true" in flow.trained.pop() and flow.config.exchange.newcomer
    (tmp_path / "checkpoints/step-00000015").mkdir(parents=True)
    (tmp_path / "checkpoints/step-00000015/sealed").touch()
    flow.config.exchange.newcomer = False
    assert join.main([ADDRESS, "--yes"]) == 0
    assert "exchange.newcomer=true" not in flow.trained.pop() and not flow.config.exchange.newcomer


def test_yes_skips_the_question_and_a_failed_check_stops_with_one_line(
    manifest: RunManifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    flow = Flow(monkeypatch, manifest, PASSED)
    assert join.main([ADDRESS, "--yes"]) == 0 and len(flow.trained) == 1
    flow = Flow(monkeypatch, manifest, Finding("port", False, "cannot be dialed", "open TCP port 4711"))
    with pytest.raises(UserError, match=r"^port: cannot be dialed: open TCP port 4711$"):
        join.main([ADDRESS, "--yes"])
    assert not flow.trained


def test_too_little_memory_is_a_failed_check(monkeypatch: pytest.MonkeyPatch) -> None:
    finding = checks.memory_of_model(CONFIG, 10**13)
    assert finding.passed is not True and "TB" in finding.result


def test_too_little_memory_is_refused_before_a_peer_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join.signal, "signal", lambda *_: None)
    monkeypatch.setattr(join, "ask_peer", lambda *_, **__: pytest.fail("a peer was asked"))
    monkeypatch.setattr(checks, "available_bytes", lambda: 5 * 10**8)
    with pytest.raises(UserError, match=r"^memory: 500\.0 MB free, but 1\.0 GB are needed: close other programs"):
        join.main([ADDRESS, "--yes"])


@pytest.mark.parametrize(
    ("author", "seen", "refused"),
    [(OTHER_ID, [], True), (ID, [], False), (OTHER_ID, [(None, 1.0)], False)],
)
def test_a_run_without_peers_is_not_started_again_through_a_relay(
    author: str, seen: Any, refused: bool, manifest: RunManifest
) -> None:
    with pytest.raises(UserError, match="finds no active peer of run summer") if refused else nullcontext():
        refuse_without_peers(Offer(manifest, author, seen), ADDRESS)


def test_the_help_teaches(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["outerloop", "join", "--help"])
    with pytest.raises(SystemExit):
        main.main()
    text = " ".join(capsys.readouterr().out.split())
    assert "Ctrl-C leaves" in text and "outerloop join /ip4/" in text
