"""Machine code is kept from process to process, and never outlives an edit of what it was compiled from."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numba
import pytest

import outerloop
from outerloop.kernels.cpu import compiled

DECODE = """
import torch
from outerloop.kernels.cpu import two_bit as loops
from outerloop.kernels.two_bit import two_bit_decode
code, level = torch.tensor([0b00011011], dtype=torch.uint8), torch.tensor([[1, 2]], dtype=torch.bfloat16)
print(two_bit_decode([code], [level], 4, 4)[0].tolist())
stats = loops.decode_groups.stats
print(stats.cache_hits.total(), stats.cache_misses.total())
"""
RIGHT = "[-2.0, -1.0, 2.0, 1.0]"
FULL_DISK = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
KERNELS = Path("outerloop/kernels/cpu")


@pytest.fixture
def checkout(tmp_path):
    """A copy of the package, to edit."""
    shutil.copytree(
        Path(outerloop.__file__).parent, tmp_path / "outerloop", ignore=shutil.ignore_patterns("__pycache__")
    )
    return tmp_path


def decoded(checkout, cache="cache", program=DECODE):
    """Two bits decoded in a process of its own: the values, the hits and misses of the cache, what was logged."""
    settings = {"PYTHONPATH": str(checkout), "NUMBA_CACHE_DIR": str(checkout / cache)}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=checkout,
        env=os.environ | settings,
        capture_output=True,
        text=True,
        check=True,
    )
    return *done.stdout.splitlines(), done.stderr


def test_a_second_process_loads_what_the_first_one_compiled(checkout):
    first, second = decoded(checkout), decoded(checkout)
    assert first[:2] == (RIGHT, "0 1") and second[:2] == (RIGHT, "1 0")
    assert list(checkout.glob("cache/outerloop/loops-*/*/two_bit.decode_groups-*.nbi"))
    assert not list(checkout.rglob("__pycache__/*.nb?"))


def test_only_folders_that_nobody_has_used_for_long_are_deleted(tmp_path):
    for name, age_s in (("loops-old", compiled.UNUSED_S + 60), ("loops-new", compiled.UNUSED_S - 60), ("other", 1e9)):
        (tmp_path / name / "deep").mkdir(parents=True)
        os.utime(tmp_path / name, (0, 2e9 - age_s))
    compiled.delete_unused(tmp_path, now_s=2e9)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["loops-new", "other"]


@pytest.mark.slow
def test_an_edited_helper_is_compiled_anew_into_its_callers(checkout):
    decoded(checkout)
    helper = checkout / KERNELS / "arrays.py"
    widen = "np.uint32(source[i]) << np.uint32(16)"
    assert widen in helper.read_text()
    helper.write_text(helper.read_text().replace(widen, f"({widen}) ^ np.uint32(0x80000000)"))
    values, hits_and_misses, _ = decoded(checkout)
    assert values == "[2.0, 1.0, -2.0, -1.0]" and hits_and_misses == "0 1"
    assert len(list((checkout / "cache/outerloop").glob("loops-*"))) == 2


@pytest.mark.slow
def test_where_nothing_can_be_kept_it_is_compiled_and_said(checkout):
    (checkout / "cache").touch()
    values, hits_and_misses, log = decoded(checkout)
    assert values == RIGHT and hits_and_misses == "0 1" and "compiles its loops again" in log
    assert not list(checkout.rglob("*.nb?"))


@pytest.mark.slow  # in the default suite: other reasons to compile again
def test_damaged_files_are_replaced(checkout):
    decoded(checkout)
    for kind, left in [("nbi", 10), ("nbc", 0)]:
        files = list(checkout.glob(f"cache/outerloop/loops-*/*/*.{kind}"))
        for file in files:
            os.truncate(file, left)
        values, hits_and_misses, log = decoded(checkout)
        assert files and values == RIGHT and hits_and_misses == "0 1" and log.count("are damaged") == 1
    assert decoded(checkout) == (RIGHT, "1 0", "")


@pytest.mark.slow
def test_on_a_full_disk_nothing_is_kept_and_said_once(checkout):
    start = DECODE.index("code, level")
    values, hits_and_misses, log = decoded(checkout, program=DECODE[:start] + FULL_DISK + DECODE[start:])
    assert values == RIGHT and hits_and_misses == "0 1" and log.count("cannot write to the cache folder") == 1


def test_a_name_or_a_byte_changes_the_folder(checkout):
    kernels = checkout / KERNELS
    seen = {compiled.source_digest(kernels)}
    assert seen == {compiled.source_digest(Path(compiled.__file__).parent)}
    (kernels / "arrays.py").rename(kernels / "other_vectors.py")
    seen.add(compiled.source_digest(kernels))
    with (kernels / "arrays.py").open("a") as file:
        file.write("#")
    seen.add(compiled.source_digest(kernels))
    assert len(seen) == 3


def test_other_users_of_numba_keep_their_own_folder():
    assert os.environ.get("NUMBA_CACHE_DIR", "") == numba.config.CACHE_DIR
