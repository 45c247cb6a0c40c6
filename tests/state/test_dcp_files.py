"""A sharded checkpoint is read without running what is in it, whoever wrote it, and its index is checked first."""

import copy
import io
import itertools
import json
import pickle
import random
import struct
import time
import tracemalloc
from collections import Counter

import pytest
import torch
from torch.distributed import checkpoint
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata

from outerloop.state import dcp_index
from outerloop.state.dcp_files import Planner, Reader, Writer
from outerloop.state.dcp_pickle import records
from outerloop.types import UserError


class Runs:
    """An object whose pickle creates a file when it is read."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, "w")


def state():
    """Tensors of several dtypes and sizes, an empty one and a scalar among them, and plain values."""
    tensors = {"w": torch.arange(12.0).view(3, 4), "b": torch.ones(5, dtype=torch.bfloat16), "n": torch.tensor(7)}
    return {
        "model": tensors | {"none": torch.zeros(0, 3)},
        "lr": 0.5,
        "groups": [{"betas": (0.9, 0.95), "foreach": None}],
    }


def blank():
    """The same, not loaded yet."""
    tensors = {name: torch.full_like(x, 3) for name, x in state()["model"].items()}
    return {"model": tensors, "lr": 0.0, "groups": [{"betas": (0.0, 0.0), "foreach": True}]}


def save(folder):
    checkpoint.save(state(), storage_writer=Writer(folder), no_dist=True)
    return folder


def load(folder):
    loaded = blank()
    checkpoint.load(loaded, storage_reader=Reader(folder), planner=Planner(), no_dist=True)
    return loaded


def same(one, other):
    torch.testing.assert_close(one["model"], other["model"], rtol=0, atol=0)
    return one["lr"] == other["lr"] and one["groups"] == other["groups"]


def test_a_written_checkpoint_is_read_back_without_its_pickle(tmp_path):
    save(tmp_path)
    (tmp_path / ".metadata").write_bytes(pickle.dumps(Runs(tmp_path / "ran")))
    assert same(load(tmp_path), state()) and not (tmp_path / "ran").exists()


def test_torch_reads_what_is_written_here_and_is_read_here(tmp_path):
    """A folder of an older version or of another program has torch's index alone."""
    save(tmp_path)
    by_torch = blank()
    checkpoint.load(by_torch, checkpoint_id=tmp_path, no_dist=True)
    (tmp_path / "index.json").unlink()
    assert same(by_torch, state()) and same(load(tmp_path), state())


def test_both_indexes_say_the_same(tmp_path):
    save(tmp_path)
    of_torch = dcp_index.index_of_metadata(records((tmp_path / ".metadata").read_bytes()))
    assert of_torch == json.loads((tmp_path / "index.json").read_text())
    again = dcp_index.index_of_metadata(dcp_index.read(tmp_path))
    assert again == of_torch


@pytest.mark.parametrize("where", ["alone", "beside", "key", "state"])
def test_a_pickle_that_would_run_something_is_refused_by_name(where, tmp_path):
    save(tmp_path)
    (tmp_path / "index.json").unlink()
    evil, ran = Runs(tmp_path / "ran"), tmp_path / "ran"
    real = pickle.loads((tmp_path / ".metadata").read_bytes())
    assert isinstance(real, Metadata)
    if where == "beside":
        real.planner_data["x"] = evil
    if where == "state":
        real.storage_meta.modules = [evil]
    if where == "key":
        real.state_dict_metadata = {**real.state_dict_metadata, ("x", evil): 3}
    (tmp_path / ".metadata").write_bytes(pickle.dumps(evil if where == "alone" else real))
    with pytest.raises(UserError, match=r"is not loaded.*the pickle names (_?io)\.open, which no index of torch does"):
        Reader(tmp_path)
    assert not ran.exists()
    if where == "alone":  # what torch itself does with it
        checkpoint.FileSystemReader(tmp_path).read_metadata()
        assert ran.exists()


def calls(module, name, *arguments):
    """A pickle that calls a function by its name."""
    words = b"".join(b"X" + struct.pack("<I", len(one.encode())) + one.encode() for one in arguments)
    return b"\x80\x04c" + f"{module}\n{name}\n".encode() + b"(" + words + b"tR."


@pytest.mark.parametrize("name", ["os.system", "builtins.eval", "builtins.__import__", "torch.load", "torch.hub.load",
                                  "torch.distributed.checkpoint.metadata.os.system", "functools.partial"])  # fmt: skip
def test_no_function_is_called(name):
    module, _, function = name.rpartition(".")
    with pytest.raises(ValueError, match=rf"the pickle names {name}"):
        records(calls(module, function, "true"))


@pytest.mark.parametrize(
    "name", ["torch.Size", "builtins.getattr", "pathlib.PosixPath", "torch.serialization._get_layout"]
)
def test_an_admitted_name_runs_nothing_either(name):
    module, _, function = name.rpartition(".")
    found = records(calls(module, function, "real"))
    assert found == ("r", "e", "a", "l") or found.arguments == ("real",)


def test_a_class_cannot_be_changed_by_a_pickle(tmp_path):
    """The state of an object may be set, that of what makes objects may not."""
    name = b"c" + f"{dcp_index.Metadata.__module__}\nMetadata\n".encode()
    with pytest.raises(ValueError):
        records(b"\x80\x04" + name + b"}X\x01\x00\x00\x00aK\x01sb.")


def test_a_few_bytes_take_no_memory():
    """They put a number in place 2^24 of what was made; the unpickler in C makes room for all before it."""
    data = b"\x80\x04K\x01r" + struct.pack("<I", 1 << 24) + b"."
    tracemalloc.start()
    try:
        assert records(data) == 1 and tracemalloc.get_traced_memory()[1] < 1 << 20
        assert pickle.loads(data) == 1 and tracemalloc.get_traced_memory()[1] > 1 << 27
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("opcode", [b"\x96", b"\x97", b"\x98"], ids=["bytearray", "next buffer", "readonly buffer"])
def test_bytes_that_no_index_of_torch_has_are_refused(opcode):
    """A pickle says how long an array of bytes is before these come, and room for all of them would be made."""
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="which no index of torch has"):
            records(b"\x80\x05" + opcode + struct.pack("<Q", 1 << 28) + b".")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_plain_value_that_would_run_something_is_refused_by_name(tmp_path):
    """torch loads values that are no tensors without any check."""
    evil = state() | {"lr": Runs(tmp_path / "ran")}
    checkpoint.save(evil, storage_writer=Writer(tmp_path / "c"), no_dist=True)
    with pytest.raises(checkpoint.CheckpointException) as error:
        load(tmp_path / "c")
    causes = [cause for cause, _ in error.value.failures.values()]
    assert isinstance(causes[0], UserError) and "lr of the checkpoint is not a plain value" in str(causes[0])
    assert not (tmp_path / "ran").exists()
    checkpoint.load(blank(), checkpoint_id=tmp_path / "c", no_dist=True)
    assert (tmp_path / "ran").exists()


def changed(folder, change):
    """The index with something else in it."""
    index = json.loads((folder / "index.json").read_text())
    change(index)
    (folder / "index.json").write_text(json.dumps(index))


def w(index):
    return index["entries"]["model.w"]


def chunk(index):
    return w(index)["chunks"][0]


def huge_chunk(index):
    w(index).update(shape=[1 << 40, 4])
    chunk(index).update(sizes=[1 << 40, 4])


def halves(index, first, second, *, length):
    """The tensor in two chunks (offsets and sizes) of so many bytes each, one behind the other in the file."""
    place = chunk(index)
    parts = [{"offsets": offsets, "sizes": sizes} for offsets, sizes in (first, second)]
    starts = [place["start"], place["start"] + length]
    w(index)["chunks"] = [place | part | {"start": at, "bytes": 48} for part, at in zip(parts, starts, strict=True)]


HARMS = {
    "another format": (lambda index: index.update(format=2), "format 2, but this version reads only format 1"),
    "no format": (lambda index: index.pop("format"), "'format'"),
    "a file elsewhere": (lambda index: chunk(index).update(file="../secret"), "secret' is not a file in this folder"),
    "an absolute file": (lambda index: chunk(index).update(file="/etc/passwd"), "is not a file in this folder"),
    "a folder": (lambda index: chunk(index).update(file="."), "is not a file in this folder"),
    "no name": (lambda index: chunk(index).update(file=["x"]), "unhashable"),
    "past the end": (lambda index: chunk(index).update(start=1 << 40), "begins at byte 1099511627776"),
    "too short": (lambda index: chunk(index).update(bytes=47), "have at least 48"),
    "negative": (lambda index: chunk(index).update(start=-1), "is not a list of sizes"),
    "a float": (lambda index: chunk(index).update(start=0.5), "is not a list of sizes"),
    "a huge shape": (lambda index: w(index).update(shape=[1 << 61, 4]), "do not make up its shape"),
    "past int64": (lambda index: w(index).update(shape=[1 << 63]), "is not a list of sizes"),
    "a huge chunk": (huge_chunk, "must lie within the file"),
    "outside": (lambda index: chunk(index).update(offsets=[1, 0]), "is outside its tensor"),
    "other dimensions": (lambda index: chunk(index).update(offsets=[0]), "zip"),
    "twice": (lambda index: w(index)["chunks"].append(dict(chunk(index))), "do not make up its shape"),
    "one half twice": (
        lambda index: halves(index, ([0, 0], [3, 2]), ([0, 0], [3, 2]), length=48), "size but overlap"
    ),
    "a column of both": (
        lambda index: halves(index, ([0, 0], [3, 3]), ([0, 2], [3, 1]), length=48), "size but overlap"
    ),
    "one place twice": (
        lambda index: halves(index, ([0, 0], [3, 2]), ([0, 2], [3, 2]), length=0), "holds two overlapping entries"
    ),
    "places that overlap": (
        lambda index: halves(index, ([0, 0], [3, 2]), ([0, 2], [3, 2]), length=47), "holds two overlapping entries"
    ),
    "a value in a tensor": (
        lambda index: index["entries"]["lr"].update(start=chunk(index)["start"] + 1, bytes=1), "two overlapping entries"
    ),
    "no chunks": (lambda index: w(index).update(chunks=[]), "do not make up its shape"),
    "no dtype": (lambda index: w(index).update(dtype="load"), "'load' is not a dtype"),
    "an odd dtype": (lambda index: w(index).update(dtype=[]), "unhashable"),
    "no places": (lambda index: index["entries"]["lr"].clear(), "KeyError 'start'"),
}  # fmt: skip


@pytest.mark.parametrize("harm", HARMS)
def test_an_index_that_cannot_be_right_is_refused_before_anything_is_loaded(harm, tmp_path, monkeypatch):
    change, said = HARMS[harm]
    changed(save(tmp_path), change)
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("something was loaded"))
    with pytest.raises(UserError, match=rf"because its index is not a checkpoint index: .*{said}") as error:
        Reader(tmp_path)
    assert str(error.value).isprintable()


@pytest.mark.parametrize("seed", range(4))
def test_chunks_overlap_if_and_only_if_two_have_a_value_in_common(seed):
    """Against the values of each chunk, of up to three axes; half of the cases are cuts of the whole tensor."""
    rng, found = random.Random(seed), Counter()
    for _ in range(200):
        shape = [rng.randint(0, 4) for _ in range(rng.randint(1, 3))]
        if rng.random() < 0.5:
            cuts = [sorted({0, length, rng.randint(0, length)}) for length in shape]
            boxes = list(itertools.product(*(itertools.pairwise(cut) for cut in cuts)))
            boxes += rng.sample(boxes, min(len(boxes), rng.randint(0, 1)))
            rng.shuffle(boxes)
        else:
            boxes = [
                [sorted(rng.choices(range(length + 1), k=2)) for length in shape] for _ in range(rng.randint(0, 5))
            ]
        chunks = [
            ChunkStorageMetadata(torch.Size(a for a, _ in box), torch.Size(b - a for a, b in box)) for box in boxes
        ]
        values = Counter(place for box in boxes for place in itertools.product(*(range(*side) for side in box)))
        expected = max(values.values(), default=0) < 2
        assert dcp_index.disjoint(chunks) == expected, boxes
        found[expected] += 1
    assert min(found.values()) > 20


def test_an_index_of_many_chunks_is_checked_quickly():
    """5,000 shards along either axis: not every pair of them is compared."""
    for axis in range(2):
        sizes = [1 if i == axis else 5000 for i in range(2)]
        offsets = ([place if i == axis else 0 for i in range(2)] for place in range(5000))
        chunks = [ChunkStorageMetadata(torch.Size(one), torch.Size(sizes)) for one in offsets]
        began = time.process_time()
        assert dcp_index.disjoint(chunks) and time.process_time() - began < 1


@pytest.mark.parametrize("data", [b"", b"{", b"[" * 100_000, b"\xff", b'{"format": 1}', b'{"format": 1, "entries": 3}'])
def test_bytes_that_are_no_index_are_refused(data, tmp_path):
    save(tmp_path)
    (tmp_path / "index.json").write_bytes(data)
    with pytest.raises(UserError, match="is not loaded"):
        Reader(tmp_path)


def test_the_index_of_torch_is_checked_like_the_own_one(tmp_path):
    save(tmp_path)
    (tmp_path / "index.json").unlink()
    real = pickle.loads((tmp_path / ".metadata").read_bytes())
    for change, said in (
        (lambda info: setattr(info, "relative_path", "../secret"), "is not a file in this folder"),
        (lambda info: setattr(info, "transform_descriptors", ["zstd"]), "written by a torch extension"),
        (lambda info: setattr(info, "length", 1 << 50), "must lie within the file"),
    ):
        harmed = copy.deepcopy(real)
        change(next(iter(harmed.storage_data.values())))
        (tmp_path / ".metadata").write_bytes(pickle.dumps(harmed))
        with pytest.raises(UserError, match=said):
            Reader(tmp_path)


def test_a_folder_that_is_written_again_has_the_index_of_what_is_there(tmp_path):
    save(tmp_path)
    other = {"model": {"v": torch.arange(100.0)}}
    checkpoint.save(other, storage_writer=Writer(tmp_path), no_dist=True)
    loaded = {"model": {"v": torch.zeros(100)}}
    checkpoint.load(loaded, storage_reader=Reader(tmp_path), planner=Planner(), no_dist=True)
    assert torch.equal(loaded["model"]["v"], torch.arange(100.0))


def test_a_tensor_that_is_something_else_in_the_file_is_not_loaded(tmp_path):
    """The file says otherwise than the index; torch's own check finds it."""
    save(tmp_path)
    place = chunk(json.loads((tmp_path / "index.json").read_text()))
    file = tmp_path / place["file"]
    other = io.BytesIO()
    torch.save({"w": 1}, other)
    content = bytearray(file.read_bytes())
    content[place["start"] : place["start"] + place["bytes"]] = other.getvalue().ljust(place["bytes"], b"\0")
    file.write_bytes(content[: file.stat().st_size])
    with pytest.raises(checkpoint.CheckpointException):
        load(tmp_path)
