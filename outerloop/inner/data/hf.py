"""Stream text from Hugging Face `datasets`. This is the only module that imports that package.

Without a validation split, one text in twenty is held out, chosen by its hash, independently of worker and shard. The
order in which a worker reads the texts is described in hf_stream.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from outerloop.inner.data.corpus import check_rank, too_short_error
from outerloop.inner.data.file_patterns import left_out, match_files
from outerloop.inner.data.fingerprint import fingerprint_of
from outerloop.inner.data.hf_stream import HuggingFaceStream, OwnOrder, Packer, Unreachable, WorkerPart
from outerloop.inner.data.partition import is_held_out
from outerloop.inner.data.tokenization import encoding
from outerloop.types import UserError

if TYPE_CHECKING:
    from datasets import IterableDataset
    from transformers import PreTrainedTokenizerBase

FORMATS = ("arrow", "csv", "json", "parquet", "text")
"""Values of data.path for which data_files are local files or addresses."""
NETWORK_PACKAGES = ("aiohttp", "httpcore", "httpx", "huggingface_hub", "requests", "urllib3")
MIN_PARTS = 16
"""Smallest number of parts in which a late joiner reads the text, one after the other.

If the dataset has at least as many files, a part is a file. Otherwise it is every n-th example, so that few late
joiners read the same text. Reading one part then downloads the text of all parts.
"""


class HuggingFace:
    """A corpus that streams one Hugging Face dataset.

    Args:
        path: a dataset on the Hub, or the format of local files: parquet, json, text, csv.
        name: the dataset's configuration, such as sample-10BT; null: its default.
        split: the split to train on.
        data_files: training files, if the dataset is loaded from local files. Those that are also in `val_files` are
            left out.
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
        self.notes: list[str] = []
        if path in FORMATS and (val := local_files(val_files)) and (training := local_files(data_files)):
            kept, self.notes = left_out(training, val)
            self.data_files = [str(file) for file in kept] if self.notes else data_files
        self.holds_out = val_split is None and val_files is None
        self.encoding = encoding(tokenizer)
        self.vocab_size = self.encoding.vocab_size
        self.what = f"data=hf ({path})"

    def stream(self, *, rank: int, size: int, batch: int, seq_len: int, seed: int) -> HuggingFaceStream:
        """Return the stream of one worker's batches, in the dataset's own order. `seed` has no effect."""
        check_rank(rank, size)
        return HuggingFaceStream(self, WorkerPart(rank, size), batch=batch, seq_len=seq_len)

    def late_stream(self, *, batch: int, seq_len: int, seed: int) -> HuggingFaceStream:
        """Return the stream of a late joiner: the whole training text, in an order that `seed` determines."""
        order = OwnOrder(seed, max(self._open(self.split, self.data_files).n_shards, MIN_PARTS))
        return HuggingFaceStream(self, order, batch=batch, seq_len=seq_len)

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

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the text (fingerprint.py), or "" if it is not in local files."""
        files = [*local_files(self.data_files), *local_files(self.val_files)] if self.path in FORMATS else []
        return fingerprint_of(((file.name, file.stat().st_size) for file in files), len(files)) if files else ""

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
        """Yield each text. Rows without text are skipped. Raises Unreachable after a network error."""
        try:
            for example in dataset:
                text = example.get(self.text_column)
                if isinstance(text, str):
                    yield text.encode()
                elif text is not None or self.text_column not in example:
                    raise UserError(
                        f"data.text_column={self.text_column} contains no text in {self.path}; "
                        f"the columns are {', '.join(example)}; set data.text_column=COLUMN"
                    )
        except Exception as error:
            if is_network_error(error):
                raise self._unreachable(error) from error
            raise

    def _open(self, split: str, files: str | Sequence[str] | None) -> IterableDataset:
        from datasets import load_dataset

        if files is None and self.path in FORMATS:  # `datasets` would read the files in the current folder
            option = "data.data_files" if self.holds_out or self.data_files is None else "data.val_files"
            raise UserError(f"data.path={self.path} is a file format, but no files are given: set {option}=[FILE,...]")
        paths = list(files) if files is not None and not isinstance(files, str) else files
        try:
            return load_dataset(self.path, self.name, split=split, data_files=paths, streaming=True)
        except (FileNotFoundError, ValueError) as error:  # raised by datasets for a wrong path, name or split
            reason = str(error).strip().splitlines()[0]
            raise UserError(
                f"data.path={self.path} data.name={self.name or 'null'} data.split={split} cannot be opened: {reason} "
                "(for local files, set data.path=parquet data.data_files=[FILE,...])"
            ) from error
        except Exception as error:
            if is_network_error(error):
                raise self._unreachable(error) from error
            raise

    def _unreachable(self, error: Exception) -> Unreachable:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return Unreachable(
            f"data.path={self.path} cannot be reached: {reason}; check the network, and run the same command again to"
            " resume, or set data.path=parquet data.data_files=[FILE,...] for local files"
        )


def local_files(patterns: str | Sequence[str] | None) -> list[Path]:
    """Return the local files that match any of the patterns; none if a pattern matches no local file."""
    try:
        return match_files(patterns or [], option="data.data_files")
    except UserError:  # datasets reads it from elsewhere, or says what is wrong
        return []


def is_network_error(error: Exception) -> bool:
    """Return whether `datasets` raised this error because the Hub, or another server, did not deliver."""
    package = type(error).__module__.split(".")[0]
    return isinstance(error, ConnectionError | TimeoutError) or package in NETWORK_PACKAGES


def require_datasets() -> None:
    """Check that `datasets` is installed. Raises UserError with the install command if it is not."""
    try:
        import datasets  # noqa: F401
    except ImportError as error:
        raise UserError(
            "data=hf needs the package `datasets`, which is not installed; run pip install 'outerloop-train[hf]'"
        ) from error
