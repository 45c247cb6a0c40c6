"""The two promises of every corpus (parts are disjoint, a resumed stream goes on exactly), and the error messages."""

from __future__ import annotations

import json
import os
import re
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hydra.utils import instantiate
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from outerloop.inner.data.corpus import Corpus, Stream
from outerloop.inner.data.documents import Documents, is_fair
from outerloop.inner.data.file_patterns import left_out, match_files
from outerloop.inner.data.hf import require_datasets
from outerloop.inner.data.partition import balance_by_bytes, rank_span
from outerloop.inner.data.stdlib import stdlib
from outerloop.inner.data.text import text
from outerloop.inner.data.tokenization import byte_tokenizer, encoding
from outerloop.inner.data.tokens import TokenShards
from outerloop.inner.data.windows import WindowStream, spread_windows
from outerloop.types import UserError

os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers and datasets are first imported, which is later

CONFIGS = Path(__file__).parents[2] / "configs" / "data"
RECORD = 6
"""Every test corpus is made of records "<6 digits>": the digits name a record, so shards can be compared by content."""


def records(first: int, count: int) -> str:
    return "".join(f"<{i:0{RECORD}d}>" for i in range(first, first + count))


def records_in(windows: torch.Tensor) -> set[str]:
    """Every record that lies whole in a window of bytes."""
    return {found for row in windows.tolist() for found in re.findall(r"<(\d{6})>", bytes(row).decode())}


def read_some(corpus: Corpus, rank: int, size: int, batches: int = 40) -> set[str]:
    """What a worker sees over a good many epochs of these small corpora."""
    stream = corpus.stream(rank=rank, size=size, batch=8, seq_len=64, seed=0)
    return records_in(torch.cat([stream.next() for _ in range(batches)]))


def take(stream: Stream, batches: int) -> list[list[list[int]]]:
    return [stream.next().tolist() for _ in range(batches)]


def write_texts(folder: Path, count: int) -> None:
    folder.mkdir(exist_ok=True)
    for i in range(count):
        (folder / f"{i:03d}.txt").write_text(records(i * 1000, 30))


def write_shard(path: Path, tokens: np.ndarray, magic: int = 20240520, version: int = 1) -> Path:
    header = np.zeros(256, dtype=np.int32)
    header[:3] = magic, version, len(tokens)
    path.write_bytes(header.tobytes() + tokens.tobytes())
    return path


def write_parquet(path: Path, first: int, rows: int) -> Path:
    pytest.importorskip("datasets")
    parquet = pytest.importorskip("pyarrow.parquet")
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table({"id": list(range(rows)), "text": [records((first + i) * 10, 3) for i in range(rows)]})
    parquet.write_table(table, path, row_group_size=16)
    return path


def many_files(tmp: Path) -> Corpus:
    write_texts(tmp / "many", 80)
    return text(files=[str(tmp / "many" / "*.txt")], tokenizer=None)


def one_file(tmp: Path) -> Corpus:
    (tmp / "one.txt").write_text(records(0, 2000))
    return text(files=str(tmp / "one.txt"), tokenizer=None)


def two_shards(tmp: Path) -> Corpus:
    data = np.frombuffer(records(0, 2000).encode(), dtype=np.uint8)
    write_shard(tmp / "0.bin", data[:9001].astype(np.uint16))
    write_shard(tmp / "1.bin", data[9001:].astype(np.uint32), 20240801, 7)
    return TokenShards(files=[f"{tmp}/*.bin"], val_files=None, vocab_size=128, tokenizer=None)


def parquet_files(tmp: Path) -> Corpus:
    files = [str(write_parquet(tmp / f"{i}.parquet", i * 60, 60)) for i in range(4)]
    config = OmegaConf.load(CONFIGS / "hf.yaml")
    return instantiate(config, path="parquet", data_files=files)


@pytest.fixture(params=[many_files, one_file, two_shards, parquet_files])
def corpus(request: pytest.FixtureRequest, tmp_path: Path) -> Corpus:
    make: Callable[[Path], Corpus] = request.param
    return make(tmp_path)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_workers_and_validation_share_no_record(corpus: Corpus, size: int) -> None:
    parts = [read_some(corpus, rank, size) for rank in range(size)]
    parts.append(records_in(corpus.validation(seq_len=64, sequences=1000)))
    assert all(parts)
    assert sum(map(len, parts)) == len(set.union(*parts))


def test_the_workers_together_see_everything(tmp_path: Path) -> None:
    corpus = one_file(tmp_path)
    seen = set.union(*(read_some(corpus, rank, 2) for rank in range(2)))
    assert len(seen | records_in(corpus.validation(seq_len=64, sequences=1000))) > 0.98 * 2000


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("cursor", [0, 1, 23, 100])
def test_a_resumed_stream_goes_on_exactly(corpus: Corpus, cursor: int, size: int) -> None:
    def stream() -> Stream:
        return corpus.stream(rank=1, size=size, batch=3, seq_len=32, seed=7)

    whole = stream()
    take(whole, cursor)
    state = json.loads(json.dumps(whole.state_dict()))
    resumed = stream()
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    assert take(resumed, 120) == take(whole, 120)
    assert whole.state_dict() == resumed.state_dict()
    assert whole.state_dict()["epoch"] > 0


def test_validation_is_the_same_for_everyone_and_bounded(corpus: Corpus) -> None:
    windows = corpus.validation(seq_len=32, sequences=4)
    assert windows.shape == (4, 33) and windows.dtype == torch.int64
    assert torch.equal(windows, corpus.validation(seq_len=32, sequences=4))


def test_batches_have_the_promised_shape(corpus: Corpus) -> None:
    batch = corpus.stream(rank=0, size=2, batch=3, seq_len=32, seed=0).next()
    assert batch.shape == (3, 33) and batch.dtype == torch.int64
    assert int(batch.min()) >= 0 and int(batch.max()) < corpus.vocab_size


def test_an_impossible_rank_is_refused(corpus: Corpus) -> None:
    for rank, size in [(2, 2), (-1, 2), (0, 0)]:
        with pytest.raises(UserError, match=f"worker rank {rank} is out of range: with {size} workers"):
            corpus.stream(rank=rank, size=size, batch=1, seq_len=8, seed=0)


def test_text_that_is_too_short_says_what_to_type(corpus: Corpus) -> None:
    with pytest.raises(UserError, match=r"tokens, but a sequence needs seq_len \+ 1 = 1000001; set inner.seq_len=\d+"):
        corpus.stream(rank=0, size=2, batch=1, seq_len=1_000_000, seed=0).next()
    with pytest.raises(UserError, match=r"validation .* tokens, but a sequence needs"):
        corpus.validation(seq_len=1_000_000, sequences=1)


# windows


@given(tokens=st.integers(2, 200), seq_len=st.integers(1, 50), seed=st.integers(0, 9))
def test_an_epoch_predicts_each_token_once_at_most(tokens: int, seq_len: int, seed: int) -> None:
    if tokens <= seq_len:
        return
    stream = WindowStream(np.arange(tokens), batch=1, seq_len=seq_len, seed=seed, what="")
    for epoch in range(3):
        targets: list[int] = []
        while stream.epoch == epoch and stream.cursor < len(stream.order):
            targets += stream.next()[0, 1:].tolist()
        assert len(targets) == len(set(targets)) > tokens - 1 - 2 * seq_len
        stream.load_state_dict({"epoch": epoch + 1, "cursor": 0})


def test_epochs_differ_in_order_and_phase() -> None:
    stream = WindowStream(np.arange(1000), batch=1, seq_len=10, seed=0, what="")
    cuts = []
    for epoch in range(5):
        stream.load_state_dict({"epoch": epoch, "cursor": 0})
        cuts.append((stream.phase, tuple(stream.order)))
    assert len({phase for phase, _ in cuts}) > 2 and len({order for _, order in cuts}) == 5


def test_validation_windows_reach_from_beginning_to_end() -> None:
    starts = spread_windows(np.arange(1001), seq_len=10, sequences=4, what="")[:, 0].tolist()
    assert starts == [0, 250, 500, 750]


# who gets what


@given(st.dictionaries(st.text(min_size=1), st.integers(0, 10**6), max_size=40), st.integers(1, 7))
def test_deal_gives_everything_once_and_fairly(sizes: dict[str, int], workers: int) -> None:
    hands = balance_by_bytes(sizes, workers)
    assert sorted(name for hand in hands for name in hand) == sorted(sizes)
    loads = [sum(sizes[name] for name in hand) for hand in hands]
    assert max(loads) - min(loads) <= max(sizes.values(), default=0)


@given(st.integers(0, 10**6), st.integers(1, 20))
def test_spans_tile(tokens: int, size: int) -> None:
    spans = [rank_span(tokens, rank, size) for rank in range(size)]
    assert [s.start for s in spans] == [0] + [s.stop for s in spans[:-1]] and spans[-1].stop == tokens


@pytest.fixture(scope="module")
def library() -> Documents:
    return stdlib(non_iid=False)


def test_stdlib_splits_by_file_and_deals_evenly(library: Documents) -> None:
    split = library.split()
    assert split is not None
    names = [{document.name for document in part} for part in split]
    assert not names[0] & names[1] and len(names[0] | names[1]) == len(library.documents)
    again = stdlib(non_iid=False).split()
    assert again == split
    shares = library.documents_by_worker(split[0], 8)
    assert is_fair(shares) and sum(map(len, shares)) == len(split[0])


def test_stdlib_holds_sources_and_no_tests(library: Documents) -> None:
    names = {document.name for document in library.documents}
    assert {"argparse.py", "json/decoder.py"} <= names and library.vocab_size == 256
    assert not any({"test", "tests", "site-packages", "__pycache__"} & set(name.split("/")) for name in names)
    assert b"def " in bytes(library.validation(seq_len=256, sequences=64).flatten().tolist())
    assert library.stream(rank=3, size=4, batch=2, seq_len=128, seed=1).next().shape == (2, 129)


def test_non_iid_workers_get_whole_packages() -> None:
    corpus = stdlib(non_iid=True)
    split = corpus.split()
    assert split is not None
    packages = [
        {document.name.split("/")[0] for document in share} for share in corpus.documents_by_worker(split[0], 4)
    ]
    assert sum(map(len, packages)) == len(set.union(*packages))
    with pytest.raises(UserError, match=r"data.non_iid=true .* 9999 workers, but only \d+ packages; use at most \d+"):
        corpus.stream(rank=0, size=9999, batch=1, seq_len=8, seed=0)


def test_the_split_of_a_file_does_not_depend_on_where_it_lies(tmp_path: Path) -> None:
    held_out = []
    for place in ("here", "there"):
        write_texts(tmp_path / place, 80)
        split = text(files=[f"{tmp_path}/{place}/*.txt"], tokenizer=None).split()
        assert split is not None
        held_out.append([document.name for document in split[1]])
    assert held_out[0] == held_out[1] != []


def test_more_workers_than_files_share_by_position(tmp_path: Path) -> None:
    write_texts(tmp_path / "few", 3)
    corpus = text(files=[f"{tmp_path}/few/*"], tokenizer=None)
    parts = [read_some(corpus, rank, 5) for rank in range(5)]
    assert all(parts) and sum(map(len, parts)) == len(set.union(*parts))


def test_a_glob_without_files_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"data.files: .*\*.nope matches no file"):
        text(files=[str(tmp_path / "*.nope")], tokenizer=None)
    with pytest.raises(UserError, match=r"data.files is empty; set data.files="):
        text(files=[], tokenizer=None)


def test_a_file_name_that_is_not_utf_8_is_read(tmp_path: Path) -> None:
    for name in (b"caf\xe9.txt", b"plain.txt"):
        Path(os.fsdecode(bytes(tmp_path) + b"/" + name)).write_text(records(0, 500))
    corpus = text(files=[str(tmp_path / "*.txt")], tokenizer=None)
    assert corpus.validation(seq_len=8, sequences=1).shape == (1, 9)


def test_a_text_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text(records(0, 500))
    corpus = text(files=[str(tmp_path / "one.txt")], tokenizer=None)
    (tmp_path / "one.txt").unlink()
    with pytest.raises(UserError, match=r"one.txt cannot be read \(No such file or directory\): let this user read"):
        corpus.validation(seq_len=8, sequences=1)


# tokenizers


TOKENIZER = byte_tokenizer()


@settings(max_examples=200)
@given(st.text())
def test_byte_tokenizer_round_trips(words: str) -> None:
    ids = TOKENIZER(words)["input_ids"]
    assert ids == list(words.encode())
    assert TOKENIZER.decode(ids) == words


def test_byte_tokenizer_survives_saving(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    TOKENIZER.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    words = "Ā is the letter that stands for byte \0, Ġ for space . 🙂"
    assert loaded(words)["input_ids"] == list(words.encode()) and loaded.decode(list(words.encode())) == words
    assert (len(loaded), loaded.eos_token_id, loaded.pad_token_id) == (256, 0, 0)


def test_text_through_a_local_tokenizer(tmp_path: Path) -> None:
    TOKENIZER.save_pretrained(tmp_path / "tokenizer")
    (tmp_path / "one.txt").write_text(records(0, 500))
    files = [str(tmp_path / "one.txt")]
    by_tokenizer = text(files=files, tokenizer=str(tmp_path / "tokenizer"))
    windows = by_tokenizer.validation(seq_len=32, sequences=3)
    assert torch.equal(windows, text(files=files, tokenizer=None).validation(seq_len=32, sequences=3))
    with pytest.raises(UserError, match=r"data.tokenizer=.* contains no Hugging Face tokenizer"):
        text(files=files, tokenizer=str(tmp_path / "nowhere"))


def test_a_tokenizer_with_gaps_in_its_ids_has_a_vocabulary_up_to_the_largest_id(tmp_path: Path) -> None:
    core = Tokenizer(models.WordLevel({"a": 0, "b": 1, "c": 7, "[UNK]": 8}, unk_token="[UNK]"))
    PreTrainedTokenizerFast(tokenizer_object=core, unk_token="[UNK]").save_pretrained(tmp_path)
    tokenizer = encoding(str(tmp_path))
    assert tokenizer.vocab_size == 9 and tokenizer.encode(b"c").max() == 7


@pytest.mark.parametrize("content", ["{}", "null"])
def test_a_damaged_tokenizer_is_named(tmp_path: Path, content: str) -> None:
    TOKENIZER.save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(UserError, match=rf"data.tokenizer={tmp_path} contains no Hugging Face tokenizer"):
        encoding(str(tmp_path))


# token shards


def test_shards_join_without_a_seam(tmp_path: Path) -> None:
    corpus = two_shards(tmp_path)
    assert isinstance(corpus, TokenShards)
    data = records(0, 2000).encode()
    for start, stop in [(0, 5), (8990, 9010), (9001, 9002), (9000, 9001), (15000, 15100)]:
        assert bytes(corpus.train[start:stop].astype(np.uint8)) == data[start:stop]
        assert bytes(corpus.train.view(slice(3, None))[start:stop].astype(np.uint8)) == data[start + 3 : stop + 3]


def test_an_empty_slice_of_shards_has_no_tokens_and_empty_shards_are_skipped(tmp_path: Path) -> None:
    for name, tokens in [("0", [1, 2]), ("1", []), ("2", []), ("3", [3]), ("4", [])]:
        write_shard(tmp_path / f"{name}.bin", np.array(tokens, dtype=np.uint16))
    tokens = TokenShards(files=[f"{tmp_path}/*.bin"], val_files=[f"{tmp_path}/1.bin"], vocab_size=4, tokenizer=None)
    assert tokens.train[0:3].tolist() == [1, 2, 3] and tokens.train[1:3].tolist() == [2, 3]
    for nothing in (tokens.train[1:1], tokens.train[2:1], tokens.train[3:9], tokens.val[0:5]):
        assert nothing.tolist() == [] and nothing.dtype == np.uint16
    assert len(tokens.train.view(slice(1, 1))) == 0 and tokens.train.view(slice(1, 1))[:].tolist() == []


def test_a_large_shard_is_never_loaded_whole(tmp_path: Path) -> None:
    path = write_shard(tmp_path / "large.bin", np.zeros(0, dtype=np.uint16))
    tokens = 100_000_000
    header = np.array([20240520, 1, tokens], dtype=np.int32)
    with path.open("r+b") as file:
        file.write(header.tobytes())
        file.truncate(1024 + 2 * tokens)
    tracemalloc.start()
    corpus = TokenShards(files=[str(path)], val_files=None, vocab_size=10, tokenizer=None)
    corpus.stream(rank=1, size=2, batch=4, seq_len=10_000, seed=0).next()
    corpus.validation(seq_len=1000, sequences=4)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 5e6 < 2 * tokens


def test_validation_shards_can_be_files_of_their_own(tmp_path: Path) -> None:
    train = write_shard(tmp_path / "train.bin", np.full(500, 1, dtype=np.uint16))
    val = write_shard(tmp_path / "val.bin", np.full(500, 2, dtype=np.uint16))
    corpus = TokenShards(files=[str(train)], val_files=[str(val)], vocab_size=3, tokenizer=None)
    assert set(corpus.validation(seq_len=10, sequences=99).flatten().tolist()) == {2}
    assert len(corpus.train) == 500 and corpus.tokenizer() is None


def test_validation_shards_in_the_folder_of_the_training_shards_are_left_out(tmp_path: Path) -> None:
    for name, token in [("train_0", 1), ("train_1", 1), ("val", 2)]:
        write_shard(tmp_path / f"{name}.bin", np.full(500, token, dtype=np.uint16))
    (tmp_path / "link.bin").symlink_to(tmp_path / "val.bin")

    def opened(val: str) -> TokenShards:
        return TokenShards(files=[f"{tmp_path}/*.bin"], val_files=[val], vocab_size=3, tokenizer=None)

    for val in (f"{tmp_path}/val.bin", f"{tmp_path}/link.bin", f"{tmp_path.parent}/./{tmp_path.name}/val.bin"):
        corpus = opened(val)
        assert set(corpus.train[:].tolist()) == {1} and len(corpus.train) == 1000 and len(corpus.val) == 500
        assert len(corpus.notes) == 1 and "link.bin, also in data.val_files: left out" in corpus.notes[0]
    with pytest.raises(UserError, match=r"all of data.files, .* are also in data.val_files: set"):
        opened(f"{tmp_path}/*.bin")
    assert (
        "and 2 more"
        in left_out([*tmp_path.glob("*_*.bin"), tmp_path / "val.bin", tmp_path / "x"], [*tmp_path.glob("*.bin")])[1][0]
    )


def test_a_file_with_several_names_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("some text")
    (tmp_path / "b.txt").symlink_to(tmp_path / "a.txt")
    (tmp_path / "aa.txt").write_text("another text")
    found = match_files([f"{tmp_path}/*.txt", f"{tmp_path}/../{tmp_path.name}/aa.txt"], option="data.files")
    assert [file.name for file in found] == ["aa.txt", "a.txt"] and ".." in found[0].parts
    assert match_files(f"{tmp_path}/*", option="data.files") == [tmp_path / "a.txt", tmp_path / "aa.txt"]


def test_files_that_are_no_shards_are_named(tmp_path: Path) -> None:
    def opened(path: Path) -> TokenShards:
        return TokenShards(files=[str(path)], val_files=None, vocab_size=100, tokenizer=None)

    wrong = write_shard(tmp_path / "wrong.bin", np.zeros(9, dtype=np.uint16), magic=20240522)
    with pytest.raises(UserError, match=r"wrong.bin: magic 20240522 version 1 is not an llm.c token shard"):
        opened(wrong)
    (tmp_path / "tiny.bin").write_bytes(b"abc")
    with pytest.raises(UserError, match=r"tiny.bin: magic 0"):
        opened(tmp_path / "tiny.bin")
    cut = write_shard(tmp_path / "cut.bin", np.zeros(900, dtype=np.uint16))
    cut.write_bytes(cut.read_bytes()[:-20])
    with pytest.raises(UserError, match=r"cut.bin: the header states 900 tokens, but the file has 890"):
        opened(cut)
    for stated in (-5, 890):
        header = np.array([20240520, 1, stated], dtype=np.int32).tobytes()
        full = write_shard(tmp_path / "full.bin", np.zeros(900, dtype=np.uint16))
        full.write_bytes(header + full.read_bytes()[len(header) :])
        with pytest.raises(UserError, match=rf"full.bin: the header states {stated} tokens, but the file has 900"):
            opened(full)
    large = write_shard(tmp_path / "ids.bin", np.full(900, 100, dtype=np.uint16))
    with pytest.raises(UserError, match=r"ids.bin: token id 100 is not below .* size of 100; set data.vocab_size=N"):
        opened(large).validation(seq_len=8, sequences=1)


# Hugging Face datasets


def hf(tmp_path: Path, **options: object) -> Corpus:
    path = write_parquet(tmp_path / "x.parquet", 0, 60)
    config = OmegaConf.load(CONFIGS / "hf.yaml")
    return instantiate(config, path="parquet", **{"data_files": str(path), **options})


def test_hf_workers_keep_their_part_in_every_epoch(tmp_path: Path) -> None:
    parts = [read_some(parquet_files(tmp_path), rank, 4, batches=20) for rank in range(4)]
    assert sum(map(len, parts)) == len(set.union(*parts))


def test_hf_validates_on_files_of_their_own(tmp_path: Path) -> None:
    val = write_parquet(tmp_path / "val.parquet", 900, 20)
    corpus = hf(tmp_path, val_files=[str(val)])
    assert min(records_in(corpus.validation(seq_len=64, sequences=9))) >= "009000"
    assert len(read_some(corpus, 0, 1)) == 60 * 3


def test_hf_mistakes_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"data.text_column=body contains no text in parquet; the columns are id, text"):
        hf(tmp_path, text_column="body").stream(rank=0, size=1, batch=1, seq_len=8, seed=0).next()
    with pytest.raises(UserError, match=r"data.split=nope cannot be opened"):
        hf(tmp_path, split="nope").stream(rank=0, size=1, batch=1, seq_len=8, seed=0)
    with pytest.raises(UserError, match=r"data.path=parquet .* cannot be opened"):
        hf(tmp_path, data_files="nowhere.parquet").stream(rank=0, size=1, batch=1, seq_len=8, seed=0)


def test_hf_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(
        UserError, match=r"data=hf needs the package `datasets`, .* run pip install 'outerloop-train\[hf\]'"
    ):
        require_datasets()


# configs


@pytest.mark.parametrize("name", ["stdlib", "text", "tokens", "hf"])
def test_a_config_names_every_option(name: str, tmp_path: Path) -> None:
    if name == "hf":
        pytest.importorskip("datasets")
    write_shard(tmp_path / "x.bin", np.zeros(9, dtype=np.uint16))
    config = OmegaConf.load(CONFIGS / f"{name}.yaml")
    overrides = {"files": [str(tmp_path / "x.bin")]} if "files" in config else {}
    assert instantiate(config, **overrides).vocab_size == (50257 if name == "tokens" else 256)
