"""The index of a corpus: its name, its tokenizer, its numbers of tokens, and the sha256 of each token shard.

The corpus is one sequence of token ids, the training tokens followed by the validation tokens. It is stored as unsigned
little-endian integers of the smallest width (1, 2 or 4 bytes) that can represent `vocab_size` different ids. The bytes
are split into shards of SHARD_BYTES; the last one may be shorter. So `vocab_size` and the numbers of tokens determine
the number of shards and the size of each.

The sha256 of the index identifies the corpus. It is a shared setting of the run (data.sha256).
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import asdict, dataclass

import msgpack

from outerloop.swarm.validation import MAX_AMOUNT, MalformedMessage, checked_int, fields, quote, unpacked

FORMAT = 1
SHARD_BYTES = 8 << 20
"""Size of every shard except the last: a multiple of every token width."""
MAX_SHARDS = 32_000
"""Maximum number of shards. A corpus of this many shards has 268 GB."""
MAX_INDEX_BYTES = 1 << 20
"""Maximum size of an index: enough for the hashes of MAX_SHARDS shards and for the other fields."""
MAX_VOCAB = 1 << 24
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_ .,:+-]{0,63}")
TOKENIZER = re.compile(r"|bytes|[0-9a-f]{64}")
"""Form of a tokenizer's identity: "bytes", the sha256 of its vocabulary, or "" if the tokenizer is unknown."""
FIELDS = ("format", "name", "vocab_size", "tokenizer", "train_tokens", "val_tokens", "shards")


@dataclass(frozen=True, kw_only=True)
class CorpusIndex:
    """The index of a corpus.

    name           name that the organizer of the run gave the corpus
    vocab_size     upper bound on the token ids (exclusive)
    tokenizer      identity of the tokenizer (see TOKENIZER)
    train_tokens   number of training tokens
    val_tokens     number of validation tokens, which follow the training tokens
    shards         sha256 of each shard
    """

    name: str
    vocab_size: int
    tokenizer: str
    train_tokens: int
    val_tokens: int
    shards: tuple[bytes, ...]

    @property
    def sha(self) -> bytes:
        """The sha256 of the index's bytes, which identifies the corpus."""
        return hashlib.sha256(self.to_bytes()).digest()

    @property
    def size_bytes(self) -> int:
        """Total size of all shards in bytes."""
        return (self.train_tokens + self.val_tokens) * token_bytes(self.vocab_size)

    def lengths(self) -> dict[bytes, int]:
        """Return sha256 -> length in bytes of each distinct shard, in order of first occurrence."""
        ends = range(SHARD_BYTES, self.size_bytes + SHARD_BYTES, SHARD_BYTES)
        pairs = zip(self.shards, ends, strict=True)
        return {sha: SHARD_BYTES - max(0, end - self.size_bytes) for sha, end in pairs}

    def to_bytes(self) -> bytes:
        """Return the bytes of the index: a msgpack map with the keys FIELDS."""
        return msgpack.packb({"format": FORMAT, **asdict(self), "shards": b"".join(self.shards)})

    @staticmethod
    def from_bytes(content: bytes) -> CorpusIndex:
        """Parse an index from another peer. Raises MalformedMessage if it is invalid."""
        if len(content) > MAX_INDEX_BYTES:
            raise MalformedMessage(f"the index of a corpus has at most {MAX_INDEX_BYTES} bytes; got {len(content)}")
        found = fields(unpacked(content, "the index of a corpus"), "the index of a corpus", FIELDS)
        checked_int(found["format"], "the format of a corpus", minimum=FORMAT, maximum=FORMAT)
        counts = {
            name: checked_int(found[name], f"the {name} of a corpus", minimum=1, maximum=MAX_AMOUNT)
            for name in ("train_tokens", "val_tokens")
        }
        vocab_size = checked_int(found["vocab_size"], "the vocab_size of a corpus", minimum=1, maximum=MAX_VOCAB)
        return CorpusIndex(
            name=_text(found["name"], NAME, "the name of a corpus"),
            vocab_size=vocab_size,
            tokenizer=_text(found["tokenizer"], TOKENIZER, "the tokenizer of a corpus"),
            shards=_shards(found["shards"], sum(counts.values()) * token_bytes(vocab_size)),
            **counts,
        )


def token_bytes(vocab_size: int) -> int:
    """Return the width of a token id in bytes: 1 up to 256 ids, 2 up to 65,536, else 4."""
    return 1 if vocab_size <= 1 << 8 else 2 if vocab_size <= 1 << 16 else 4


def _text(value: object, form: re.Pattern[str], what: str) -> str:
    if type(value) is not str or not form.fullmatch(value):
        raise MalformedMessage(f"{what} must have the form {form.pattern}; got {quote(value)}")
    return value


def _shards(value: object, size_bytes: int) -> tuple[bytes, ...]:
    """Return the hashes of the shards of a corpus of `size_bytes`, after checking their number."""
    number = -(-size_bytes // SHARD_BYTES)
    if number > MAX_SHARDS:
        raise MalformedMessage(f"a corpus has at most {MAX_SHARDS} shards of {SHARD_BYTES} bytes; got {number}")
    if type(value) is not bytes or len(value) != 32 * number:
        raise MalformedMessage(
            f"a corpus of {size_bytes} bytes must have {number} shard hashes of 32 bytes; got {quote(value)}"
        )
    shards = tuple(value[start : start + 32] for start in range(0, len(value), 32))
    if size_bytes % SHARD_BYTES and shards[-1] in shards[:-1]:
        raise MalformedMessage("the last shard of a corpus has the sha256 of another shard, although it is shorter")
    return shards
