"""What is safe before it is spoken of is found after a power cut, with every folder that it lies in."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.nn import Linear

from outerloop.config import load, run_directory
from outerloop.inner.export import export_hf
from outerloop.report.model_card import write_model_card
from outerloop.report.runs import RESULTS
from outerloop.state import checkpoint
from outerloop.swarm.access.hard_state_file import HardStateFile, folder_of, generation_of
from outerloop.swarm.access.identity import Identity, Life, ensure_identity
from outerloop.swarm.consensus.state import HardState
from outerloop.swarm.storage import Folder
from tests.support.power_cut import PowerCut

CARD_FIELDS = ["recipe", "rounds", "workers", "params", "tokens", "val_loss"]
CARD_FIELDS += ["bytes_sent_per_worker", "bits_per_param_per_round"]


@pytest.fixture
def cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PowerCut:
    (tmp_path / "disk").mkdir()
    return PowerCut(tmp_path / "disk", monkeypatch)


def test_a_new_key_is_found_in_folders_that_another_process_has_made(cut: PowerCut, tmp_path: Path) -> None:
    (tmp_path / "disk/run/workers/0").mkdir(parents=True)
    path = ensure_identity(tmp_path / "disk/run/workers/0/identity.key")
    found = cut.restore(tmp_path / "found") / "run/workers/0"
    assert [file.name for file in found.iterdir()] == ["identity.key"]
    assert Identity.read(found / "identity.key") == Identity.read(path)


def test_a_process_is_counted_before_it_says_anything(cut: PowerCut, tmp_path: Path) -> None:
    path = ensure_identity(tmp_path / "disk/identity.key")
    assert Life.begin(path).count == 1 and Life.begin(path).count == 2
    assert Identity.read(cut.restore(tmp_path / "found") / "identity.key").starts == 2


@pytest.mark.parametrize("after", range(9))
def test_whenever_the_power_goes_there_is_as_much_memory_as_the_identity_asks_for(
    cut: PowerCut, tmp_path: Path, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The power goes after so many syncs; with all of them done the memory is there."""
    path = ensure_identity(tmp_path / "disk/run/identity.key")
    life = Life.begin(path)
    disk, memory = Folder(folder_of(path)), HardState.first(session="r", peer="000-a", roster=["000-a"])
    noted, note = [], cut.note_sync

    def counted(*of: object) -> None:
        noted.append(of)
        if len(noted) <= after:
            note(*of)

    monkeypatch.setattr(cut, "note_sync", counted)
    asyncio.run(HardStateFile(disk, own="000-a", life=life).write(memory))
    assert len(noted) == 6, "file and folder of: generation, memory, identity"
    found = cut.restore(tmp_path / "found") / "run/identity.key"
    kept = Folder(folder_of(found))
    assert generation_of(kept) >= Identity.read(found).voted
    if after >= len(noted):
        assert Identity.read(found).voted == generation_of(kept) == 1
        assert HardStateFile(kept, own="000-a").read(session="r") == memory


def test_a_file_that_a_folder_reports_as_safe_is_found(cut: PowerCut, tmp_path: Path) -> None:
    asyncio.run(Folder(tmp_path / "disk/a/b/c").write("x", b"content"))
    assert (cut.restore(tmp_path / "found") / "a/b/c/x").read_bytes() == b"content"


def test_a_sealed_generation_is_whole(cut: PowerCut, tmp_path: Path) -> None:
    shards = checkpoint.generation(tmp_path / "disk/run", 5) / "island-0"
    run_directory.open_run(load.load([f"run_dir={tmp_path}/disk/run"])).close()
    shards.mkdir(parents=True)
    with (shards / "shard").open("wb") as file:  # as torch.distributed.checkpoint writes them
        file.write(b"s" * 100)
        file.flush()
        os.fsync(file.fileno())
    checkpoint.save(tmp_path / "disk/run", 5, 0, {"x": 5}, shards=shards)
    checkpoint.save(tmp_path / "disk/run", 5, 1, {"x": 6})
    checkpoint.seal(tmp_path / "disk/run", 5)
    assert checkpoint.newest_valid(cut.restore(tmp_path / "found") / "run", 2) == (5, [])


def test_a_run_that_is_found_finished_has_its_model(cut: PowerCut, tmp_path: Path) -> None:
    """Also if it replaces the export of an earlier round."""
    settings, path = load.load([f"run_dir={tmp_path}/disk/run"]), tmp_path / "disk/run"
    run_directory.open_run(settings).close()
    for value in (1.0, 2.0):
        export_hf(Linear(3, 3), {"weight": torch.full((3, 3), value)}, None, path / "hf")
    write_model_card(path / "hf", dict.fromkeys(CARD_FIELDS, 1), {}, title="run")
    checkpoint.write_atomically(path / "summary.json", json.dumps(dict.fromkeys(RESULTS, 1)).encode())
    found = cut.restore(tmp_path / "found") / "run"
    assert run_directory.is_finished(found, settings, settings)
    assert load_file(found / "hf/model.safetensors")["weight"].eq(2.0).all() and (found / "hf/README.md").read_text()


@pytest.mark.parametrize("write", [lambda path: path.write_bytes(b"x"), lambda path: path.mkdir()])
def test_the_model_forgets_what_was_not_synced(cut: PowerCut, tmp_path: Path, write: Callable[[Path], object]) -> None:
    write(tmp_path / "disk/y")
    assert not list(cut.restore(tmp_path / "found").iterdir())
