"""The options of a run manifest from another machine can name no code, no file and nothing of this machine."""

from __future__ import annotations

from typing import Any

import pytest

from outerloop.config.manifest.allowed_options import checked_overrides
from outerloop.types import UserError


def test_recipes_packaged_choices_and_plain_values_become_overrides() -> None:
    options = {
        "recipe": "outerloop",
        "exchange": "swarm_gather",
        "model": "60m",
        "data": "hf",
        "data.path": "HuggingFaceFW/fineweb-edu",
        "inner.lr": 1e-05,
        "inner.clip_norm": None,
        "eager": False,
        "inner.optimizer.betas": [0.9, 0.95],
    }
    assert checked_overrides(options) == [
        "recipe='outerloop'",
        "exchange='swarm_gather'",
        "model='60m'",
        "data='hf'",
        "data.path='HuggingFaceFW/fineweb-edu'",
        "inner.lr=1e-05",
        "inner.clip_norm=null",
        "eager=false",
        "inner.optimizer.betas=[0.9,0.95]",
    ]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model._target_", "os.system"),
        ("_target_", "os.system"),
        ("inner.optimizer._args_", ["x"]),
        ("+inner.foo", 1),
        ("~inner", None),
        ("++seed", 1),
        ("Inner.lr", 1),
        ("inner..lr", 1),
        ("inner.lr=1 recipe", 1),
        ("sigma_bins@compress.large.values", "sigma_bins"),
        ("exchange/shared", "node"),
        ("x" * 10_000, 1),
        ("", 1),
        ("hydra.run.dir", "x"),
        ("hydra.searchpath", ["x"]),
        ("run_dir", "x"),
        ("threads", 1),
        ("workers", 8),
        ("workers_as", "ranks"),
        ("inner.device", "cpu"),
        ("inner.micro_batch", 1),
        ("log", "wandb"),
        ("log.console", None),
        ("init_from", "x"),
        ("island", "sharded"),
        ("state_device", "cpu"),
        ("checkpoint.keep", 9),
        ("data.files", ["x"]),
        ("data.tokenizer", "x"),
        ("exchange.host", "0.0.0.0"),
        ("exchange.port", 1),
        ("exchange.identity_path", "x"),
        ("exchange.initial_peers", []),
        ("exchange.allow", []),
        ("model.layers", 10**9),
        ("exchange.peers", 10**6),
        ("schedule.fragments", 10**9),
        ("model.intermediate_size", -1),
        ("model.vocab_size", 1 << 40),
        ("exchange.open_internet", True),
        ("model.layers", "many"),
        ("recipe", "../mine"),
        ("recipe", "./mine.yaml"),
        ("recipe", "mine"),
        ("recipe", ["outerloop"]),
        ("recipe", 3),
        ("model", "module"),
        ("exchange", "inprocess"),
        ("compress", "topk.yaml"),
        ("inner.lr", "${oc.env:HOME}"),
        ("inner.lr", ["a", "$b"]),
        ("inner.lr", "/etc/passwd"),
        ("inner.lr", "'quoted'"),
        ("inner.lr", "x" * 200),
        ("inner.lr", ""),
        ("inner.lr", [1] * 17),
        ("data.path", "/etc/passwd"),
        ("data.path", "../a"),
        ("data.path", "a/b/c"),
        ("data.name", "a/b"),
    ],
)
def test_anything_else_is_refused_by_name(key: str, value: Any) -> None:
    with pytest.raises(UserError, match=r"^the run manifest sets ") as refusal:
        checked_overrides({"recipe": "outerloop", key: value})
    assert "\n" not in str(refusal.value) and len(str(refusal.value)) < 250


def test_a_manifest_names_a_recipe() -> None:
    with pytest.raises(UserError, match="no recipe"):
        checked_overrides({"seed": 1})
