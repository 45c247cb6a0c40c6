"""init_from: which folders of weights fit a model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from outerloop.config.initial_weights import load_initial_weights
from outerloop.state import checkpoint
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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.int8])
def test_weights_may_have_another_dtype(tmp_path, dtype):
    assert torch.equal(loaded(tmp_path, first_weight=ONES.to(dtype)), ONES)


def test_different_values_of_parameters_that_share_a_tensor_are_refused(tmp_path):
    with pytest.raises(
        UserError, match=r"first\.weight and last\.weight have different values .* such as model\.tie_embeddings=false"
    ):
        loaded(tmp_path, first_weight=ONES, last_weight=ZEROS)


def test_weights_that_the_model_does_not_have_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"contains third\.weight, which the model does not have"):
        loaded(tmp_path, first_weight=ONES, third_weight=ONES.clone())


def test_only_the_files_that_transformers_loads_are_read(tmp_path):
    save_file({"first.weight": ONES}, tmp_path / "model.safetensors")
    save_file({"layers.0.wk": ZEROS}, tmp_path / "consolidated.safetensors")
    model = Tied()
    load_initial_weights(model, tmp_path)
    assert torch.equal(model.first.weight, ONES)


def test_the_files_of_an_index_are_read(tmp_path):
    save_file({"first.weight": ONES}, tmp_path / "a.safetensors")
    save_file({"layers.0.wk": ZEROS}, tmp_path / "b.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"first.weight": "a.safetensors"}}')
    model = Tied()
    load_initial_weights(model, tmp_path)
    assert torch.equal(model.first.weight, ONES)


DAMAGED = ["{", "[]", '{"weight_map": 1}', '{"weight_map": {"a": "none.safetensors"}}', "[" * 100_000]


@pytest.mark.parametrize("index", DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_index_is_one_line(tmp_path, index):
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(UserError, match="cannot be read"):
        load_initial_weights(Tied(), tmp_path)


def test_frequencies_of_rotary_embeddings_may_be_in_the_folder(tmp_path):
    save_file({"first.weight": ONES, "a.rotary_emb.inv_freq": torch.ones(1)}, tmp_path / "model.safetensors")
    load_initial_weights(Tied(), tmp_path)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused(tmp_path, value):
    """Also without a second entry of the shared tensor, with which they were compared."""
    with pytest.raises(UserError, match=r"first\.weight contains NaN or infinite values: set another folder"):
        loaded(tmp_path, first_weight=torch.full((2, 2), value))


@pytest.mark.parametrize(("size", "said"), [(3, r"running_mean has shape \[3\] .* but \[2\] in the model"), (2, "")])
def test_buffers_must_have_the_shapes_of_the_model(tmp_path, size, said):
    model, source = nn.BatchNorm1d(2), nn.BatchNorm1d(size)
    weights = dict(model.named_parameters()) | {"running_mean": source.running_mean + 1}
    save_file(weights, tmp_path / "model.safetensors")
    if said:
        with pytest.raises(UserError, match=said):
            load_initial_weights(model, tmp_path)
    else:
        load_initial_weights(model, tmp_path)
        assert model.running_mean.tolist() == [1, 1]


def test_buffers_may_be_infinite(tmp_path):
    """An attention mask may be such a buffer."""
    model = nn.BatchNorm1d(2)
    weights = dict(model.named_parameters()) | {"running_mean": torch.full((2,), -torch.inf)}
    save_file(weights, tmp_path / "model.safetensors")
    load_initial_weights(model, tmp_path)
    assert model.running_mean.tolist() == [-torch.inf] * 2


def test_a_name_on_the_hub_is_no_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"^init_from=a/model: this folder does not exist: .* not to a name on the Hub"):
        load_initial_weights(Tied(), "a/model")


def test_a_folder_without_weights_says_what_is_missing(tmp_path):
    with pytest.raises(UserError, match="contains no safetensors files: set it to a finished run or a model folder"):
        load_initial_weights(Tied(), tmp_path)
    (tmp_path / "checkpoints/step-00000003").mkdir(parents=True)
    (tmp_path / "checkpoints/step-00000003/worker-0.pt").touch()
    checkpoint.seal(tmp_path, 3, keep=1)
    with pytest.raises(
        UserError, match=r"has checkpoints but no exported model \(hf/\): finish the run, or continue it"
    ):
        load_initial_weights(Tied(), tmp_path)
