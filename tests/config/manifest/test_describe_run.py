"""A run is described by a recipe, packaged choices and values: others derive the same settings from the description."""

from __future__ import annotations

import pytest
from omegaconf import DictConfig, OmegaConf

from outerloop.config import load
from outerloop.config.manifest.allowed_options import checked_overrides
from outerloop.config.manifest.content import RunManifest, parse
from outerloop.config.manifest.describe_run import add_manifest, describe, packaged
from outerloop.config.options.compose import compose_config
from outerloop.config.options.search_path import choices_in, config_dir
from outerloop.config.shared_settings import fingerprint

RECIPES = choices_in([config_dir()])["recipe"]


def described(config: DictConfig) -> RunManifest:
    return parse(describe(config).encode())


def joined(manifest: RunManifest) -> DictConfig:
    return compose_config([*checked_overrides(manifest.options), "workers=1"])


def with_values(config: DictConfig, **changes: object) -> DictConfig:
    config = config.copy()
    for key, value in changes.items():
        OmegaConf.update(config, key.replace("__", "."), value, force_add=True)
    return config


@pytest.mark.parametrize("recipe", RECIPES)
def test_others_derive_the_same_settings_from_the_description_of_every_recipe(recipe: str) -> None:
    exchange = "swarm_gossip" if recipe == "noloco" else "swarm_gather"
    own = packaged(recipe=recipe, exchange=exchange)
    config = with_values(
        own, workers=4, rounds=17, inner__batch=3, exchange__run=7, exchange__max_blob_bytes=12345, run_dir="/home/x"
    )
    manifest = described(config)
    assert manifest.reason == "" and manifest.run == 7
    expected = {"recipe": recipe, "exchange": exchange, "rounds": 17, "exchange.peers": 4, "inner.batch": 3}
    assert manifest.options.items() >= expected.items()
    assert manifest.options.keys() == expected.keys() | {"exchange.max_blob_bytes"}, "nothing that follows from these"
    assert fingerprint(joined(manifest)) == manifest.fingerprint == fingerprint(config)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["model=60m", "inner.lr=1"], {"model": "60m", "inner.lr": 1}),
        (["compress=topk_sign", "inner=muon"], {"compress": "topk_sign", "inner": "muon"}),
        (["schedule=streaming", "method=sign"], {"schedule": "streaming", "method": "sign"}),
        (["recipe=ddp", "inner=muon"], {"recipe": "ddp", "inner": "muon"}),
        (["steps=600", "round_timeout_s=99.0"], {"rounds": 40, "round_timeout_s": 99.0}),
        (["data=hf", "data.path=HuggingFaceFW/fineweb"], {"data": "hf", "data.path": "HuggingFaceFW/fineweb"}),
        (["inner.precision=bfloat16", "inner.micro_batch=2"], {"inner.precision": "bfloat16"}),
        (["log=wandb", "inner.device=cpu", "exchange.port=4711", "threads=3", "checkpoint.every=3"], {}),
    ],
)
def test_what_was_typed_is_described_without_what_is_the_machines_own(
    overrides: list[str], expected: dict[str, object]
) -> None:
    config = load.load(["recipe=sparseloco", "workers=1", *overrides])
    manifest = described(config)
    assert manifest.reason == ""
    shared = {"recipe": "sparseloco", "exchange": "swarm_gather", "exchange.peers": 1}
    assert manifest.options == shared | expected
    assert fingerprint(joined(manifest)) == manifest.fingerprint


def test_a_listed_run_is_described_without_its_list() -> None:
    listed = described(compose_config(["exchange.allow=[12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp]"]))
    assert listed == described(compose_config([])) and not listed.reason


def test_paths_are_not_described_but_named() -> None:
    config = compose_config(["data=text", "data.files=[/home/me/*.txt]", "data.tokenizer=/home/me/tokenizer"])
    manifest = described(config)
    assert manifest.needs == ("data.files", "data.tokenizer") and "/home/me" not in manifest.to_json()


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["model=module", "model._target_=mine.Net", "+model.width=3"], "its model part is not one of outerloop's own"),
        (["+inner.extra=3"], "its inner part is not one of outerloop's own"),
        (
            ["recipe=sparseloco", "compress.large.index._target_=outerloop.compress.index.fixed.Fixed"],
            "its compress part is not one of outerloop's own",
        ),
        (["island=sharded", "island.ranks=2"], "island"),
        (["exchange.run='a/b'"], "exchange.run contains characters other"),
        (["exchange=inprocess"], "its exchange is not one of outerloop's swarms"),
    ],
)
def test_a_run_with_code_or_paths_states_the_reason_instead(overrides: list[str], reason: str) -> None:
    manifest = described(compose_config(overrides))
    assert reason in manifest.reason and not manifest.options


@pytest.mark.parametrize(("key", "value"), [("recipe", "mine"), ("data.non_iid", "a/b"), ("inner.lr", "/x")])
def test_a_recipe_of_its_own_or_a_value_that_is_no_plain_text_is_a_reason(key: str, value: str) -> None:
    config = packaged(recipe="sparseloco", exchange="swarm_gather").copy()
    OmegaConf.update(config, key, value)
    assert key in described(config).reason


def test_only_exchanges_that_serve_it_get_a_manifest() -> None:
    swarm, threads = compose_config([]), compose_config(["exchange=inprocess"])
    add_manifest(swarm)
    add_manifest(threads)
    assert parse(swarm.exchange.manifest.encode()).options["recipe"] == "sparseloco"
    assert "manifest" not in threads.exchange


def test_a_machine_with_two_workers_derives_the_same_settings() -> None:
    manifest = described(load.load(["recipe=sparseloco", "workers=1", "exchange.peers=1"]))
    assert fingerprint(compose_config([*checked_overrides(manifest.options), "workers=2"])) == manifest.fingerprint
