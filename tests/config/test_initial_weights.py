"""init_from: which folders of weights fit a model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from outerloop.config.initial_weights import load_initial_weights
from outerloop.types import UserError


class Tied(nn.Module):
    """Two layers that share one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
        self.last.weight = self.first.weight


def loaded(folder: Path, **weights: torch.Tensor) -> torch.Tensor:
    """The weight of a tied model that is loaded from a folder with these weights."""
    save_file({name.replace("_", ".", 1): x for name, x in weights.items()}, folder / "model.safetensors")
    model = Tied()
    load_initial_weights(model, folder)
    return model.first.weight.detach()


ONES, ZEROS = torch.ones(2, 2), torch.zeros(2, 2)


@pytest.mark.parametrize("weights", [{"first_weight": ONES}, {"first_weight": ONES, "last_weight": ONES.clone()}])
def test_parameters_that_share_a_tensor_need_one_entry_or_equal_ones(tmp_path, weights):
    assert torch.equal(loaded(tmp_path, **weights), ONES)


def test_different_values_of_parameters_that_share_a_tensor_are_refused(tmp_path):
    with pytest.raises(
        UserError, match=r"first\.weight and last\.weight have different values .*set model\.tie_embeddings=false"
    ):
        loaded(tmp_path, first_weight=ONES, last_weight=ZEROS)


def test_weights_that_the_model_does_not_have_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"contains third\.weight, which the model does not have"):
        loaded(tmp_path, first_weight=ONES, third_weight=ONES.clone())


def test_frequencies_of_rotary_embeddings_may_be_in_the_folder(tmp_path):
    save_file({"first.weight": ONES, "a.rotary_emb.inv_freq": torch.ones(1)}, tmp_path / "model.safetensors")
    load_initial_weights(Tied(), tmp_path)
