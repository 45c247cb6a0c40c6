"""What is said if a class of one's own cannot be found, or does not take the arguments that are set."""

import sys

import pytest

from outerloop.config import instantiate, load
from outerloop.types import UserError

LION = """
import math
from fractions import Fraction

class Lion:
    def __init__(self, *, lr=1.0, beta=0.9):
        pass

class Tiger(Lion):
    pass
"""


@pytest.fixture
def own_files(tmp_path, monkeypatch):
    """The current folder, with the module ownlion and the package ownzoo."""
    (tmp_path / "ownlion.py").write_text(LION)
    (tmp_path / "ownzoo").mkdir()
    (tmp_path / "ownzoo/__init__.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in ("ownlion", "ownzoo"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("ownlion.Lyon", "ownlion.py has no class Lyon; it has Lion, Tiger"),
        ("ownzoo.Lion", "ownzoo has no class Lion; it has no class"),
    ],
)
def test_a_class_that_a_module_lacks_is_reported_with_those_that_it_has(target, message, own_files):
    with pytest.raises(UserError) as error:
        instantiate.make(load.load(["recipe=diloco", f"compress._target_={target}"]).compress)
    assert str(error.value) == message


def test_arguments_of_the_replaced_class_are_explained(own_files, tmp_path):
    with pytest.raises(UserError) as error:
        instantiate.make(load.load(["recipe=diloco", "method._target_=ownlion.Lion"]).method)
    message = str(error.value)
    assert message.startswith(
        "ownlion.Lion: Lion.__init__() got an unexpected keyword argument 'reads'; allowed: lr, beta."
    )
    assert message.endswith("write conf/method/lion.yaml with _target_ and the arguments of Lion, and set method=lion")
    (tmp_path / "conf/method").mkdir(parents=True)
    (tmp_path / "conf/method/lion.yaml").write_text("_target_: ownlion.Lion\nlr: 0.5\n")
    assert type(instantiate.make(load.load(["recipe=diloco", "method=lion"]).method)).__name__ == "Lion"
