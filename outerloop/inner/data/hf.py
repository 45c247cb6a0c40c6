"""Stream text from Hugging Face `datasets`. This is the only module that imports that package.

Examples are packed end to end into windows, in the dataset's own order, because a shuffle buffer could not be resumed
exactly. Without a validation split, one text in twenty is held out, chosen by its hash, independently of worker and
shard. The saved position consists of the dataset's own position and the tokens that were read but not yet returned.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from outerloop.inner.data.corpus import check_rank, too_short_error
from outerloop.inner.data.partition import is_held_out
from outerloop.inner.data.tokenization import encoding
from outerloop.types import UserError

if TYPE_CHECKING:
    from datasets import IterableDataset
    from transformers import PreTrainedTokenizerBase


class HuggingFace:
    """A corpus that streams one Hugging Face dataset.

    Args:
        path: a dataset on the Hub, or the format of local files: parquet, json, text, csv.
        name: the dataset's configuration, such as sample-10BT; null: its default.
        split: the split to train on.
        data_files: training files, if the dataset is loaded from local files.
        text_column: the column that contains the text.
        val_split: the split to validate on; null: one text in twenty of the training split.
        val_files: validation files, if the dataset is loaded from local files.
        tokenizer: a local Hugging Face tokenizer folder; null: bytes are tokens.
    """

    def __init__(
        self,
        *,
        path: str,
        name: str | None,
        split: str,
        data_files: str | Sequence[str] | None,
        text_column: str,
        val_split: str | None,
        val_files: str | Sequence[str] | None,
        tokenizer: str | None,
    ) -> None:
        require_datasets()
        self.path, self.name, self.split, self.data_files = path, name, split, data_files
        self.text_column, self.val_split, self.val_files = text_column, val_split, val_files
        self.holds_out = val_split is None and val_files is None
        self.encoding = encoding(tokenizer)
        self.vocab_size = self.encoding.vocab_size
        self.what = f"data=hf ({path})"

    def stream(self, *, rank: int, size: int, batch: int, seq_len: int, seed: int) -> HuggingFaceStream:
        """Return the stream of one worker's batches, in the dataset's own order. `seed` has no effect."""
        check_rank(rank, size)
        what = f"{self.what}, training text of worker {rank} of {size}"
        return HuggingFaceStream(self, rank=rank, size=size, batch=batch, seq_len=seq_len, what=what)

    def validation(self, *, seq_len: int, sequences: int) -> Tensor:
        """Return the first windows of the validation text, because a stream cannot be sampled over its whole length."""
        packer, windows = Packer(seq_len), list[Tensor]()
        for tokens in self._validation_tokens():
            packer.add(tokens)
            while packer.ready() and len(windows) < sequences:
                windows.append(packer.window())
            if len(windows) == sequences:
                break
        if not windows:
            what = f"{self.what}, validation text"
            raise too_short_error(
                len(packer.pending), seq_len=seq_len, what=what, mend="use more text or set data.val_split=SPLIT"
            )
        return torch.stack(windows)

    def tokenizer(self) -> PreTrainedTokenizerBase:
        return self.encoding.tokenizer()

    def open_part(self, rank: int, size: int) -> IterableDataset:
        """Return worker `rank`'s part: whole files if `size` divides the file count, else every `size`-th example."""
        from datasets.distributed import split_dataset_by_node

        return split_dataset_by_node(self._open(self.split, self.data_files), rank, size)

    def training_tokens(self, dataset: IterableDataset) -> Iterator[np.ndarray]:
        """Yield each document's tokens. `dataset.state_dict()` is the position after the last document yielded."""
        for text in self._texts(dataset):
            if not (self.holds_out and is_held_out(text)):
                yield self.encoding.encode(text)

    def _validation_tokens(self) -> Iterator[np.ndarray]:
        if self.holds_out:
            texts: Iterator[bytes] = filter(is_held_out, self._texts(self._open(self.split, self.data_files)))
        else:
            texts = self._texts(self._open(self.val_split or self.split, self.val_files))
        return map(self.encoding.encode, texts)

    def _texts(self, dataset: IterableDataset) -> Iterator[bytes]:
        for example in dataset:
            text = example.get(self.text_column)
            if not isinstance(text, str):
                raise UserError(
                    f"data.text_column={self.text_column} contains no text in {self.path}; "
                    f"the columns are {', '.join(example)}; set data.text_column=COLUMN"
                )
            yield text.encode()

    def _open(self, split: str, files: str | Sequence[str] | None) -> IterableDataset:
        from datasets import load_dataset

        paths = list(files) if files is not None and not isinstance(files, str) else files
        try:
            return load_dataset(self.path, self.name, split=split, data_files=paths, streaming=True)
        except (FileNotFoundError, ValueError) as error:  # raised by datasets for a wrong path, name or split
            reason = str(error).strip().splitlines()[0]
            raise UserError(
                f"data.path={self.path} data.name={self.name or 'null'} data.split={split} cannot be opened: {reason} "
                "(for local files, set data.path=parquet data.data_files=[FILE,...])"
            ) from error


class Packer:
    """Joins documents end to end and cuts them into windows of seq_len + 1 tokens.

    The attribute `pending` (tokens not returned yet) is the whole state.
    """

    def __init__(self, seq_len: int) -> None:
        self.seq_len = seq_len
        self.pending = np.empty(0, dtype=np.int64)

    def add(self, tokens: np.ndarray) -> None:
        self.pending = np.concatenate([self.pending, tokens])

    def ready(self) -> bool:
        return len(self.pending) > self.seq_len

    def window(self) -> Tensor:
        """Return a window (seq_len + 1,) int64. Its last token is also the first of the next window."""
        window, self.pending = self.pending[: self.seq_len + 1], self.pending[self.seq_len :]
        return torch.from_numpy(window.copy())


class HuggingFaceStream:
    """The windows of one worker, packed from its part of the dataset, epoch after epoch.

    The dataset is reopened for each epoch. `set_epoch` is not used: it would redistribute the files, so that workers
    would train on other workers' parts.
    """

    def __init__(self, corpus: HuggingFace, *, rank: int, size: int, batch: int, seq_len: int, what: str) -> None:
        self.corpus, self.rank, self.size, self.batch, self.what = corpus, rank, size, batch, what
        self.packer = Packer(seq_len)
        self._enter(epoch=0, epoch_tokens=0, position=None)

    def next(self) -> Tensor:
        return torch.stack([self._window() for _ in range(self.batch)])

    def state_dict(self) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "epoch_tokens": self.epoch_tokens,
            "position": json.dumps(self.position),
            "pending": json.dumps(self.packer.pending.tolist()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.packer.pending = np.array(json.loads(state["pending"]), dtype=np.int64)
        position = json.loads(state["position"])
        self._enter(epoch=state["epoch"], epoch_tokens=state["epoch_tokens"], position=position)

    def _enter(self, *, epoch: int, epoch_tokens: int, position: dict[str, Any] | None) -> None:
        self.epoch, self.epoch_tokens, self.position = epoch, epoch_tokens, position
        self.dataset = self.corpus.open_part(self.rank, self.size)
        if position is not None:
            self.dataset.load_state_dict(position)
        self.documents = self.corpus.training_tokens(self.dataset)

    def _window(self) -> Tensor:
        while not self.packer.ready():
            tokens = next(self.documents, None)
            if tokens is None:
                self._next_epoch()
            else:
                self.packer.add(tokens)
                self.epoch_tokens += len(tokens)
                self.position = self.dataset.state_dict()
        return self.packer.window()

    def _next_epoch(self) -> None:
        if self.epoch_tokens <= self.packer.seq_len:
            mend = "use fewer workers or more text"
            raise too_short_error(self.epoch_tokens, seq_len=self.packer.seq_len, what=self.what, mend=mend)
        self._enter(epoch=self.epoch + 1, epoch_tokens=0, position=None)


def require_datasets() -> None:
    """Check that `datasets` is installed. Raises UserError with the install command if it is not."""
    try:
        import datasets  # noqa: F401
    except ImportError as error:
        raise UserError(
            "data=hf needs the package `datasets`, which is not installed; run pip install 'outerloop-train[hf]'"
        ) from error
