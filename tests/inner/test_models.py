"""Every model config is the model that its comment promises; the loss is the loss; an export loads and speaks."""

from __future__ import annotations

import copy
import json
import math
import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf
from safetensors.torch import load_file
from torch import nn

from outerloop.inner.data.tokenization import byte_tokenizer
from outerloop.inner.export import export_hf
from outerloop.inner.models import llama, logits_of, next_token_loss
from outerloop.types import Tensors, UserError

os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers and datasets are first imported, which is later

CONFIGS = Path(__file__).parents[2] / "configs" / "model"


def small(tie_embeddings: bool = True) -> nn.Module:
    torch.manual_seed(0)
    return llama(
        vocab_size=256,
        hidden_size=16,
        intermediate_size=32,
        layers=2,
        heads=2,
        kv_heads=1,
        max_seq_len=64,
        tie_embeddings=tie_embeddings,
        rope_theta=10000.0,
        norm_eps=1e-5,
        attention="sdpa",
    )


class Bigram(nn.Module):
    """A user's own model: a table of logits, and a persistent buffer."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.table = nn.Embedding(vocab_size, vocab_size)
        self.register_buffer("seen", torch.arange(3.0))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.table(tokens)


def moved(model: nn.Module) -> Tensors:
    """Slow weights that differ from the model's."""
    return {name: parameter.detach() + 0.5 for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("[0-9nt]*.yaml")), ids=lambda path: path.stem)
def test_a_config_has_the_parameters_that_its_comment_promises(path: Path) -> None:
    config = OmegaConf.load(path)
    config.vocab_size = config.vocab_size or 256
    with torch.device("cpu" if config.hidden_size < 200 else "meta"):
        model = instantiate(config)
    promised = re.search(r"^# ([\d,]+) parameters", path.read_text())
    assert promised is not None
    assert sum(p.numel() for p in model.parameters()) == int(promised[1].replace(",", ""))


def test_published_models_have_their_published_size() -> None:
    """TinyLlama 1.1B and Llama 3 8B, as their model cards count them."""
    for name, parameters in [("1b", 1_100_048_384), ("8b", 8_030_261_248)]:
        assert f"# {parameters:,} parameters" in (CONFIGS / f"{name}.yaml").read_text()


def test_a_user_module_comes_by_target() -> None:
    config = OmegaConf.merge(OmegaConf.load(CONFIGS / "module.yaml"), {"_target_": f"{__name__}.Bigram"})
    assert logits_of(instantiate(config, vocab_size=5), torch.zeros(2, 3, dtype=torch.int64)).shape == (2, 3, 5)


def test_heads_that_do_not_divide_are_refused() -> None:
    options: Any = OmegaConf.to_container(OmegaConf.load(CONFIGS / "nano.yaml"))
    del options["_target_"]
    with pytest.raises(UserError, match=r"model.hidden_size=96 model.heads=5 model.kv_heads=3"):
        llama(**{**options, "vocab_size": 256, "heads": 5})


def test_the_loss_is_the_cross_entropy_of_the_next_token() -> None:
    model, window = Bigram(7), torch.tensor([[1, 2, 3], [4, 5, 6]])
    logp = model.table.weight.log_softmax(-1)
    expected = -(logp[1, 2] + logp[2, 3] + logp[4, 5] + logp[5, 6]) / 4
    torch.testing.assert_close(next_token_loss(model, window), expected)
    nn.init.zeros_(model.table.weight)
    assert math.isclose(next_token_loss(model.bfloat16(), window).item(), math.log(7), rel_tol=1e-6)


def test_a_transformers_model_gives_logits_without_a_cache() -> None:
    model, tokens = small(), torch.randint(256, (2, 9))
    assert logits_of(model, tokens).shape == (2, 9, 256)
    assert next_token_loss(model, tokens).dtype == torch.float32
    assert model(tokens, use_cache=False).past_key_values is None


@pytest.mark.parametrize("tie_embeddings", [False, True])
def test_an_export_loads_and_generates(tmp_path: Path, tie_embeddings: bool) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = small(tie_embeddings)
    before, slow = copy.deepcopy(model.state_dict()), moved(model)
    export_hf(model, slow, byte_tokenizer(), tmp_path / "out")
    loaded: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    tokenizer: Any = AutoTokenizer.from_pretrained(tmp_path / "out")

    assert all(torch.equal(p, slow[name]) for name, p in loaded.named_parameters())
    assert loaded.config.tie_word_embeddings == tie_embeddings and loaded.config.eos_token_id == 0
    assert all(torch.equal(before[name], p) for name, p in model.state_dict().items())
    prompt = tokenizer("def f", return_tensors="pt")
    written = loaded.generate(**prompt, max_new_tokens=5, min_new_tokens=5, do_sample=False)
    assert tokenizer.decode(written[0]).startswith("def f") and written.shape == (1, 10)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("tokenizer", [None, byte_tokenizer()])
def test_an_export_of_a_bfloat16_model_loads_its_float32_weights(tmp_path: Path, tokenizer: Any) -> None:
    from transformers import AutoModelForCausalLM

    model = small().bfloat16()
    slow = {name: x.float() + 1e-3 for name, x in moved(model).items()}
    export_hf(model, slow, tokenizer, tmp_path / "out")
    loaded: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert all(torch.equal(p, slow[name]) for name, p in loaded.named_parameters())
    assert all(p.dtype == torch.bfloat16 for p in model.parameters())


@pytest.mark.parametrize("temperature", [{"do_sample": True, "temperature": 0.6}, {"do_sample": False}])
def test_an_export_keeps_the_generation_settings_of_the_model(tmp_path: Path, temperature: dict[str, Any]) -> None:
    from transformers import AutoConfig, GenerationConfig

    model: Any = small()
    model.config.eos_token_id = 7  # the tokenizer has 0, with which the texts of this training ended
    (tmp_path / "generation_config.json").write_text(
        json.dumps({"bos_token_id": 3, "eos_token_id": [7, 0], "top_p": 0.9, **temperature})
    )
    model.generation_config = GenerationConfig.from_pretrained(tmp_path)
    export_hf(model, moved(model), byte_tokenizer(), tmp_path / "out")
    written = GenerationConfig.from_pretrained(tmp_path / "out").to_diff_dict()
    expected = {"bos_token_id": 3, "eos_token_id": [7, 0], "pad_token_id": 0, "top_p": 0.9, **temperature}
    assert {key: written.get(key) for key in expected} == expected
    assert AutoConfig.from_pretrained(tmp_path / "out").eos_token_id == 0
    assert model.generation_config.pad_token_id is None


def test_an_own_module_is_exported_as_its_tensors(tmp_path: Path) -> None:
    model = Bigram(5)
    export_hf(model, moved(model), None, tmp_path / "out")
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    assert tensors.keys() == {"table.weight", "seen"}
    torch.testing.assert_close(tensors["table.weight"], model.table.weight.detach() + 0.5)


def test_a_buffer_that_layers_share_is_exported_for_each_layer(tmp_path: Path) -> None:
    model, mask = nn.Sequential(Bigram(5), Bigram(5)), torch.ones(5, 5).tril()
    for layer in model:
        layer.register_buffer("mask", mask)
    export_hf(model, moved(model), None, tmp_path / "out")
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    assert torch.equal(tensors["0.mask"], mask) and torch.equal(tensors["1.mask"], mask)


def test_an_export_replaces_only_an_export(tmp_path: Path) -> None:
    model, folder = Bigram(5), tmp_path / "out"
    export_hf(model, moved(model), None, folder)
    export_hf(model, {"table.weight": torch.ones(5, 5)}, None, folder)
    assert torch.equal(load_file(folder / "model.safetensors")["table.weight"], torch.ones(5, 5))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(UserError, match=r"mine exists and does not contain an exported model"):
        export_hf(model, moved(model), None, tmp_path / "mine")


def test_a_failed_export_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, folder = Bigram(5), tmp_path / "out"
    export_hf(model, moved(model), None, folder)
    before = (folder / "model.safetensors").read_bytes()

    def full_disk(*_: object, **__: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr("outerloop.inner.export.save_file", full_disk)
    with pytest.raises(OSError, match=r"No space"):
        export_hf(model, {"table.weight": torch.ones(5, 5)}, None, folder)
    assert (folder / "model.safetensors").read_bytes() == before and list(tmp_path.iterdir()) == [folder]
