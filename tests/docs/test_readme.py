"""The README tells the truth: its commands run, its tree is the tree."""

import operator
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

import outerloop.core.distributed_checkpoint
from outerloop.commands import main
from outerloop.config import load
from outerloop.exchange.swarm_gather import SwarmGather
from outerloop.launcher import torchrun_rank

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
COMMANDS = [
    shlex.split(line, comments=True)
    for block in re.findall(r"```bash\n(.*?)```", README, flags=re.DOTALL)
    for line in block.splitlines()
]
TRAIN = [command[1:] for command in COMMANDS if command[0] == "scripts/train.sh"]
INSPECT = [command[1:] for command in COMMANDS if command[1:2] == ["inspect"]]
PLAN = [command[1:] for command in COMMANDS if command[1:2] == ["plan"]]
VISIT = [command[1:] for command in COMMANDS if command[1:2] in (["doctor"], ["status"])]
PROSE = re.sub(r"<[^>\n]*>", "here", re.sub(r"```.*?```", "", README, flags=re.DOTALL).replace("\\\n", " "))
LINES = [shlex.split(line, comments=True) for line in re.findall(r"^ {4}(\S.*)", PROSE, flags=re.MULTILINE)]
OPTION = r'[a-z][a-z_.]*=(?!True)[^\s`"]+'
INLINE = [words.split() for words in re.findall(rf'`"?({OPTION}(?: {OPTION})*)"?`', PROSE)]
SMALL = {
    "exchange": "inprocess",
    "workers": "2",
    "rounds": "1",
    "model": "nano",
    "eval.sequences": "8",
    "inner.batch": "2",
    "schedule.sync_every": "6",
}


def small(arguments, run_dir):
    """The same command on a job of seconds: other sizes, the same settings otherwise."""
    recipe = next((a.removeprefix("recipe=") for a in arguments if a.startswith("recipe=")), "")
    fixed = {"ddp": "schedule", "demo": "schedule", "sparta": "schedule", "noloco": "exchange"}.get(recipe, "-")
    shrunk = {key: value for key, value in SMALL.items() if not key.startswith(fixed)}
    kept = [argument for argument in arguments if argument.split("=")[0] not in (*shrunk, "run_dir")]
    where = f"hydra.sweep.dir={run_dir}" if "-m" in kept else f"run_dir={run_dir}"
    return [*kept, *(f"{key}={value}" for key, value in shrunk.items()), where]


@pytest.mark.parametrize("arguments", TRAIN, ids=" ".join)
def test_train_commands_run(arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    if "-m" in arguments:  # hydra's own entry point wants a process of its own
        command = [sys.executable, "-m", "outerloop", "train", *small(arguments, tmp_path / "run")]
        assert subprocess.run(command, cwd=tmp_path).returncode == 0
        assert len(list((tmp_path / "run").glob("*/summary.json"))) == 4
        return
    monkeypatch.setattr(sys, "argv", ["outerloop", "train", *small(arguments, tmp_path / "run")])
    assert main.main() == 0
    assert (tmp_path / "run/summary.json").exists()


@pytest.mark.parametrize("words", LINES + INLINE, ids=" ".join)
def test_commands_and_options_that_are_not_run_here_load(words):
    if words[0] == "torchrun":
        assert words[1] == "--nproc-per-node" and words[3:6] == ["-m", "outerloop", "train"]
        assert torchrun_rank.load_settings(words[6:], processes=int(words[2]))
    else:
        assert load.load(words[words[0] == "scripts/train.sh" :])


def test_options_named_without_a_value_exist():
    named = [name for name in re.findall(r"`(\w+\.\w+)`", PROSE) if name.split(".")[0] in load.groups()]
    settings = load.load([])
    assert named and [name for name in named if OmegaConf.select(settings, name, default="missing") == "missing"] == []


def test_names_used_in_examples_that_are_not_run_exist():
    blocks = set(re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)) - set(TRAINERS)
    named = set(re.findall(r"\b(?:outerloop\.|(?=resharding\.))(\w+(?:\.\w+)*)", "".join(blocks)))
    assert {
        "memory.estimate",
        "loco.State",
        "loco.ddp_hook",
        "loco.fsdp_hook",
        "resharding.save",
        "resharding.load",
    } <= named
    assert [name for name in named if not callable(operator.attrgetter(name)(outerloop))] == []


def test_inspect_commands_run(tmp_path, monkeypatch, capsys):
    """On what a small run keeps: the last round of its first worker is the one that the README names."""
    [first] = [arguments for arguments in TRAIN if "run_dir=runs/first" in arguments]
    monkeypatch.setattr(sys, "argv", ["outerloop", "train", *small(first, tmp_path / "runs/first")])
    assert main.main() == 0
    monkeypatch.chdir(tmp_path)
    for arguments in INSPECT:
        there = [argument.replace("00000059-0", "00000000-0") for argument in arguments]
        monkeypatch.setattr(sys, "argv", ["outerloop", *there])
        assert main.main() == 0
        assert "checksum ok" in capsys.readouterr().out
    assert INSPECT


def test_doctor_and_status_commands_run(tmp_path, monkeypatch, capsys):
    """With any port, and at the address of a peer that runs here."""
    peer = SwarmGather(run="default", peers=1, identity_path=str(tmp_path / "identity"))
    try:
        for arguments in VISIT:
            here = [peer.address[0] if "/ip4/" in argument else argument.replace("4242", "0") for argument in arguments]
            monkeypatch.setattr(sys, "argv", ["outerloop", *here])
            assert main.main() == 0
        out = capsys.readouterr().out
        assert "✓ daemon" in out and "run default: 1 peer" in out
    finally:
        peer.abort()
    assert len(VISIT) == 2


@pytest.mark.parametrize("arguments", PLAN, ids=" ".join)
def test_plan_commands_run(arguments, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["outerloop", *arguments])
    assert main.main() == 0
    assert "→ sparseloco" in capsys.readouterr().out


TRAINERS = [block for block in re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL) if "Callback(" in block]


@pytest.mark.parametrize("name", ["HFCallback", "LightningCallback"])
def test_the_examples_of_other_trainers_run(name, tmp_path, monkeypatch):
    """As they stand, but for one peer alone and few steps."""
    (block,) = (block for block in TRAINERS if name in block)
    for there, small in (("peers=2", "peers=1"), ("sync_every=30", "sync_every=1"), ("max_steps=90", "max_steps=2")):
        assert there in block
        block = block.replace(there, small)
    (tmp_path / "README.md").write_text(README)
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "README.md", "exec"), there := {"__name__": "__main__"})
    assert there["trainer"].state.global_step == 2 if name == "HFCallback" else there["trainer"].global_step == 2


def test_every_run_that_is_named_is_made_by_a_command():
    """What is in it, too, as far as other tests run the commands that use it; `runs/<time>` is a default's name."""
    made = {word.removeprefix("run_dir=") for words in TRAIN + LINES for word in words if word.startswith("run_dir=")}
    named = set(re.findall(r"\bruns/[a-z]\w*", README))
    assert named and named == made


def test_every_recipe_has_its_command():
    named = {word.removeprefix("recipe=") for command in TRAIN for word in command if word.startswith("recipe=")}
    assert set(load.groups()["recipe"]) <= {name for names in named for name in names.split(",")}


def test_the_other_commands_exist():
    for command in COMMANDS:
        assert (ROOT / command[0]).stat().st_mode & 0o111, command


def test_the_tree_names_every_package():
    tree = subprocess.run([sys.executable, ROOT / "scripts/readme_tree.py"], capture_output=True, text=True, check=True)
    assert tree.stdout.strip() in README, "paste the output of `python scripts/readme_tree.py` into the README"


def test_the_numbers_are_those_of_the_published_run():
    import json

    summary = json.loads((ROOT / "scripts/results/default-job/summary.json").read_text())
    assert f"{summary['val_loss_initial']:.3f} -> {summary['val_loss']:.3f} nats" in README
    assert f"{summary['bits_per_param_per_round']:.3f} bits per parameter and round" in README
