"""A resumed run notices that its text has changed."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from outerloop.config import build, instantiate, load
from outerloop.inner.data.corpus import notes_of
from outerloop.inner.data.fingerprint import CHANGED
from tests.support import toy
from tests.support.small_trainer import SMALL


def trainer_of(options: list[str]):
    config = load.load([*SMALL[:3], "model=nano", "inner.seq_len=16", "recipe=diloco", *options])
    return build.make_trainer(config, instantiate.make(config.data), toy.alone(), 0)


def write_shard(path: Path, tokens: int) -> None:
    header = np.zeros(256, dtype=np.int32)
    header[:3] = 20240520, 1, tokens
    path.write_bytes(header.tobytes() + np.zeros(tokens, dtype=np.uint16).tobytes())


def write_text(path: Path, letters: int) -> None:
    path.write_text("some text\n" * (letters // 10))


@pytest.mark.parametrize("assignment", ["by_worker", "by_round"])
@pytest.mark.parametrize(
    ("write", "options"),
    [(write_text, ["data=text"]), (write_shard, ["data=tokens", "data.vocab_size=256"]), (write_text, ["data=hf"])],
)
def test_a_resumed_run_notices_other_text(tmp_path: Path, write, options: list[str], assignment: str) -> None:
    if options == ["data=hf"]:
        pytest.importorskip("datasets")
        if assignment == "by_round":
            pytest.skip("data=hf cannot be read at any position")
        options = ["data=hf", "data.path=text"]

    def trainer(folder: str):
        key = "data.data_files" if "data=hf" in options else "data.files"
        return trainer_of([*options, f"assignment={assignment}", f"{key}=[{tmp_path}/{folder}/*.txt]"])

    (tmp_path / "here").mkdir()
    for name in "ab":
        write(tmp_path / "here" / f"{name}.txt", 2000)
    first = trainer("here")
    first.step()
    state = first.state_dict()
    shutil.copytree(tmp_path / "here", tmp_path / "there")

    def notes(folder: str, state) -> list[str]:
        resumed = trainer(folder)
        resumed.load_state_dict(state)
        return [note for note in notes_of(resumed.stream) if "position" not in note]

    assert notes("here", state) == notes("there", state) == []
    write(tmp_path / "there" / "c.txt", 2000)
    assert notes("there", state) == [CHANGED]
    write(tmp_path / "here" / "b.txt", 1500)
    assert notes("here", state) == [CHANGED]
    older = state | {"stream": {key: value for key, value in state["stream"].items() if key != "fingerprint"}}
    assert notes("here", older) == []
