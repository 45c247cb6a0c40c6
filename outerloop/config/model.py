"""Build the model of a run, and check that it fits the data."""

from __future__ import annotations

from itertools import chain

import torch
from omegaconf import DictConfig
from torch.nn import Module

from outerloop.config.instantiate import make
from outerloop.inner.data.corpus import Corpus
from outerloop.replica.island import to_float32
from outerloop.types import UserError


def make_model(config: DictConfig, corpus: Corpus) -> Module:
    """Return the model with seeded initial weights, which are identical on identical hardware (see initial_state.py).

    Trainable weights are at least float32, also if they were loaded in a lower precision.

    Raises UserError if the model's vocabulary is smaller than the data's, if its maximum sequence length is less than
    inner.seq_len, or if one of these options is not a whole number.
    """
    torch.manual_seed(config.seed)
    model = make(model_options(config, corpus))
    check_vocabulary(model, corpus)
    check_positions(model, config.inner.seq_len)
    train_in_float32(model)
    return model


def model_options(config: DictConfig, corpus: Corpus) -> DictConfig:
    """Return the options of the model, with the data's vocabulary size if it has none.

    Raises UserError in the cases of `make_model` that the options of a built-in model decide.
    """
    node = config.model.copy()
    if "vocab_size" in node:
        if not isinstance(node.vocab_size, int | None):
            raise UserError(
                f"model.vocab_size={node.vocab_size} must be a whole number, or null for the data's:"
                f" set model.vocab_size={corpus.vocab_size}"
            )
        node.vocab_size = node.vocab_size or corpus.vocab_size
        if node.vocab_size < corpus.vocab_size:
            raise UserError(
                f"model.vocab_size={node.vocab_size} is smaller than the data's {corpus.vocab_size}:"
                f" set model.vocab_size={corpus.vocab_size}"
            )
    if "max_seq_len" in node and not isinstance(node.max_seq_len, int):
        raise UserError(
            f"model.max_seq_len={'null' if node.max_seq_len is None else node.max_seq_len} must be a whole number:"
            f" set model.max_seq_len={config.inner.seq_len}"
        )
    if "max_seq_len" in node and node.max_seq_len < config.inner.seq_len:
        raise UserError(
            f"inner.seq_len={config.inner.seq_len} is longer than model.max_seq_len={node.max_seq_len}:"
            f" set inner.seq_len={node.max_seq_len}"
        )
    return node


def check_vocabulary(model: Module, corpus: Corpus) -> None:
    """Raise UserError if a transformers model has fewer token ids than the data."""
    try:
        rows = model.get_input_embeddings().num_embeddings  # type: ignore[operator]
    except (AttributeError, NotImplementedError):  # not a transformers model, or one without such a table
        return
    if rows < corpus.vocab_size:
        raise UserError(
            f"the model's vocabulary of {rows} tokens is smaller than the data's {corpus.vocab_size}:"
            " set data.tokenizer to the model's tokenizer, or model._target_ to a function that enlarges the embeddings"
        )


def check_positions(model: Module, seq_len: int) -> None:
    """Raise UserError if sequences are longer than a transformers model can compute.

    A model with rotary embeddings computes any length, whatever its max_position_embeddings is.
    """
    config = getattr(model, "config", None)
    limit = getattr(config, "max_position_embeddings", None)
    rotary = getattr(config, "rope_parameters", None)
    if isinstance(limit, int) and 0 < limit < seq_len and not rotary:  # -1: no limit
        raise UserError(
            f"inner.seq_len={seq_len} is longer than the model's max_position_embeddings={limit}:"
            f" set inner.seq_len={limit}"
        )


def train_in_float32(model: Module) -> None:
    """Convert a model to float32, in place, if a trainable parameter is float16 or bfloat16.

    Such a parameter would lose small updates to rounding. If only frozen parameters have a lower precision, such as
    those under adapters, they keep it, which saves memory.
    """
    if any(p.requires_grad and p.dtype in (torch.float16, torch.bfloat16) for p in model.parameters()):
        for x in chain(model.parameters(), model.buffers()):
            x.data = to_float32(x.data)
