"""Code in the current folder is imported only where a setting names it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from outerloop.config import load
from outerloop.config.user_code import enable_user_code, names_in
from outerloop.launcher import process_pool
from outerloop.types import UserError

SHADOWS = ("outerloop", "torch", "yaml", "rich", "numpy", "safetensors", "hydra", "mine")
NOBODY = "/ip4/127.0.0.1/tcp/9/p2p/12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp"
COMMANDS = [
    ["inspect", "nothing.outl"],
    ["plan", "--params", "1e6", "--peers", "0"],
    ["status", "x"],
    ["report", "none"],
    ["train", "model=nano", "workers=1", "exchange.peers=2", f"exchange.initial_peers=[{NOBODY}]"],
]
LONGER = [pytest.param(words, marks=pytest.mark.slow) for words in COMMANDS[1:]]


@pytest.fixture
def downloads(tmp_path, monkeypatch):
    """The current folder: it holds modules of known names, each of which leaves a file when it is imported."""
    for name in SHADOWS:
        said = "" if name == "mine" else "raise ImportError('a file of the folder was imported')"
        (tmp_path / f"{name}.py").write_text(f"open({name + '.ran'!r}, 'w')\n{said}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one not in ("", str(tmp_path))])
    return tmp_path


@pytest.mark.parametrize("arguments", [COMMANDS[0], *LONGER], ids=lambda words: words[0])
def test_a_command_imports_nothing_that_lies_in_the_current_folder(arguments, downloads):
    script = Path(sys.executable).with_name("outerloop")
    if not script.exists():
        script = Path(shutil.which("outerloop") or pytest.skip("outerloop is not installed"))
    done = subprocess.run([sys.executable, script, *arguments], capture_output=True, text=True, env=os.environ)
    assert done.returncode == 2 and done.stderr.startswith("outerloop: "), done.stderr
    assert list(downloads.glob("*.ran")) == []


def test_a_worker_imports_nothing_that_lies_in_the_current_folder(downloads):
    """It ends for want of a configuration, once everything that it begins with has been imported."""
    process = process_pool.ProcessWorkerPool(load.load(["model=nano", "workers=1"]), downloads / "run", None).spawn(0)
    process.communicate()
    assert "FileNotFoundError" in (downloads / "run/workers/0/log.txt").read_text()
    assert list(downloads.glob("*.ran")) == []


@pytest.mark.parametrize("given", ["", "/elsewhere"])
def test_a_worker_imports_the_package_that_started_it(given, monkeypatch):
    """`python -m outerloop` finds it in the current folder, where its workers do not look."""
    home = str(Path(process_pool.__file__).parents[2])
    monkeypatch.setenv("PYTHONPATH", given)
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one != home])
    assert process_pool.worker_pythonpath() == os.pathsep.join(filter(None, [home, given]))
    monkeypatch.setattr(sys, "path", [*sys.path, home])
    assert process_pool.worker_pythonpath() == given


NAMED = [
    ["model=module", "model._target_=mine.Net"],
    ["model=module", "model._target_=hydra.utils.get_method", "+model.path=mine.net"],
    ["model=module", "model._target_=${exchange.run}.Net", "exchange.run=mine"],
]
NESTED = [
    {"a": [{"_target_": "mine.Net"}], "b": {"_target_": "torch.nn.GELU"}},
    {"a": {"_target_": "functools.partial", "_args_": [{"_target_": "hydra.utils.get_class", "_args_": ["mine.Net"]}]}},
    {"a": {"_target_": "${name}"}, "name": "mine.Net"},
]


@pytest.mark.parametrize("options", NAMED, ids=lambda options: options[1])
def test_a_module_that_a_setting_names_is_found_in_the_current_folder(options, downloads):
    before = list(sys.path)
    load.load(["model=nano", "exchange.run=mine.run"])
    assert sys.path == before
    (downloads / "mine.py").write_text("import torch\n\nclass Net(torch.nn.Module):\n    pass\n\nnet = Net\n")
    load.load(options)
    assert sys.path == ["", *before]


@pytest.mark.parametrize("settings", NESTED, ids=str)
def test_a_name_anywhere_in_the_settings_is_found(settings, downloads):
    before = list(sys.path)
    enable_user_code(names_in(OmegaConf.create(settings)))
    assert sys.path == ["", *before]


def test_an_installed_module_that_is_loaded_already_does_not_open_the_folder(downloads):
    before = list(sys.path)
    load.load(["model=module", "model._target_=torch.nn.Embedding", "+model.num_embeddings=256"])
    assert sys.path == before


def test_a_package_of_recipes_is_found_in_the_current_folder(downloads):
    (downloads / "conf_here").mkdir()
    (downloads / "conf_here/__init__.py").touch()
    assert [folder.name for folder in load.search_path(["hydra.searchpath=[pkg://conf_here]"])] == ["conf_here"]
    sys.modules.pop("conf_here")
    with pytest.raises(UserError, match="pkg://nowhere is not a folder"):
        load.search_path(["hydra.searchpath=[pkg://nowhere]"])
