"""Each script of examples/ does what its header says: with fewer steps, and alone where that is enough."""

import ast
import re
import runpy
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from outerloop.commands import main
from tests.support.run_output import address_in
from tests.support.swarm.loopback import eventually

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = sorted([*EXAMPLES.glob("*.py"), *EXAMPLES.glob("*.s*"), *EXAMPLES.glob("*.y*ml")])
ALONE = {"peers=2": "peers=1"}


def written(name, folder, changes):
    """The path of a copy of an example in which some texts are changed; each of them must be in it."""
    source = (EXAMPLES / name).read_text()
    for old, new in changes.items():
        assert old in source, f"{name} has no {old}"
        source = source.replace(old, new)
    script = folder / name
    script.write_text(source)
    return script


def run(name, folder, monkeypatch, changes, *arguments):
    """Execute an example in this process, in `folder`. Return the variables that it leaves."""
    script = written(name, folder, changes)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", [str(script), *arguments])
    return runpy.run_path(str(script), run_name="__main__")


def execute(script):
    """Execute a script in this thread. runpy would replace sys.modules["__main__"], which belongs to all threads."""
    exec(compile(Path(script).read_text(), script, "exec"), {"__name__": "__main__", "__file__": script})


def test_two_peers_of_the_own_loop_end_with_equal_weights(tmp_path, monkeypatch, caplog, capsys):
    monkeypatch.chdir(tmp_path)
    script = str(written("own_loop.py", tmp_path, {"STEPS, SYNC_EVERY = 180, 30": "STEPS, SYNC_EVERY = 6, 3"}))

    def start(*arguments):
        monkeypatch.setattr(sys, "argv", [script, *arguments])
        thread = threading.Thread(target=execute, args=(script,))
        thread.start()
        return thread

    first = start()
    assert eventually(lambda: address_in(caplog.text), limit_s=60)
    second = start(re.search(r"/ip4/\S+/p2p/\w+", caplog.text)[0])
    first.join()
    second.join()
    out = capsys.readouterr().out
    assert out.count("2 peers") == 4, out
    hashes = re.findall(r"hash of the agreed weights (\w{16})", out)
    assert len(hashes) == 2 and len(set(hashes)) == 1


def test_the_hf_trainer_logs_its_rounds_and_ends_with_the_hash_of_the_weights(tmp_path, monkeypatch, capsys):
    changes = ALONE | {"sync_every=20": "sync_every=1", "max_steps=60": "max_steps=2"}
    left = run("hf_trainer.py", tmp_path, monkeypatch, changes)
    rounds = [row for row in left["trainer"].state.log_history if "outer/delta_norm" in row]
    assert [row["step"] for row in rounds] == [1, 2]
    assert (tmp_path / "runs/hf-trainer-0/checkpoint-2/outerloop.pt").exists()
    assert f"{left['callback'].outer.slow_hash:016x}" in capsys.readouterr().out


def test_lightning_ends_with_the_hash_of_the_weights(tmp_path, monkeypatch, capsys):
    changes = ALONE | {"sync_every=30": "sync_every=1", "max_steps=90": "max_steps=2"}
    left = run("lightning_trainer.py", tmp_path, monkeypatch, changes)
    assert left["trainer"].global_step == left["callback"].outer.inner_step == 2
    assert f"{left['callback'].outer.slow_hash:016x}" in capsys.readouterr().out


def test_accelerate_counts_optimizer_steps(tmp_path, monkeypatch, capsys):
    changes = ALONE | {"sync_every=20": "sync_every=2", "STEPS = 60": "STEPS = 6", "4096": "320"}
    left = run("accelerate_loop.py", tmp_path, monkeypatch, changes)
    assert left["outer"].inner_step == 6 and {int(one["step"]) for one in left["optimizer"].state.values()} == {6}
    out = capsys.readouterr().out
    assert out.count("1 peers") == 3 and f"hash of the agreed weights {left['outer'].slow_hash:016x}" in out


def test_the_simulation_compares_recipes_on_a_model_that_is_no_language_model(tmp_path, monkeypatch, capsys):
    changes = {"STEPS, SYNC_EVERY = 8, 150, 15": "STEPS, SYNC_EVERY = 2, 8, 4", "count=1024": "count=64"}
    run("cnn_simulation.py", tmp_path, monkeypatch, changes)
    lines = capsys.readouterr().out.splitlines()
    shown = [line.split()[0] for line in lines if "accuracy" in line]
    assert shown == ["ddp", "diloco", "sparseloco"]
    monkeypatch.setattr(sys, "argv", ["outerloop", "report", "runs/cnn"])
    assert main.main() == 0 and list(tmp_path.glob("runs/cnn/report/report.html"))


@pytest.mark.slow
def test_islands_of_fsdp2_agree_and_are_saved(tmp_path):
    script = written(
        "own_loop_fsdp2.py", tmp_path, {"STEPS, SYNC_EVERY, ISLANDS = 60": "STEPS, SYNC_EVERY, ISLANDS = 30"}
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4", str(script)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    hashes = dict(re.findall(r"island (\d rank \d): loss .* shards (\w{16})", done.stdout))
    assert len(hashes) == 4
    assert hashes["0 rank 0"] == hashes["1 rank 0"] != hashes["0 rank 1"] == hashes["1 rank 1"]
    assert all((tmp_path / f"runs/fsdp2/island-{island}/index.json").exists() for island in range(2))


@pytest.mark.slow
def test_two_processes_of_one_trainer_are_one_peer(tmp_path):
    script = written(
        "hf_trainer.py", tmp_path, ALONE | {"sync_every=20": "sync_every=2", "max_steps=60": "max_steps=4"}
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("'outer/peers'") == 2, done.stdout


@pytest.mark.slow
def test_two_processes_of_accelerate_are_one_peer(tmp_path):
    script = written("accelerate_loop.py", tmp_path, ALONE | {"STEPS = 60": "STEPS = 40"})
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("1 peers") == 2 and done.stdout.count("hash of the agreed weights") == 1, done.stdout


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_the_header_says_how_to_run_it_and_what_one_sees(script):
    header = ast.get_docstring(ast.parse(script.read_text())) if script.suffix == ".py" else script.read_text()[:800]
    assert "Run: " in header and "See: " in header
    assert len(script.read_text().splitlines()) <= 80


def test_no_example_hides_a_package_from_the_scripts_beside_it():
    """Python looks for imports in the folder of a script first."""
    own = {path.stem for path in EXAMPLES.glob("*.py")}
    assert own and not own & {*sys.stdlib_module_names, "accelerate", "lightning", "transformers", "torch", "outerloop"}
