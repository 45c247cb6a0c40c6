"""Build the Llama models in configs/model, and define the interface that the trainer expects of any model.

A model is an nn.Module that maps tokens (B, T) to logits (B, T, V), or to an object that has them as `.logits`.
Letters: B sequences in a batch, T tokens in a sequence, V token ids in the vocabulary.

The loss is next-token cross-entropy in nats, -1/(B T) sum_bt log p(window[b, t+1] | window[b, :t+1]).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from outerloop.types import UserError

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

ATTENTIONS = ("sdpa", "eager")


def llama(
    *,
    vocab_size: int,
    hidden_size: int,
    intermediate_size: int,
    layers: int,
    heads: int,
    kv_heads: int,
    max_seq_len: int,
    tie_embeddings: bool,
    rope_theta: float,
    norm_eps: float,
    attention: str,
) -> LlamaForCausalLM:
    """Return a Llama model with random weights. Seed torch's global generator to get the same model on every peer.

    Args:
        vocab_size: number of token ids; at least the vocabulary size of the data.
        hidden_size: width of the residual stream.
        intermediate_size: width of the SwiGLU layers.
        layers: number of transformer blocks.
        heads: number of query heads; must divide hidden_size.
        kv_heads: number of key and value heads; must divide heads. Set it equal to heads for no grouping.
        max_seq_len: maximum sequence length, as stated in the config of an exported model.
        tie_embeddings: whether to use the input embedding as the output matrix.
        rope_theta: base (θ) of the rotary embedding.
        norm_eps: epsilon of RMSNorm.
        attention: implementation of attention in transformers: "sdpa" or "eager".

    Raises UserError if `attention` is unknown or the numbers of heads do not divide as required.
    """
    if attention not in ATTENTIONS:
        raise UserError(f"model.attention={attention!r} is not one of {', '.join(ATTENTIONS)}: set it to sdpa")
    if hidden_size % heads or heads % kv_heads:
        raise UserError(
            f"model.hidden_size={hidden_size} model.heads={heads} model.kv_heads={kv_heads}: heads must divide "
            f"hidden_size and kv_heads must divide heads; set model.kv_heads={heads} for attention without grouping"
        )
    from transformers import LlamaConfig, LlamaForCausalLM  # imported late, because the import takes 3 s

    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=max_seq_len,
        tie_word_embeddings=tie_embeddings,
        rms_norm_eps=norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": rope_theta},
        bos_token_id=None,
        eos_token_id=None,
    )
    model = LlamaForCausalLM(config)
    model.set_attn_implementation(attention)
    return model


def logits_of(model: nn.Module, tokens: Tensor) -> Tensor:
    """Run the model on tokens (batch, sequence). Return the logits (batch, sequence, vocabulary)."""
    within = model.module if isinstance(model, DistributedDataParallel) else model
    caches = hasattr(getattr(within, "config", None), "use_cache")  # a transformers model, even if compiled or sharded
    output = model(tokens, use_cache=False) if caches else model(tokens)
    return output if isinstance(output, Tensor) else output.logits


def next_token_loss(model: nn.Module, window: Tensor) -> Tensor:
    """Return the mean cross-entropy in nats (float32 scalar) of a window (batch, sequence + 1) of token ids."""
    logits = logits_of(model, window[:, :-1])
    return F.cross_entropy(logits.float().flatten(0, 1), window[:, 1:].flatten())
