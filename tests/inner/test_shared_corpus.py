"""A published corpus serves the very windows that the organizer's own files give, on every machine."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from outerloop.inner.data import publish as publishing
from outerloop.inner.data.assignment import assigned_windows
from outerloop.inner.data.corpus import Corpus
from outerloop.inner.data.documents import Documents
from outerloop.inner.data.publish import Publishable, publish, refuse
from outerloop.inner.data.shared import SharedCorpus
from outerloop.inner.data.text import text
from outerloop.inner.data.tokenization import byte_tokenizer, identity_of
from outerloop.inner.data.tokens import TokenShards
from outerloop.swarm.corpus import index as index_file
from outerloop.swarm.corpus.folder import CorpusFolder
from outerloop.types import UserError

SHARD_BYTES = 4096
"""Size of a shard in this test, so that a small corpus has several."""


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (publishing, index_file):
        monkeypatch.setattr(module, "SHARD_BYTES", SHARD_BYTES)


def write_shard(path: Path, tokens: np.ndarray) -> None:
    header = np.zeros(256, dtype="<i4")
    header[:3] = 20240520, 1, len(tokens)
    path.write_bytes(header.tobytes() + tokens.astype("<u2").tobytes())


def token_files(folder: Path, *, val: bool, vocab_size: int = 50257) -> TokenShards:
    draws = np.random.default_rng(0)
    for name, count in (("a", 9001), ("b", 5003), ("val", 3001)):
        write_shard(folder / f"{name}.bin", draws.integers(0, 50257, count))
    files = [str(folder / f"{name}.bin") for name in "ab"]
    val_files = [str(folder / "val.bin")] if val else None
    return TokenShards(files=files, val_files=val_files, vocab_size=vocab_size, tokenizer=None)


def one_text(folder: Path) -> Documents:
    (folder / "one.txt").write_text("".join(f"<{i:06d}>" for i in range(3000)))
    return text(files=[str(folder / "one.txt")], tokenizer=None)


def read(folder: CorpusFolder) -> SharedCorpus:
    return SharedCorpus(sha256=folder.path.name, folder=str(folder.path.parent), tokenizer=None)


def batches(corpus: Corpus, rank: int, size: int, seed: int) -> torch.Tensor:
    stream = corpus.stream(rank=rank, size=size, batch=4, seq_len=64, seed=seed)
    return torch.cat([stream.next() for _ in range(30)])


@pytest.mark.parametrize("kind", ["tokens", "tokens and val_files", "text"])
def test_windows_are_those_of_the_files(kind: str, tmp_path: Path) -> None:
    own = one_text(tmp_path) if kind == "text" else token_files(tmp_path, val=kind != "tokens")
    folder = publish(own, name="books", folder=str(tmp_path / "cache"))
    shared = read(folder)
    assert len(folder.index.shards) > 3 and shared.vocab_size == own.vocab_size
    for rank, size, seed in ((0, 1, 0), (0, 3, 0), (2, 3, 7)):
        assert torch.equal(batches(shared, rank, size, seed), batches(own, rank, size, seed))
    assert torch.equal(shared.validation(seq_len=64, sequences=20), own.validation(seq_len=64, sequences=20))
    due = {"commit": bytes(32), "peer": "12D3", "numbers": range(50), "seq_len": 64}
    assert torch.equal(*(assigned_windows(one.training_text(), **due) for one in (shared, own)))


def test_a_stream_of_a_shared_corpus_resumes(tmp_path: Path) -> None:
    shared = read(publish(one_text(tmp_path), name="books", folder=str(tmp_path / "cache")))
    first, second = (shared.stream(rank=0, size=2, batch=4, seq_len=64, seed=3) for _ in range(2))
    for _ in range(5):
        first.next()
    second.load_state_dict(first.state_dict())
    assert torch.equal(first.next(), second.next())


def test_shards_are_the_plain_tokens_named_by_their_hash(tmp_path: Path) -> None:
    own = token_files(tmp_path, val=True)
    folder = publish(own, name="books", folder=str(tmp_path / "cache"))
    content = b"".join(folder.file(sha).read_bytes() for sha in folder.index.shards)
    train, val = own.tokens()
    assert content == np.concatenate([train[:], val[:]]).astype("<u2").tobytes()
    for sha in folder.index.shards:
        assert hashlib.sha256(folder.file(sha).read_bytes()).digest() == sha
    assert (folder.index.train_tokens, folder.index.val_tokens) == (14004, 3001)


def test_two_machines_with_the_same_files_publish_the_same_corpus(tmp_path: Path) -> None:
    own = token_files(tmp_path, val=False)
    one, other = (publish(own, name="books", folder=str(tmp_path / name)) for name in ("one", "other"))
    assert one.path.name == other.path.name
    assert publish(own, name="letters", folder=str(tmp_path / "one")).path.name != one.path.name


def test_many_texts_are_joined_in_the_order_of_their_names(tmp_path: Path) -> None:
    for number in range(80):
        (tmp_path / f"{number:03d}.txt").write_text(f"<{number:03d}>" * 60)
    own = text(files=[str(tmp_path / "*.txt")], tokenizer=None)
    shared = read(publish(own, name="books", folder=str(tmp_path / "cache")))
    training, validation = own.split() or ([], [])
    assert shared.train[:].tobytes() == b"".join(document.path.read_bytes() + b"\0" for document in training)
    assert shared.val[:].tobytes() == b"".join(document.path.read_bytes() + b"\0" for document in validation)


def test_bytes_have_their_tokenizer_and_another_must_have_the_same_vocabulary(tmp_path: Path) -> None:
    byte_tokenizer().save_pretrained(tmp_path / "bytes")
    shared = read(publish(one_text(tmp_path), name="books", folder=str(tmp_path / "cache")))
    found = shared.tokenizer()
    assert found is not None and found.get_vocab() == byte_tokenizer().get_vocab()
    tokenized = text(files=[str(tmp_path / "one.txt")], tokenizer=str(tmp_path / "bytes"))
    folder = publish(tokenized, name="books", folder=str(tmp_path / "cache"))
    assert folder.index.tokenizer == identity_of(byte_tokenizer())
    options = {"sha256": folder.path.name, "folder": str(tmp_path / "cache")}
    assert SharedCorpus(**options, tokenizer=None).tokenizer() is None
    assert SharedCorpus(**options, tokenizer=str(tmp_path / "bytes")).tokenizer() is not None
    unknown = publish(token_files(tmp_path, val=False), name="books", folder=str(tmp_path / "cache"))
    assert unknown.index.tokenizer == ""
    other = CorpusFolder.create(
        tmp_path / "cache" / "x",
        index_file.CorpusIndex(
            name="x", vocab_size=9, tokenizer="ab" * 32, train_tokens=1, val_tokens=1, shards=(bytes(32),)
        ),
    )
    path = other.path.rename(tmp_path / "cache" / other.index.sha.hex())
    with pytest.raises(UserError, match="a different vocabulary"):
        SharedCorpus(sha256=path.name, folder=str(path.parent), tokenizer=str(tmp_path / "bytes"))


def test_a_token_id_beyond_the_vocabulary_is_refused_before_anything_is_published(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"vocabulary size of 100; set data\.vocab_size=N"):
        publish(token_files(tmp_path, val=False, vocab_size=100), name="books", folder=str(tmp_path / "cache"))
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("wrong", [256, -1])
def test_a_token_id_that_does_not_fit_is_refused_instead_of_stored_as_another(wrong: int, tmp_path: Path) -> None:
    train, val = np.array([0, 255, 7]), np.array([1, wrong])
    own = SimpleNamespace(vocab_size=256, tokenizer_identity="", tokens=lambda: (train, val))
    with pytest.raises(UserError, match=f"token ids from .*{wrong}.* vocabulary size 256"):
        publish(own, name="books", folder=str(tmp_path / "cache"))
    assert not (tmp_path / "cache").exists()


def test_a_damaged_shard_is_published_again(tmp_path: Path) -> None:
    own = token_files(tmp_path, val=False)
    folder = publish(own, name="books", folder=str(tmp_path / "cache"))
    file = folder.file(folder.index.shards[1])
    content = file.read_bytes()
    file.write_bytes(content[::-1])
    publish(own, name="books", folder=str(tmp_path / "cache"))
    assert file.read_bytes() == content


def test_only_missing_shards_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = token_files(tmp_path, val=False)
    folder = publish(own, name="books", folder=str(tmp_path / "cache"))
    folder.file(folder.index.shards[1]).unlink()
    write, written = CorpusFolder.write, list[bytes]()

    def noted(self: CorpusFolder, sha: bytes, content: bytes) -> None:
        written.append(sha)
        write(self, sha, content)

    monkeypatch.setattr(CorpusFolder, "write", noted)
    publish(own, name="books", folder=str(tmp_path / "cache"))
    assert written == [folder.index.shards[1]] and not folder.missing()


def test_files_that_change_while_they_are_published_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, val = np.arange(SHARD_BYTES * 3) % 251, np.arange(100)
    own = SimpleNamespace(vocab_size=256, tokenizer_identity="", tokens=lambda: (train, val))
    create = CorpusFolder.create

    def change_then_create(*args: Any) -> CorpusFolder:
        train[SHARD_BYTES] += 1
        return create(*args)

    monkeypatch.setattr(CorpusFolder, "create", change_then_create)
    with pytest.raises(UserError, match="books changed while they were published: run the same command again"):
        publish(own, name="books", folder=str(tmp_path / "cache"))
    (folder,) = (tmp_path / "cache").iterdir()
    held = [file for file in folder.iterdir() if len(file.name) == 64]
    assert len(held) == 1 and hashlib.sha256(held[0].read_bytes()).hexdigest() == held[0].name


def test_an_exceeded_disk_quota_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse_write(self: CorpusFolder, sha: bytes, content: bytes) -> None:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(CorpusFolder, "write", refuse_write)
    with pytest.raises(UserError, match=r"cannot be written \(.*quota.*\): free some space"):
        publish(one_text(tmp_path), name="books", folder=str(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("name", "vocab_size", "train", "val", "reason"),
    [
        ("../x", 256, 1, 1, "corpus.share='../x' must be"),
        ("", 256, 1, 1, "corpus.share='' must be"),
        ("books", 256, 1, 0, "needs tokens of both kinds"),
        ("books", 1 << 25, 1, 1, "at most 16777216 ids"),
        ("books", 256, 32_000 * SHARD_BYTES, 1, "leave out some files"),
    ],
)
def test_what_cannot_be_shared_is_one_line(name: str, vocab_size: int, train: int, val: int, reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        refuse(SimpleNamespace(vocab_size=vocab_size), name, train, val)


def test_a_published_corpus_says_how_much_of_it_is_missing(tmp_path: Path) -> None:
    folder = publish(one_text(tmp_path), name="books", folder=str(tmp_path / "cache"))
    assert "books: 0.0 MB of tokens, in " in read(folder).what
    for sha in folder.index.shards:
        folder.file(sha).unlink()
    assert "of which 0.0 MB are to be downloaded to" in read(folder).what


def test_only_corpora_with_tokens_can_be_published(tmp_path: Path) -> None:
    assert isinstance(one_text(tmp_path), Publishable) and isinstance(token_files(tmp_path, val=False), Publishable)
    assert not isinstance(SimpleNamespace(vocab_size=3), Publishable)
