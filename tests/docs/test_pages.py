"""The pages are true: their commands and snippets run, page by page and in order, on jobs of seconds."""

from __future__ import annotations

import ast
import contextlib
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from outerloop.commands import main
from outerloop.config import load
from outerloop.config.options import sweep_check
from outerloop.exchange.swarm_gather import SwarmGather
from outerloop.launcher.torchrun import rank as torchrun_rank
from tests.support.documents import BLOCKS, PAGES, ROOT, Block, blocks_of, name_of, options_of, prose_of
from tests.support.run_output import leave_figures_empty

SMALL = {
    "exchange": "inprocess",
    "workers": "2",
    "rounds": "1",
    "model": "nano",
    "eval.sequences": "8",
    "inner.batch": "2",
    "inner.seq_len": "32",
    "seed": "0",
    "schedule.sync_every": "6",
}
FIXED = {"ddp": "schedule", "demo": "schedule", "sparta": "schedule", "noloco": "exchange"}
"""Recipe -> the group that it needs as it is."""
FEW = {"peers=2": "peers=1", "sync_every=30": "sync_every=1", "max_steps=90": "max_steps=2"}
"""Text of a snippet that runs within this process -> what it is run with: one peer alone, few steps."""
REASONS = {
    "needs a second machine",
    "needs GPUs",
    "needs SLURM",
    "needs systemd",
    "needs a run with an allow-list",
    "needs Docker",
    "needs root",
    "needs the network",
    "needs torchtitan",
    "needs peft",
    "needs several processes",
    "needs an account",
    "installs packages",
    "is the test suite",
    "runs in the tutorial",
    "takes minutes",
    "a fragment of a loop",
    "runs until it is stopped",
}
COMMANDS = {"outerloop": 1, ".venv/bin/outerloop": 1, "scripts/train.sh": 0}
"""Word that starts a command of outerloop -> how many words before its arguments are not its subcommand's name."""
OTHERS = {"git", "pip", "python", "torchrun", "mkdocs", "sudo", "sbatch", "docker", "cd", "mkdir", "tensorboard"}
OTHERS |= {"scripts/test.sh", "python3", "source"}
ADDRESS = re.compile(r"/ip4/[^\s\],']+")
INCLUDED = re.compile(r"--8<--\n(\S+)\n--8<--\n")
"""The file whose text the site shows in place of a block."""
EXAMPLE_TESTS = "".join(file.read_text() for file in sorted((ROOT / "tests/examples").glob("*.py")))
RAN: set[tuple[str, ...]] = set()
"""Trainings that have run in this process, and leave nothing that a page reads: they are not repeated."""


def arguments_of(command: list[str]) -> list[str]:
    """The arguments of `outerloop`, subcommand first."""
    return ["train", *command[1:]] if command[0] == "scripts/train.sh" else command[1:]


def shrunk(arguments: list[str]) -> list[str]:
    """Return the same training on a job of seconds: other sizes, the same settings otherwise."""
    recipes = next((a.removeprefix("recipe=") for a in arguments if a.startswith("recipe=")), "").split(",")
    own_model = "model" if "model=module" in arguments else "-"
    fixed = (*(FIXED[recipe] for recipe in recipes if recipe in FIXED), own_model)
    sizes = {key: value for key, value in SMALL.items() if not key.startswith(fixed)}
    if any(argument.startswith("steps=") for argument in arguments):
        sizes["steps"] = "6" if "schedule.sync_every" in sizes else "100"
        del sizes["rounds"]
    if "seed=0,1" in arguments:
        sizes["seed"] = "0"
    kept = [argument for argument in arguments if argument.split("=")[0] not in sizes]
    return [*kept, *(f"{key}={value}" for key, value in sizes.items())]


class Session:
    """One reader of one page: a folder of its own, its commands and snippets in order."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.monkeypatch, self.capsys = folder, monkeypatch, capsys
        self.names: dict[str, Any] = {"__name__": "__main__"}
        self.peer: SwarmGather | None = None
        (folder / "README.md").write_text((ROOT / "README.md").read_text())
        leave_figures_empty(monkeypatch)
        monkeypatch.chdir(folder)
        monkeypatch.syspath_prepend(str(folder))

    def read(self, block: Block) -> None:
        if block.title:
            file = self.folder / block.title
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.text)
        elif block.language == "python":
            exec(compile(few(block.text), block.place, "exec"), self.names)
        elif block.language == "bash":
            for command in block.commands:
                self.run(command)

    def run(self, command: list[str]) -> None:
        if command[0] == "python":
            check_example(command[1])
        elif command[0] == "torchrun":
            check_torchrun(command)
        elif command[0] in COMMANDS:
            arguments = arguments_of(command)
            getattr(self, arguments[0].replace("-", "_"), self.outerloop)(arguments)
        else:
            assert command[0] in ("cd", "mkdir"), command

    def outerloop(self, arguments: list[str]) -> str:
        self.monkeypatch.setattr(sys, "argv", ["outerloop", *arguments])
        assert main.main() == 0, arguments
        return self.capsys.readouterr().out

    def train(self, arguments: list[str]) -> None:
        small = shrunk(arguments)
        if not any(word.startswith(("run_dir=", "hydra.sweep.dir=")) or word == "-m" for word in small):
            if tuple(small) in RAN:
                return
            RAN.add(tuple(small))
        if "-m" not in small:
            self.outerloop(small)
            return
        done = subprocess.run([sys.executable, "-m", "outerloop", *small], cwd=self.folder)  # hydra's own entry point
        assert done.returncode == 0

    def inspect(self, arguments: list[str]) -> None:
        """On what a small run keeps: its first round."""
        assert "checksum ok" in self.outerloop([re.sub(r"0{4}\d{4}-0", "00000000-0", word) for word in arguments])

    def plan(self, arguments: list[str]) -> None:
        assert "→ " in self.outerloop(arguments)

    def doctor(self, arguments: list[str]) -> None:
        """With any port."""
        assert "✓ daemon" in self.outerloop([self.here(word).replace("4242", "0") for word in arguments])

    def status(self, arguments: list[str]) -> None:
        """The peer that runs here is one of the run that the command names."""
        name = arguments[arguments.index("--run") + 1] if "--run" in arguments else "default"
        assert f"run {name}: 1 peer" in self.outerloop([*(self.here(word, run=name) for word in arguments), "--once"])

    def here(self, word: str, *, run: str = "default") -> str:
        """The word with the address of a peer that runs here in place of any other."""
        if not ADDRESS.search(word):
            return word
        self.peer = self.peer or SwarmGather(run=run, peers=1, identity_path=str(self.folder / "identity"))
        return ADDRESS.sub(self.peer.address[0], word)

    def close(self) -> None:
        if self.peer:
            self.peer.abort()


def few(text: str) -> str:
    for there, instead in FEW.items():
        text = text.replace(there, instead)
    return text


def check_example(name: str) -> None:
    """Check that there is an example of this name, which a test of its own runs."""
    assert (ROOT / name).is_file() and Path(name).name in EXAMPLE_TESTS, name


def check_torchrun(command: list[str]) -> None:
    """Check that the options of each process exist. The processes are started by other tests."""
    processes = int(command[command.index("--nproc-per-node") + 1])
    if "outerloop" in command:
        assert torchrun_rank.load_settings(command[command.index("outerloop") + 2 :], processes=processes)


@pytest.fixture
def session(tmp_path, monkeypatch, capsys) -> Iterator[Session]:
    with contextlib.closing(Session(tmp_path, monkeypatch, capsys)) as reader:
        yield reader


def runs(block: Block) -> bool:
    is_code = block.language in ("bash", "python") or block.title
    return bool(is_code and not block.reason and not INCLUDED.match(block.text))


def as_case(page: Path) -> Any:
    """The page of the sweep is slow: it starts many processes."""
    return pytest.param(page, marks=[pytest.mark.slow] if page.name == "sweep.md" else [])


@pytest.mark.long
@pytest.mark.parametrize("page", [as_case(page) for page in PAGES if any(map(runs, blocks_of(page)))], ids=name_of)
def test_the_commands_and_snippets_of_a_page_run_in_order(page, session):
    for block in filter(runs, blocks_of(page)):
        session.read(block)


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.reason and b.language == "bash"], ids=lambda b: b.place)
def test_commands_that_are_not_run_here_have_options_that_exist(block, tmp_path, monkeypatch):
    """`recipe=./mine.yaml` is a recipe file of the user's own, and srun only starts another program."""
    (tmp_path / "mine.yaml").write_text((ROOT / "configs/recipe/sparseloco.yaml").read_text())
    monkeypatch.chdir(tmp_path)
    for command in ([word for word in line if word != "srun"] for line in block.commands):
        if command[0] in COMMANDS and arguments_of(command)[0] == "train":
            options = [a for a in arguments_of(command)[1:] if not a.startswith("-")]
            assert all(map(load.load, sweep_check.combinations(options)))
        elif command[0] in COMMANDS:
            assert arguments_of(command)[0] in main.MODULES
        elif command[0] == "torchrun":
            check_torchrun(command)
        else:
            assert command[0] in OTHERS or (ROOT / command[0]).stat().st_mode & 0o111, command


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_options_in_the_text_exist(page):
    """With their choices, if they are groups, and also those that are named without a value."""
    groups, named = load.groups(), set(re.findall(r"`(\w+\.\w+)`", prose_of(page)))
    options = [word.partition("=")[::2] for words in options_of(page) for word in words]
    options += [(name, "") for name in named if name.split(".")[0] in groups]
    for key, value in options:
        if key in groups:
            chosen = {choice for choice in re.split(r"[|,]", value.strip("[]")) if not choice.endswith(".yaml")}
            assert chosen <= set(groups[key]), (key, value)
        else:
            group, _, last = key.rpartition(".")
            assert last in keys_of(group.partition(".")[0] or "*"), key


@cache
def keys_of(group: str) -> set[str]:
    """Return every key in the files of a group, at any level, and in train.yaml."""
    files = [*load.config_dir().glob(f"{group}/**/*.yaml"), load.config_dir() / "train.yaml"]
    return {key for file in files for key in re.findall(r"^ *(\w+):", file.read_text(), flags=re.MULTILINE)}


def test_a_block_that_is_not_run_says_why_and_most_are_run():
    reasons = Counter(block.reason for block in BLOCKS if block.reason)
    assert set(reasons) <= REASONS, set(reasons) - REASONS
    assert reasons.total() <= sum(map(runs, BLOCKS)), reasons


def test_included_files_are_examples_with_a_test():
    included = [name for block in BLOCKS for name in INCLUDED.findall(block.text)]
    assert included
    for name in included:
        check_example(name)


def test_every_marker_stands_before_a_block():
    for page in PAGES:
        marked = [block for block in blocks_of(page) if block.reason]
        assert page.read_text().count("<!-- not run") == len(marked), name_of(page)


def test_the_tutorial_resumes_with_the_arguments_of_its_first_call():
    """Without run_dir and initial_peers, the peers do not find each other."""
    [resumes] = [
        block.text for block in BLOCKS if block.page == "docs/tutorials/own-loop.md" and "state=" in block.text
    ]
    first = (ROOT / "examples/own_loop.py").read_text()
    assert arguments_of_call(resumes) - {"state=saved['outer']"} == arguments_of_call(first)


def arguments_of_call(text: str) -> set[str]:
    """The arguments of the call of from_recipe."""
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    [call] = [call for call in calls if ast.unparse(call.func) == "outerloop.from_recipe"]
    return {ast.unparse(argument) for argument in [*call.args, *call.keywords]}


def test_names_in_snippets_that_are_not_run_exist():
    import operator

    import outerloop
    import outerloop.core.state.distributed_checkpoint

    text = "".join(block.text for block in BLOCKS if block.language == "python" and block.reason)
    named = set(re.findall(r"\b(?:outerloop\.|(?=resharding\.))(\w+(?:\.\w+)*)", text))
    assert named and [name for name in named if not callable(operator.attrgetter(name)(outerloop))] == []
