"""Hugging Face datasets: late joiners, positions in other parts, unusable rows, and a Hub that cannot be reached."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from outerloop.inner.data import hf_stream
from outerloop.inner.data.corpus import Stream
from outerloop.inner.data.hf import HuggingFace
from outerloop.inner.training_stream import make_stream
from outerloop.types import UserError

os.environ["HF_HUB_OFFLINE"] = "1"  # read when datasets is first imported, which is later

CONFIG = Path(__file__).parents[2] / "configs" / "data" / "hf.yaml"
ALONE = SimpleNamespace(size=1, rank=0, is_leader=True)


def row(file: int, index: int) -> str:
    """A text that occurs only once."""
    return f"<{file:03d}/{index:05d}>" * 8


def write(path: Path, texts: list[str | None]) -> str:
    parquet, pyarrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    parquet.write_table(pyarrow.table({"text": texts}), path, row_group_size=16)
    return str(path)


def corpus_of(files: list[str], **options: object) -> HuggingFace:
    pytest.importorskip("datasets")
    return instantiate(OmegaConf.load(CONFIG), path="parquet", data_files=files, **options)


def corpus(folder: Path, files: int, rows: int = 80) -> HuggingFace:
    names = [write(folder / f"{file:03d}.parquet", [row(file, i) for i in range(rows)]) for file in range(files)]
    return corpus_of(names)


def stream_of(corpus: HuggingFace, peer: str, *, late: bool, size: int = 1, seq_len: int = 64) -> Stream:
    info = SimpleNamespace(replicated=True)
    exchange: Any = SimpleNamespace(info=info, late_joiner=late, shares_rank=late, peer=peer, rank=0, size=size)
    return make_stream(corpus, exchange, ALONE, None, assignment="by_worker", seed=0, batch=2, seq_len=seq_len)  # type: ignore[arg-type]


def take(stream: Stream, batches: int) -> list[list[list[int]]]:
    return [stream.next().tolist() for _ in range(batches)]


def texts(batches: list[list[list[int]]]) -> set[str]:
    """The texts of which the batches contain the middle."""
    words = [bytes(window).decode().replace("\0", "") for batch in batches for window in batch]
    return {word for window in words for word in window.split("><")[1:-1]}


@pytest.mark.parametrize("files", [1, 4, 20])
def test_late_joiners_read_different_text(tmp_path: Path, files: int) -> None:
    data = corpus(tmp_path, files, rows=2000 // files)
    peers = [("12D3A", True), ("12D3B", True), ("12D3C", True), ("12D3M", False)]
    read = [take(stream_of(data, peer, late=late), 20) for peer, late in peers]
    for first, second in combinations(read, 2):
        assert first != second
    for first, second in combinations(read[:3], 2):
        assert not texts(first) & texts(second)


@pytest.mark.parametrize(("files", "rows"), [(1, 80), (4, 40), (20, 5)])
@pytest.mark.parametrize("cursor", [0, 90])
def test_a_late_joiner_resumes_exactly_and_reads_all_text(tmp_path: Path, files: int, rows: int, cursor: int) -> None:
    data = corpus(tmp_path, files, rows)
    whole = stream_of(data, "12D3A", late=True)
    seen = texts(take(whole, cursor))
    state = json.loads(json.dumps(whole.state_dict()))
    resumed = stream_of(data, "12D3A", late=True)
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state and not resumed.notes
    rest = take(whole, 260)
    assert take(resumed, 260) == rest
    held_out = texts([data.validation(seq_len=64, sequences=1000).tolist()])
    every = {row(file, i)[1:10] for file in range(files) for i in range(rows)}
    assert len(every - seen - texts(rest) - held_out) < 0.02 * len(every)


@pytest.mark.parametrize(("old", "new"), [(4, 3), (2, 1), (3, 4), (1, 2)])
def test_a_position_in_another_part_is_not_used(tmp_path: Path, old: int, new: int) -> None:
    data = corpus(tmp_path, 4)
    before = stream_of(data, "12D3M", late=False, size=old)
    take(before, 5)
    after = stream_of(data, "12D3M", late=False, size=new)
    after.load_state_dict(before.state_dict())
    assert len(after.notes) == 1
    assert f"worker 0 of {old} (of" in after.notes[0] and f"worker 0 of {new} (of" in after.notes[0]
    assert take(after, 30) == take(stream_of(data, "12D3M", late=False, size=new), 30)


def test_a_position_in_another_number_of_files_is_not_used(tmp_path: Path) -> None:
    before = stream_of(corpus(tmp_path, 4), "12D3M", late=False, size=2)
    take(before, 5)
    five = corpus(tmp_path, 5)
    after = stream_of(five, "12D3M", late=False, size=2)
    after.load_state_dict(before.state_dict())
    assert len(after.notes) == 2 and take(after, 9) == take(stream_of(five, "12D3M", late=False, size=2), 9)


def test_a_position_of_an_earlier_version_is_used_by_a_member_only(tmp_path: Path) -> None:
    data = corpus(tmp_path, 4)
    before = stream_of(data, "12D3M", late=False)
    take(before, 5)
    state = {key: value for key, value in before.state_dict().items() if key != "text"}
    member, late = (stream_of(data, "12D3M", late=late) for late in (False, True))
    member.load_state_dict(state)
    assert take(member, 9) == take(before, 9) and not member.notes
    late.load_state_dict(state)
    assert take(late, 9) == take(stream_of(data, "12D3M", late=True), 9) and len(late.notes) == 1


def test_rows_without_text_are_skipped(tmp_path: Path) -> None:
    rows: list[str | None] = [row(0, i) for i in range(80)]
    without = [text for i, text in enumerate(rows) if i not in (0, 40, 41)]
    with_nulls = [text if i not in (0, 40, 41) else None for i, text in enumerate(rows)]
    batches = [
        take(stream_of(corpus_of([write(tmp_path / f"{n}.parquet", x)]), "12D3M", late=False), 99)
        for n, x in enumerate((with_nulls, without))
    ]
    assert batches[0] == batches[1]


class Broken:
    """A dataset that raises an error before every 30th text, but delivers it after it is opened again."""

    def __init__(self, dataset: Any, failed: set[str], error: Exception) -> None:
        self.dataset, self.failed, self.error = dataset, failed, error
        self.n_shards = dataset.n_shards
        self.state_dict, self.load_state_dict = dataset.state_dict, dataset.load_state_dict

    def __iter__(self) -> Any:
        for example in self.dataset:
            if example["text"] not in self.failed and len(self.failed) < 5 and "9>" in example["text"]:
                self.failed.add(example["text"])
                raise self.error
            yield example


class HTTPError(Exception):
    """Stands in for an error of httpx."""

    __module__ = "httpx._exceptions"


@pytest.mark.parametrize("error", [ConnectionError("Server Disconnected"), HTTPError("no route")])
@pytest.mark.parametrize("late", [False, True])
def test_a_stream_continues_exactly_after_network_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception, late: bool
) -> None:
    data = corpus(tmp_path, 4)
    expected = take(stream_of(data, "12D3M", late=late), 120)
    open_part, failed, waits = data.open_part, set[str](), list[float]()
    monkeypatch.setattr(hf_stream.time, "sleep", waits.append)
    monkeypatch.setattr(data, "open_part", lambda rank, size: Broken(open_part(rank, size), failed, error))
    assert take(stream_of(data, "12D3M", late=late), 120) == expected
    assert len(failed) == len(waits) == 5
    assert f"cannot be reached: {error}; trying again in 5 s" in caplog.text


def test_a_stream_gives_up_after_some_minutes_and_other_errors_are_raised_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = corpus(tmp_path, 1)
    stream = stream_of(data, "12D3M", late=False)
    stream.next()
    waits = list[float]()
    monkeypatch.setattr(hf_stream.time, "sleep", waits.append)

    def fail(error: Exception) -> Callable[..., Any]:
        def load_dataset(*_: object, **__: object) -> Any:
            raise error

        return load_dataset

    monkeypatch.setattr("datasets.load_dataset", fail(ConnectionError("no route to huggingface.co\nmore")))
    with pytest.raises(UserError, match=r"data.path=parquet cannot be reached: no route to huggingface.co; check the"):
        take(stream, 99)
    assert 60 < sum(waits) < 900
    with pytest.raises(UserError, match="cannot be reached: no route"):
        stream_of(data, "12D3M", late=False)
    waits.clear()
    monkeypatch.setattr("datasets.load_dataset", fail(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        take(stream, 99)
    assert not waits


def test_a_hub_that_cannot_be_reached_is_named() -> None:
    pytest.importorskip("datasets")
    hub = instantiate(OmegaConf.load(CONFIG))
    with pytest.raises(
        UserError, match=r"data.path=HuggingFaceFW/fineweb-edu cannot be reached: .*; check the network"
    ):
        hub.stream(rank=0, size=1, batch=1, seq_len=64, seed=0)


def test_validation_files_among_the_training_files_are_left_out(tmp_path: Path) -> None:
    files = [write(tmp_path / f"{file}.parquet", [row(file, i) for i in range(80)]) for file in range(3)]
    mixed = corpus_of([f"{tmp_path}/*.parquet"], val_files=[f"{tmp_path}/./2.parquet"])
    apart = corpus_of(files[:2], val_files=[files[2]])
    assert len(mixed.notes) == 1 and "2.parquet, also in data.val_files: left out" in mixed.notes[0]
    assert not apart.notes and apart.data_files == files[:2]
    read = [take(stream_of(data, "12D3M", late=False), 150) for data in (mixed, apart)]
    assert read[0] == read[1] and texts(read[0]) >= {row(0, 1)[1:10], row(1, 1)[1:10]}


@pytest.mark.parametrize(
    ("options", "option"),
    [({"data_files": None}, "data_files"), ({"data_files": ["a.txt"], "val_split": "train"}, "val_files")],
)
def test_files_of_the_current_folder_are_not_read_without_being_named(
    options: dict[str, Any], option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("datasets")
    monkeypatch.chdir(tmp_path)
    for name in ("a", "letter"):
        (tmp_path / f"{name}.txt").write_text("a line\n" * 1000)
    data = instantiate(OmegaConf.load(CONFIG), path="text", **options)
    with pytest.raises(UserError, match=rf"data.path=text is a file format.*set data.{option}=\[FILE,...\]"):
        data.validation(seq_len=8, sequences=2)
