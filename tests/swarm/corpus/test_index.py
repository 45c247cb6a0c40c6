"""The index of a corpus: which bytes it has, and which of a liar are refused before anything is allocated."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from outerloop.swarm.corpus.index import MAX_INDEX_BYTES, MAX_SHARDS, SHARD_BYTES, CorpusIndex, token_bytes
from outerloop.swarm.validation import MalformedMessage
from tests.support.swarm.corpus_scene import INDEX, SHARDS


def changed(**changes: Any) -> bytes:
    return msgpack.packb(msgpack.unpackb(INDEX.to_bytes()) | changes)


def test_an_index_is_read_back_and_states_the_size_of_every_shard() -> None:
    assert CorpusIndex.from_bytes(INDEX.to_bytes()) == INDEX
    assert INDEX.size_bytes == 2 * SHARD_BYTES + 100
    assert INDEX.lengths() == {sha: len(shard) for sha, shard in zip(INDEX.shards, SHARDS, strict=True)}


def test_equal_shards_are_one_content() -> None:
    shards = (INDEX.shards[0],) * 3
    index = CorpusIndex.from_bytes(changed(train_tokens=3 * SHARD_BYTES - 1, val_tokens=1, shards=b"".join(shards)))
    assert index.lengths() == {INDEX.shards[0]: SHARD_BYTES} and index.shards == shards


@pytest.mark.parametrize(("vocab_size", "width"), [(2, 1), (256, 1), (257, 2), (65536, 2), (65537, 4), (1 << 24, 4)])
def test_tokens_have_the_smallest_width(vocab_size: int, width: int) -> None:
    assert token_bytes(vocab_size) == width and SHARD_BYTES % width == 0


def test_the_largest_index_fits_its_limit() -> None:
    shards = b"".join(number.to_bytes(32, "big") for number in range(MAX_SHARDS))
    content = changed(
        name="x" * 64, vocab_size=256, train_tokens=MAX_SHARDS * SHARD_BYTES - 1, val_tokens=1, shards=shards
    )
    assert len(content) < MAX_INDEX_BYTES and len(CorpusIndex.from_bytes(content).shards) == MAX_SHARDS


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "unreadable"),
        (msgpack.packb([1]), "must be a map"),
        (bytes(MAX_INDEX_BYTES + 1), "at most"),
        (changed(more=1), "keys"),
        (changed(format=2), "format"),
        (changed(name="../../etc"), "name of a corpus"),
        (changed(name=""), "name of a corpus"),
        (changed(name="a\nb"), "name of a corpus"),
        (changed(tokenizer="gpt2"), "tokenizer of a corpus"),
        (changed(vocab_size=0), "vocab_size"),
        (changed(vocab_size=1 << 40), "vocab_size"),
        (changed(vocab_size=257), "must have 5 shard hashes"),
        (changed(train_tokens=0), "train_tokens"),
        (changed(train_tokens=True), "train_tokens"),
        (changed(val_tokens=0), "val_tokens"),
        (changed(train_tokens=1 << 61), "at most 32000 shards"),
        (changed(train_tokens=1), "must have 1 shard hashes"),
        (changed(shards=b"".join(INDEX.shards[:2])), "must have 3 shard hashes"),
        (changed(shards=["x"] * 3), "must have 3 shard hashes"),
        (changed(shards=INDEX.shards[0] * 3), "last shard"),
    ],
)
def test_any_other_index_is_refused(content: bytes, reason: str) -> None:
    with pytest.raises(MalformedMessage, match=reason):
        CorpusIndex.from_bytes(content)
