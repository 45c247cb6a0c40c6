"""Text -> token ids: the bytes themselves, or a tokenizer folder on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from outerloop.inner.data.byte_tokenizer import byte_tokenizer
from outerloop.types import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Encoding(Protocol):
    """How one document becomes tokens."""

    vocab_size: int

    def encode(self, document: bytes) -> np.ndarray:
        """UTF-8 bytes of one document -> its token ids and the end-of-text token."""
        ...

    def tokenizer(self) -> PreTrainedTokenizerBase: ...


class Bytes:
    """Token id = byte value; documents end with byte 0. Nothing to download, nothing to train."""

    vocab_size = 256

    def encode(self, document: bytes) -> np.ndarray:
        return np.frombuffer(document + b"\0", dtype=np.uint8)

    def tokenizer(self) -> PreTrainedTokenizerBase:
        return byte_tokenizer()


class LocalTokenizer:
    """A Hugging Face tokenizer folder. Documents end with its eos token, if it has one."""

    def __init__(self, folder: str) -> None:
        self._tokenizer = load_tokenizer(folder)
        self.vocab_size = len(self._tokenizer)
        eos = self._tokenizer.eos_token_id
        self._end = [] if eos is None else [eos]

    def encode(self, document: bytes) -> np.ndarray:
        text = document.decode("utf-8", errors="replace")
        ids = self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return np.array(ids + self._end, dtype=np.int32)

    def tokenizer(self) -> PreTrainedTokenizerBase:
        return self._tokenizer


def encoding(tokenizer: str | None) -> Encoding:
    """The encoding that `data.tokenizer` names; null means bytes."""
    return Bytes() if tokenizer is None else LocalTokenizer(tokenizer)


def load_tokenizer(folder: str) -> PreTrainedTokenizerBase:
    """The tokenizer saved in `folder`; never asks the network."""
    from transformers import AutoTokenizer  # here: the import takes a second that runs on bytes need not pay

    path = Path(folder).expanduser()
    try:
        return AutoTokenizer.from_pretrained(path.resolve(strict=True), local_files_only=True)
    except (OSError, ValueError) as error:  # what resolve and transformers raise where no tokenizer is
        raise UserError(
            f"data.tokenizer={folder} holds no Hugging Face tokenizer; give a folder that save_pretrained wrote, "
            "or type data.tokenizer=null"
        ) from error
