"""Training goes on from a model in a Hugging Face folder, which `_target_` names."""

import sys

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from outerloop.commands import main
from outerloop.config import build, instantiate, load
from outerloop.types import UserError
from tests.support.run_output import summary_of

FACTORY = "model._target_=transformers.AutoModelForCausalLM.from_pretrained"
SMALL = "exchange=inprocess workers=2 rounds=1 schedule.sync_every=2 eval.sequences=4 inner.batch=2 threads=1"


SIZES = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}


def saved(folder, dtype=torch.float32, **config):
    """A small Llama, saved to this folder."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**{"vocab_size": 256, "max_position_embeddings": 128, **SIZES, **config}))
    model.to(dtype).save_pretrained(folder)
    return model


def with_adapter(pretrained_model_name_or_path, dtype):
    """The frozen model of a folder with a trainable adapter of this dtype."""
    model = AutoModelForCausalLM.from_pretrained(pretrained_model_name_or_path).requires_grad_(False)
    model.adapter = torch.nn.Linear(16, 16, dtype=getattr(torch, dtype))
    return model


def built(folder, target=FACTORY, *options):
    """The model that `outerloop train` builds from this folder."""
    settings = load.load(["model=module", target, f"+model.pretrained_model_name_or_path={folder}", *options])
    return build.make_model(settings, instantiate.make(settings.data))


def train(monkeypatch, folder, run_dir, *more):
    """The exit code of `outerloop train` from this folder."""
    options = ["recipe=diloco", "model=module", FACTORY, f"+model.pretrained_model_name_or_path={folder}", *more]
    monkeypatch.setattr(sys, "argv", ["outerloop", "train", *options, *SMALL.split(), f"run_dir={run_dir}"])
    return main.main()


def test_a_folder_of_hugging_face_is_trained_on(tmp_path, monkeypatch):
    model = saved(tmp_path / "hf")
    assert train(monkeypatch, tmp_path / "hf", tmp_path / "run") == 0
    summary, trained = summary_of(tmp_path / "run"), AutoModelForCausalLM.from_pretrained(tmp_path / "run/hf")
    assert summary["rounds"] == 1 and summary["params"] == sum(p.numel() for p in model.parameters())
    moved = [(x - y).norm() / y.norm() for x, y in zip(trained.parameters(), model.parameters(), strict=True)]
    assert 0 < max(moved) < 0.2, "from the weights of the folder, not from others"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_model_stored_in_low_precision_is_trained_in_float32(tmp_path, dtype):
    stored = saved(tmp_path, dtype, tie_word_embeddings=True)
    model = built(tmp_path)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert all(torch.equal(x, y.float()) for x, y in zip(model.parameters(), stored.parameters(), strict=True))


@pytest.mark.parametrize(("adapter", "frozen"), [("float32", torch.bfloat16), ("bfloat16", torch.float32)])
def test_a_frozen_model_keeps_its_dtype_only_under_a_float32_adapter(tmp_path, adapter, frozen):
    saved(tmp_path, torch.bfloat16)
    model = built(tmp_path, f"model._target_={__name__}.with_adapter", f"+model.dtype={adapter}")
    assert model.adapter.weight.dtype == torch.float32 and model.lm_head.weight.dtype == frozen


def test_a_model_with_too_small_a_vocabulary_is_refused_in_one_line(tmp_path):
    saved(tmp_path, vocab_size=100)
    with pytest.raises(UserError, match="vocabulary of 100 tokens is smaller than the data's 256: set data") as error:
        built(tmp_path, FACTORY)
    assert "\n" not in str(error.value)


def test_gpt2_with_too_few_positions_is_refused_in_one_line(tmp_path, monkeypatch, capsys):
    GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=32, n_embd=16, n_layer=1, n_head=2)).save_pretrained(
        tmp_path
    )
    assert built(tmp_path, FACTORY, "inner.seq_len=32").config.n_positions == 32
    assert train(monkeypatch, tmp_path, tmp_path / "run", "inner.seq_len=64") == 2
    said = capsys.readouterr().err.splitlines()
    assert "inner.seq_len=64 is longer than the model's max_position_embeddings=32" in said[-1]


def test_a_model_with_rotary_embeddings_takes_longer_sequences(tmp_path):
    saved(tmp_path, max_position_embeddings=32)
    assert built(tmp_path, FACTORY, "inner.seq_len=64").config.max_position_embeddings == 32


def test_a_folder_that_is_not_there_is_one_line(tmp_path, monkeypatch, capsys):
    assert train(monkeypatch, tmp_path / "none", tmp_path / "run") == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and f"{tmp_path}/none" in said and "meta" not in said
    assert not (tmp_path / "run").exists()


def test_a_mistake_in_a_model_of_ours_is_told_as_before(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["outerloop", "train", "model.heads=5", f"run_dir={tmp_path}/run"])
    assert main.main() == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "heads must divide" in said
