"""Generate text from the global model during training, as a quality check in addition to the loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import Module

from outerloop.inner.models import logits_of
from outerloop.inner.trainer import Trainer
from outerloop.types import Tensors, UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TEMPERATURE = 0.8
"""Sampling temperature: logits are divided by it.

Below 1, unlikely tokens are drawn less often than the model predicts.
"""


@dataclass(frozen=True)
class TextSampler:
    """Generates text samples, each of which continues a prompt.

    The sampler has its own random generator, so that training is the same with and without samples.

    every: number of rounds between two samples.
    prompt: the text to continue.
    tokens: number of tokens to generate.
    window: maximum number of preceding tokens that the model sees when it predicts the next one.
    tokenizer: tokenizer of the data.

    Raises UserError if the data has no tokenizer, or if the prompt contains no token.
    """

    every: int
    prompt: str
    tokens: int
    window: int
    tokenizer: PreTrainedTokenizerBase | None

    def __post_init__(self) -> None:
        if self.tokenizer is None:
            raise UserError(
                f"samples.every={self.every} needs a tokenizer, but this data has none: set samples.every=0"
            )
        if not self._prompt_ids():
            raise UserError(
                "samples.prompt is empty or contains no token of data.tokenizer: set it to another text, for example"
                " samples.prompt='The'"
            )

    def sample(self, trainer: Trainer, weights: Tensors, *, seed: int) -> str:
        """Return the prompt followed by the text that the model generates with the given weights.

        All ranks of an island must call this.
        """
        assert self.tokenizer is not None
        outer = trainer.outer
        outer.before_update()
        prompt = torch.tensor([self._prompt_ids()], dtype=torch.long)
        with outer.temporary_weights(weights), trainer.autocast():
            generated = outer.island.compute(self.generate, trainer.model, prompt.to(trainer.device), seed)
        return str(self.tokenizer.decode(generated[0]))

    def _prompt_ids(self) -> list[int]:
        assert self.tokenizer is not None
        return list(self.tokenizer.encode(self.prompt, add_special_tokens=False))

    @torch.no_grad()
    def generate(self, model: Module, text: Tensor, seed: int) -> Tensor:
        """Return the token ids `text` (1, n) followed by the generated token ids: (1, n + tokens)."""
        generator = torch.Generator().manual_seed(seed)
        model.eval()
        for _ in range(self.tokens):
            logits = logits_of(model, text[:, -self.window :])[:, -1].float().cpu()
            drawn = torch.multinomial((logits / TEMPERATURE).softmax(-1), 1, generator=generator)
            text = torch.cat([text, drawn.to(text.device)], 1)
        model.train()
        return text
