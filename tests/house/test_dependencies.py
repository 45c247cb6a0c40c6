"""The lower bounds of dependencies."""

import importlib
import tomllib
from importlib.metadata import version
from inspect import signature
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement

PYPROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]


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
    [bound] = [one for one in map(Requirement, PYPROJECT["dependencies"]) if one.name == package]
    before, _, last = least.rpartition(".")
    older = f"{before}.{int(last) - 1}.999" if int(last) else f"{int(before) - 1}.999"
    assert bound.specifier.contains(least) and not bound.specifier.contains(older)
    assert feature()
    assert bound.specifier.contains(version(package), prereleases=True)
