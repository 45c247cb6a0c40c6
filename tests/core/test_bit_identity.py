"""Every machine comes to the same slow weights: other vector units, other numbers of threads, no compiled loops.

Messages and inner updates are given, so what differs is decoding, aggregation and the outer step alone.
"""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from outerloop.config import load
from tests.support import simulated_machine

ROOT = Path(__file__).parents[2]
SHORT = ["schedule.sync_every=2"]
OWN_LENGTH = {"ddp": [], "demo": [], "sparta": [], "streaming_diloco": ["schedule.sync_every=4"]}
RECIPES = {name: [f"recipe={name}", *OWN_LENGTH.get(name, SHORT)] for name in load.groups()["recipe"]}
DILOCO, SPARSE = RECIPES["diloco"], RECIPES["sparseloco"]
COSINE = "{_target_:outerloop.inner.lr_schedule.warmup_cosine,_partial_:true,warmup_steps:1,total_steps:7,floor:0.1}"
VARIANTS = {
    "heavy ball": [*DILOCO, "method.optimizer.nesterov=false"],
    "no momentum": [*RECIPES["localsgd"], "method.optimizer.lr=0.7"],
    "weight decay": [*DILOCO, "+method.optimizer.weight_decay=0.1"],
    "dampening": [*DILOCO, "method.optimizer.nesterov=false", "+method.optimizer.dampening=0.3"],
    "clipped": [*DILOCO, "method.clip_norm=0.1"],
    "schedules": [*DILOCO, f"method.lr_factor={COSINE}", f"method.momentum_factor={COSINE}"],
    "float64": [*DILOCO, "state_dtype=float64"],
    "sign": [*RECIPES["localsgd"], "method=sign", "method.lr=0.003", "method.weight_decay=0.1"],
    "consensus outside": [*RECIPES["noloco"], "method.consensus=outside"],
    "rda": [*DILOCO, "aggregate=rda"],
    "weighted": [*DILOCO, "aggregate=weighted"],
    "median": [*DILOCO, "aggregate=median"],
    "centered clipping": [*DILOCO, "aggregate=centered_clip"],
    "geometric median": [*DILOCO, "aggregate=geometric_median"],
    "trust": [*DILOCO, "aggregate=trust"],
    "rotated, trust": [*RECIPES["outerloop"], "aggregate=trust"],
    "clipped to the median": [*DILOCO, "aggregate=median_clip"],
    "sparse, clipped to the median": [*SPARSE, "aggregate=median_clip"],
    "sparse, weakened by cosine": [*SPARSE, "aggregate=median_cosine"],
    "sparse, mean": [*SPARSE, "aggregate=mean", "method.optimizer.lr=0.65", "method.optimizer.momentum=0.6"],
    "sparse, late": [*SPARSE, "schedule.delay=1", "merge_local=carry", "compress.large.warmup_rounds=3"],
    "averaged buffers": [*DILOCO, "buffers=averaged"],
    "adaptive H": [*DILOCO, "schedule=adaptive", "schedule.sync_min=1", "schedule.sync_max=4"],
    "eager": [*RECIPES["localsgd"], "method.optimizer.lr=0.7", "schedule.delay=2", "eager=true"],
}
CODECS = {name: [*DILOCO, f"compress={name}", "feedback=ef"] for name in load.groups()["compress"]}
NOT_SHARED = {"noloco", "sparta", "consensus outside", "eager"}
"""Cases in which each worker has slow weights of its own."""
MACHINES = ["default", "avx2", "avx512", "default definitions"]
MOST_UNLIKE, *OTHERS = MACHINES
"""The first has no vector units at all, and this process the best there are."""


@pytest.fixture(scope="module")
def recipes(tmp_path_factory):
    """Every recipe, trained here once; and the file that other machines land it from."""
    return recorded(RECIPES, tmp_path_factory)


@pytest.fixture(scope="module")
def others(tmp_path_factory):
    """The same with the other parts of the product."""
    return recorded(VARIANTS | CODECS, tmp_path_factory)


def test_recorded_rounds_land_alike_without_vector_units(recipes):
    check(*recipes, MOST_UNLIKE)


@pytest.mark.slow
@pytest.mark.parametrize("other", OTHERS)
def test_recorded_rounds_land_alike_on_every_machine(recipes, other):
    check(*recipes, other)


@pytest.mark.slow
@pytest.mark.parametrize("other", MACHINES)
def test_recorded_rounds_of_other_parts_land_alike_on_every_machine(others, other):
    check(*others, other)


def recorded(options, tmp_path_factory):
    """The cases, and the file that holds them."""
    cases = {name: simulated_machine.recorded(chosen) for name, chosen in options.items()}
    unequal = {name for name, case in cases.items() if len(set(map(tuple, case["hashes"]))) > 1}
    assert unequal == NOT_SHARED & cases.keys()
    file = tmp_path_factory.mktemp("machines") / "runs"
    file.write_bytes(pickle.dumps(cases))
    return cases, file


def check(cases, file, other):
    """Land the cases in a process of its own with other vector units; all hashes are those of this process."""
    vectors, *how = other.split()
    if vectors not in available():
        pytest.skip(f"this machine has no {vectors}")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "ATEN_CPU_CAPABILITY": vectors, "OMP_WAIT_POLICY": "passive"}
    done = subprocess.run(
        [sys.executable, simulated_machine.__file__, str(file), *how], env=environment, stdout=subprocess.PIPE
    )
    assert done.returncode == 0
    answer = json.loads(done.stdout)
    assert answer["capability"] == vectors.upper() and answer["cases"].keys() == cases.keys()
    for name, by_threads in answer["cases"].items():
        assert by_threads == dict.fromkeys(map(str, simulated_machine.THREADS), cases[name]["hashes"][0]), name


def available():
    """The vector units of this machine, as torch calls them."""
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    return ["default", *(name for name, flag in (("avx2", "avx2"), ("avx512", "avx512f")) if flag in flags)]
