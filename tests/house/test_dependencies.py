"""What pyproject.toml asks for: the lower bounds of dependencies, and which package comes with which extra."""

import importlib
import tomllib
from importlib.metadata import distributions, version
from inspect import signature
from itertools import chain
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from outerloop.types import EXTRAS

PYPROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
BASE = [Requirement(text) for text in PYPROJECT["dependencies"]]
EXTRA = {extra: [Requirement(text) for text in texts] for extra, texts in PYPROJECT["optional-dependencies"].items()}


@pytest.mark.parametrize(
    ("package", "least", "feature"),
    [
        ("torch", "2.9", lambda: signature(torch.optim.Muon).parameters["adjust_lr_fn"]),
        ("tokenizers", "0.22", lambda: importlib.import_module("tokenizers")),
        ("transformers", "5.0", lambda: importlib.import_module("transformers").AutoModelForCausalLM),
    ],
)
def test_lower_bounds_are_those_of_what_the_code_calls(package, least, feature):
    """`feature` is there in the first release that the bound lets in: Muon came to torch with 2.9, and tokenizers 0.22
    is the least that transformers 5.0 asks for."""
    before, _, last = least.rpartition(".")
    older = f"{before}.{int(last) - 1}.999" if int(last) else f"{int(before) - 1}.999"
    bounds = [one for one in chain(BASE, *EXTRA.values()) if one.name == package]
    assert bounds and feature()
    for bound in bounds:
        assert bound.specifier.contains(least) and not bound.specifier.contains(older)
        assert bound.specifier.contains(version(package), prereleases=True)


def test_every_optional_package_is_in_the_extra_that_its_error_names():
    for package, extra in EXTRAS.items():
        assert package in [one.name for one in EXTRA[extra]], package
        assert package not in [one.name for one in BASE], package


def test_what_is_installed_here_satisfies_every_bound():
    """So that the tests run on versions that the bounds allow; trackio and the documentation may be missing."""
    for extra, requirements in {"": BASE, **EXTRA}.items():
        for one in requirements if extra not in ("trackio", "docs") else ():
            if one.name != "outerloop-train" and (one.marker is None or one.marker.evaluate()):
                assert one.specifier.contains(version(one.name), prereleases=True), one


def test_every_installed_package_accepts_the_oldest_python():
    """constraints.txt pins versions that install on each Python that pyproject.toml allows."""
    oldest = PYPROJECT["requires-python"].removeprefix(">=") + ".0"
    required = {one.metadata["Name"]: one.metadata["Requires-Python"] for one in distributions()}
    refusing = {name: python for name, python in required.items() if python and oldest not in SpecifierSet(python)}
    assert refusing == {}


def test_all_holds_every_extra_of_a_user():
    [everything] = EXTRA["all"]
    assert everything.extras == EXTRA.keys() - {"all", "test", "docs", "trackio"}
