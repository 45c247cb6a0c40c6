"""Machines with different vector units and threads, over a real swarm: one model from the first inner step on."""

import os
import subprocess
import sys
from pathlib import Path

import mixed_machines
import pytest

from tests.support.run_output import address_in

ROOT = Path(__file__).parents[2]
needs_avx2 = pytest.mark.skipif(
    "avx2" not in Path("/proc/cpuinfo").read_text(), reason="needs two kinds of vector units: an x86 CPU with AVX2"
)

PEER = """
import sys
import torch
import outerloop
from outerloop import wire

def hash_of(model):
    return f"{wire.tensors_hash(dict(model.named_parameters())):016x}"

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Embedding(64, 128), torch.nn.Linear(128, 64))
hashes = [hash_of(model)]
outer = outerloop.from_recipe("sparseloco", model, "exchange.peers=2", "exchange.quorum=all", *sys.argv[1:])
hashes.append(hash_of(model))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
outerloop.attach(optimizer, outer, on_round=lambda report: hashes.append(report.failed or f"{report.slow_hash:016x}"))
draw = torch.Generator().manual_seed(outer.exchange.rank)
for step in range(6):
    tokens = torch.randint(64, (16,), generator=draw)
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(tokens), tokens.roll(1)).backward()
    optimizer.step()
outer.exchange.close()
print(*hashes)
"""


def start(folder, vectors, threads, *options):
    """A peer on a machine with these vector units and threads."""
    folder.mkdir()
    environment = {"PYTHONPATH": str(ROOT), "ATEN_CPU_CAPABILITY": vectors, "OMP_NUM_THREADS": str(threads)}
    environment["OMP_WAIT_POLICY"] = "passive"  # the cores are shared with other tests
    return subprocess.Popen(
        [sys.executable, "-c", PEER, "schedule.sync_every=2", *options],
        cwd=folder, env=os.environ | environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


@needs_avx2
@pytest.mark.slow  # in the default suite in processes of one kind: tests/core/test_initial_state.py
def test_two_kinds_of_machines_draw_different_weights_and_hold_one_model_from_the_first_step_on(tmp_path):
    peers = [start(tmp_path / "a", "default", 1)]
    try:
        peers.append(start(tmp_path / "b", "avx2", 7, next(filter(None, map(address_in, peers[0].stderr)))))
        said = [peer.communicate() for peer in peers]
    finally:
        for peer in peers:
            peer.kill()
    assert [peer.returncode for peer in peers] == [0, 0], said
    (drawn, *one), (drawn_too, *other) = (out.split() for out, _ in said)
    assert drawn != drawn_too, "else nothing is shown: torch draws normal values otherwise with AVX2"
    assert one == other and len(one) == 4 and len(set(one)) == 4
    assert one[0] in (drawn, drawn_too) and all("1 of 2 peers begin with other weights" in err for _, err in said)


@needs_avx2
@pytest.mark.slow
@pytest.mark.parametrize("recipe", mixed_machines.RECIPES)
def test_every_recipe_holds_one_model_on_three_kinds_of_machines(recipe):
    record = mixed_machines.run(recipe, peers=3, rounds=20)
    assert mixed_machines.is_right(record), record
    assert record["took_over_the_start"] and not record["rounds_failed"]
