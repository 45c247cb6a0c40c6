"""The names of `import outerloop`: complete, typed, and imported on first access."""

import subprocess
import sys
from pathlib import Path

import pytest
from mypy import api

import outerloop

TYPED = """\
import torch
import outerloop

model = torch.nn.Linear(2, 2)
outer = outerloop.from_recipe("sparseloco", model, peers=2, sync_every=30, options={"exchange.port": 4242})
reveal_type(outer)
reveal_type(outerloop.from_recipe("sparseloco", model, gathered=True))
with outer as entered:
    reveal_type(entered)
reveal_type(outerloop.attach(torch.optim.SGD(model.parameters()), outer, on_round=print))
error: type[Exception] = outerloop.UserError
outerloop.from_recipe("sparseloco", model, sync_evry=30)
outerloop.from_recipy
"""


def test_every_public_name_is_there_and_listed():
    names = {name for names in outerloop.HOMES.values() for name in names} | outerloop.MODULES.keys()
    assert {*outerloop.__all__, *outerloop.CALLBACKS} == names
    assert dir(outerloop) == sorted([*names, "__version__"])
    for name in outerloop.__all__:
        assert getattr(outerloop, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'from_recipy'"):
        _ = outerloop.from_recipy


def test_the_package_declares_its_types():
    assert (Path(outerloop.__file__).parent / "py.typed").exists()


def test_the_import_starts_nothing_heavy():
    code = "import sys, outerloop; print(*{'torch', 'hydra', 'numpy', 'hivemind'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.slow  # mypy reads torch
def test_a_type_checker_knows_what_the_functions_return(tmp_path):
    (tmp_path / "program.py").write_text(TYPED)
    said, _, _ = api.run([str(tmp_path / "program.py"), "--cache-dir", str(tmp_path / "cache")])
    for line, what in (
        (6, '"outerloop.core.outer_loop.OuterLoop"'),
        (7, "OuterLoop | outerloop.replica.gathered.Follower"),
        (9, '"outerloop.core.outer_loop.OuterLoop"'),
        (10, '"outerloop.inner.attach.Attached"'),
        (12, "sync_evry"),
        (13, "from_recipy"),
    ):
        assert any(f"program.py:{line}:" in entry and what in entry for entry in said.splitlines()), (line, said)
    assert not any("program.py:11:" in entry for entry in said.splitlines())
