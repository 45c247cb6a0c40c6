"""Training goes on from a model in a Hugging Face folder, which `_target_` names."""

import sys

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from outerloop.commands import main
from tests.support.run_output import summary_of

FACTORY = "model._target_=transformers.AutoModelForCausalLM.from_pretrained"
SMALL = "exchange=inprocess workers=2 rounds=1 schedule.sync_every=2 eval.sequences=4 inner.batch=2 threads=1"


def train(monkeypatch, folder, run_dir):
    """The exit code of `outerloop train` from this folder."""
    options = ["recipe=diloco", "model=module", FACTORY, f"+model.pretrained_model_name_or_path={folder}"]
    monkeypatch.setattr(sys, "argv", ["outerloop", "train", *options, *SMALL.split(), f"run_dir={run_dir}"])
    return main.main()


def test_a_folder_of_hugging_face_is_trained_on(tmp_path, monkeypatch):
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=256, max_position_embeddings=128, **sizes))
    model.save_pretrained(tmp_path / "hf")
    assert train(monkeypatch, tmp_path / "hf", tmp_path / "run") == 0
    summary, trained = summary_of(tmp_path / "run"), AutoModelForCausalLM.from_pretrained(tmp_path / "run/hf")
    assert summary["rounds"] == 1 and summary["params"] == sum(p.numel() for p in model.parameters())
    moved = [(x - y).norm() / y.norm() for x, y in zip(trained.parameters(), model.parameters(), strict=True)]
    assert 0 < max(moved) < 0.2, "from the weights of the folder, not from others"


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
