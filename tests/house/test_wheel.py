"""The wheel and the source distribution: what is in them, and that the wheel works without the checkout.

Its dependencies are those installed here; scripts/test_wheel.sh installs them into an empty environment instead.
"""

import os
import subprocess
import sys
import sysconfig
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytest.importorskip("hatchling")


def build(source: Path, folder: Path, kind: str) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "--target", kind, "--directory", str(folder)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    [file] = folder.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return file


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built from the source distribution, as pip does where there is no wheel."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(["tar", "-xzf", build(ROOT, folder, "sdist")], cwd=folder, check=True)
    [source] = [path for path in folder.iterdir() if path.is_dir()]
    assert {"README.md", "LICENSE", "constraints.txt", "tests", "configs"} <= {path.name for path in source.iterdir()}
    return build(source, folder, "wheel")


def test_the_wheel_holds_package_and_configuration_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        [metadata] = [name for name in names if name.endswith(".dist-info/METADATA")]
        told = Parser().parsestr(archive.read(metadata).decode())
    here = [path.relative_to(ROOT).as_posix() for path in (ROOT / "outerloop").rglob("*.py")]
    configs = [f"outerloop/{path.relative_to(ROOT)}" for path in (ROOT / "configs").rglob("*.yaml")]
    page = [path for path in (ROOT / "outerloop/watch/static").rglob("*") if path.is_file()]
    assets = [path.relative_to(ROOT).as_posix() for path in page]
    assert {*here, *configs, *assets, "outerloop/py.typed"} <= set(names)
    assert "outerloop/watch/static/uplot/LICENSE" in names and "outerloop/watch/static/index.html" in names
    assert {name.split("/")[0] for name in names} == {"outerloop", metadata.split("/")[0]}
    assert told["Name"] == "outerloop-train" and told["License-Expression"] == "Apache-2.0"
    assert {"train", "report", "hf", "trainer", "lightning", "sweep"} <= set(told.get_all("Provides-Extra"))
    unconditional = [line for line in told.get_all("Requires-Dist") if ";" not in line]
    assert "torch>=2.9" in unconditional and not any(line.startswith("transformers") for line in unconditional)


def test_the_wheel_works_without_the_checkout(wheel, tmp_path):
    """In an environment with nothing but the wheel; the dependencies come over PYTHONPATH."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    python = tmp_path / "bare/bin/python"
    show = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = subprocess.run([python, "-c", show], check=True, capture_output=True, text=True).stdout.strip()
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    env = os.environ | {"PYTHONPATH": sysconfig.get_path("purelib")}

    def run(*command):
        done = subprocess.run([python, *command], env=env, cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout

    code = "import outerloop; from outerloop.config import load; print(outerloop.__file__, load.load([]).recipe)"
    file, recipe = run("-c", code).split()
    assert Path(file).is_relative_to(tmp_path) and recipe == "sparseloco"
    assert run("-m", "outerloop", "--version").strip() == wheel.name.split("-")[1]
