"""Convert text to token ids, either its bytes or the ids of a tokenizer from a local folder."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from outerloop.types import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


BYTES = "bytes"


class Encoding(Protocol):
    """Converts documents to token ids."""

    vocab_size: int
    identity: str
    """Identity of the tokenizer: "bytes", or the result of `identity_of`."""

    def encode(self, document: bytes) -> np.ndarray:
        """Return the token ids of one document, given as UTF-8 bytes, with the end-of-text token, if any, appended."""
        ...

    def tokenizer(self) -> PreTrainedTokenizerBase: ...


class Bytes:
    """An encoding whose token ids are byte values. Documents end with byte 0. It needs no download."""

    vocab_size = 256
    identity = BYTES

    def encode(self, document: bytes) -> np.ndarray:
        return np.frombuffer(document + b"\0", dtype=np.uint8)

    def tokenizer(self) -> PreTrainedTokenizerBase:
        return byte_tokenizer()


class LocalTokenizer:
    """The encoding of a Hugging Face tokenizer in a local folder. Documents end with its eos token, if it has one."""

    def __init__(self, folder: str) -> None:
        self._tokenizer = load_tokenizer(folder)
        ids = self._tokenizer.get_vocab().values()
        self.vocab_size = max(len(self._tokenizer), max(ids, default=-1) + 1)  # ids may have gaps
        self.identity = identity_of(self._tokenizer)
        eos = self._tokenizer.eos_token_id
        self._end = [] if eos is None else [eos]

    def encode(self, document: bytes) -> np.ndarray:
        text = document.decode("utf-8", errors="replace")
        ids = self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return np.array(ids + self._end, dtype=np.int32)

    def tokenizer(self) -> PreTrainedTokenizerBase:
        return self._tokenizer


def encoding(tokenizer: str | None) -> Encoding:
    """Return the encoding for the option `data.tokenizer`; None means bytes."""
    return Bytes() if tokenizer is None else LocalTokenizer(tokenizer)


def load_tokenizer(folder: str) -> PreTrainedTokenizerBase:
    """Load the tokenizer saved in `folder`, without network access. Raises UserError if it contains none."""
    from transformers import AutoTokenizer  # imported late: the import takes a second, and bytes need no tokenizer

    path = Path(folder).expanduser()
    try:
        return AutoTokenizer.from_pretrained(path.resolve(strict=True), local_files_only=True)
    except Exception as error:  # transformers raises many types, such as KeyError for a tokenizer.json of {}
        raise UserError(
            f"data.tokenizer={folder} contains no Hugging Face tokenizer; pass a folder written by save_pretrained, "
            "or set data.tokenizer=null"
        ) from error


def identity_of(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the identity of a tokenizer: the sha256 of its vocabulary, in hexadecimal."""
    vocabulary = json.dumps(sorted(tokenizer.get_vocab().items(), key=lambda item: item[1]))
    return hashlib.sha256(vocabulary.encode()).hexdigest()


def byte_tokenizer() -> PreTrainedTokenizerBase:
    """Return a new tokenizer whose token ids are byte values. It works with save_pretrained and AutoTokenizer."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast  # imported late: the import takes a second; only exports need it

    characters = byte_characters()
    core = Tokenizer(models.BPE(vocab={characters[byte]: byte for byte in range(256)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token=characters[0],
        pad_token=characters[0],
        split_special_tokens=True,  # otherwise the letter Ā in a text would be read as the end-of-text token "Ā"
        clean_up_tokenization_spaces=False,
    )


def byte_characters() -> list[str]:
    """Return the characters that a byte-level BPE uses for the bytes 0 .. 255, in this order."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    spare = iter(range(256, 512))
    return [chr(byte if byte in printable else next(spare)) for byte in range(256)]
