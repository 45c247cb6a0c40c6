"""The command line: what composes, and the one line that answers what does not."""

import importlib
import json
import tomllib
from importlib.metadata import version
from inspect import signature
from pathlib import Path

import pytest
import torch
from hydra.utils import get_object
from omegaconf import OmegaConf
from packaging.requirements import Requirement

from outerloop.config import build, load, run_directory
from outerloop.config.renamed_parts import RENAMED
from outerloop.types import UserError


@pytest.mark.parametrize("recipe", load.groups()["recipe"])
def test_every_recipe_composes_and_builds(recipe):
    settings = load.load([f"recipe={recipe}"])
    assert settings.recipe == recipe
    for axis in ("method", "compress", "feedback", "aggregate", "schedule"):
        build.make(settings[axis])


def test_the_swarm_knows_how_many_fragments_a_round_has():
    streaming = load.load(["recipe=streaming_diloco", "schedule.fragments=3", "exchange=swarm_gather"])
    assert streaming.exchange.fragments == 3 and load.load(["recipe=sparseloco"]).exchange.fragments == 1


def test_all_machines_must_close_rounds_by_the_same_rules_but_a_run_may_go_on_with_others():
    ours, theirs = load.load([]), load.load(["exchange.min_peers=3", "exchange.grace_s=9"])
    assert build.fingerprint(ours) != build.fingerprint(theirs)
    assert build.fingerprint(ours) == build.fingerprint(load.load(["exchange.grace_s=9"]))
    assert run_directory.comparable(ours) == run_directory.comparable(theirs)


def test_the_command_line_wins_over_the_recipe_and_that_over_the_axis():
    assert load.load(["recipe=diloco"]).schedule.sync_every == 100
    assert load.load(["recipe=diloco", "schedule.sync_every=7"]).schedule.sync_every == 7
    assert "identity" in load.load(["recipe=sparseloco", "compress=identity"]).compress._target_
    assert load.load(["recipe=streaming_diloco", "merge_local=carry"]).merge_local == "carry"


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("recipe=sparsloco", "recipe is one of .*: set recipe=sparseloco"),
        ("recip=diloco", "recip: no such option, the options are .*: set recipe"),
        ("exchange=carrier_pigeon", "exchange is one of .*inprocess"),
        ("schedule.sync_evry=3", "schedule has sync_every, delay, early: set schedule.sync_every"),
        ("inner.optimizer.betta=[0.9,0.9]", "inner.optimizer has lr, betas"),
        ("workers=0", "workers=0 must be at least 1: set workers=4"),
        ("rounds=-1", "rounds=-1 must be at least 1"),
        ("rounds=many", "rounds is a whole number: set rounds=60"),
        ("rounds=2.5", "rounds is a whole number"),
        ("threads=0", "threads=0 must be a whole number of at least 1, or null: set threads=1"),
        ("threads=all", "threads=all must be a whole number"),
        ("rounds=null", "rounds=None must be at least 1: set rounds=60"),
        ("eval.sequences=3", "less than one per worker: set eval.sequences=4"),
        ("inner.lr=fast", "inner.lr is a number: set inner.lr="),
        ("inner.compile=3", "inner.compile is true or false"),
        ("merge_local=keep", "merge_local is a number: set merge_local=0.0"),
        ("merge_local=2", "merge_local=2 must be 0 .. 1, or carry: set merge_local=0.5"),
        ("state_dtype=float8", "state_dtype=float8 is not one of float32, float64"),
        ("method=ddp", "set schedule=every_h schedule.sync_every=1"),
        ("inner=gradients", "set inner=adamw"),
        ("rounds", "'rounds' is not an option"),
        ("rounds=[", "options look like"),
    ],
)
def test_bad_input_is_answered_in_one_line(override, said):
    with pytest.raises(UserError, match=said) as error:
        load.load([override])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("schedule.sync_every=0", "sync_every=0 must be at least 1"),
        ("compress.large.k=5000", "k=5000 must be 1 .. chunk=4096"),
        ("feedback.beta=2", "beta=2.* must be 0 .. 1"),
        ("inner.device=tpu", "is not available here"),
        ("inner.precision=fp8", "not one of auto, float32, bfloat16"),
        ("inner.seq_len=5000", "longer than model.max_seq_len"),
        ("model.vocab_size=100", "smaller than the data's 256"),
        ("model.heads=5", "heads must divide"),
        ("inner.lr=-1", "Invalid learning rate"),
        ("inner.optimizer.betas=[2,0.9]", "Invalid beta"),
    ],
)
def test_bad_parts_are_answered_before_anything_starts(override, said):
    with pytest.raises(UserError, match=said) as error:
        build.check_parts(load.load([override]))
    assert "\n" not in str(error.value)


def test_more_fragments_than_layers_are_answered_before_anything_starts():
    streaming = load.load(["recipe=streaming_diloco", "model=nano", "schedule.fragments=7"])
    with pytest.raises(UserError, match=r"more than the model's 4 layers: set schedule\.fragments=4"):
        build.check_parts(streaming)


def test_a_run_dir_of_another_configuration_is_refused_untouched(tmp_path):
    run_directory.open_run(load.load([f"run_dir={tmp_path}/a", "seed=1"])).close()
    before = (tmp_path / "a/config.yaml").read_bytes()
    with pytest.raises(UserError, match="seed is 1 there and 2 here: set seed=1 or another run_dir="):
        run_directory.open_run(load.load([f"run_dir={tmp_path}/a", "seed=2"]))
    assert (tmp_path / "a/config.yaml").read_bytes() == before


@pytest.mark.parametrize("options", [["compress=adaptive"], ["compress=auto"], ["feedback=local"]], ids=str)
def test_a_run_that_names_its_parts_as_they_were_called_before_is_resumed(tmp_path, options):
    options = ["recipe=sparseloco", *options, f"run_dir={tmp_path}/a"]
    run_directory.open_run(load.load(options)).close()
    file = tmp_path / "a/config.yaml"
    text = file.read_text()
    for before, now in RENAMED.items():
        text = text.replace(now, before)
    assert text != file.read_text()
    file.write_text(text)
    run_directory.open_run(load.load(options)).close()


@pytest.mark.parametrize("name", RENAMED.values())
def test_renamed_parts_exist(name):
    assert callable(get_object(name))


def test_a_run_dir_has_one_owner(tmp_path):
    owner = run_directory.open_run(load.load([f"run_dir={tmp_path}/a"]))
    with pytest.raises(UserError, match="is being trained by another process"):
        run_directory.open_run(load.load([f"run_dir={tmp_path}/a"]))
    owner.close()
    run_directory.open_run(load.load([f"run_dir={tmp_path}/a"]))


def test_a_folder_of_something_else_is_refused_untouched(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(UserError, match="is not a run"):
        run_directory.open_run(load.load([f"run_dir={tmp_path}"]))
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_where_and_how_it_is_shown_may_differ_between_sittings(tmp_path):
    run_directory.open_run(load.load([f"run_dir={tmp_path}/a"])).close()
    other = ["log=wandb", "threads=1", "log_every=1", "exchange.initial_peers=[x]"]
    run = run_directory.open_run(load.load([f"run_dir={tmp_path}/a", *other]))
    assert run.resume_step is None and not run.finished
    assert OmegaConf.load(tmp_path / "a/config.yaml").exchange.initial_peers == ["x"], "workers read this sitting's"


def test_fingerprint_is_of_what_all_machines_share():
    plain = build.fingerprint(load.load([]))
    for local in ("workers=4", "run_dir=x", "exchange.port=7", "data.non_iid=true", "log=wandb", "eval.every=1"):
        assert build.fingerprint(load.load([local])) == plain, local
    assert build.fingerprint(load.load(["workers=1", "exchange.peers=4"])) == plain
    weighted = build.fingerprint(load.load(["aggregate=weighted"]))
    for work in ("inner.batch=2", "inner.accumulate=3", "schedule.sync_every=7"):
        assert build.fingerprint(load.load(["aggregate=weighted", work])) == weighted, work
        assert build.fingerprint(load.load([work])) != plain, work
    for shared in ("seed=1", "compress.large.k=64", "schedule.sync_every=16", "model=nano", "aggregate=mean"):
        assert build.fingerprint(load.load([shared])) != plain, shared


def test_rows_after_the_checkpoint_and_a_torn_last_line_are_dropped(tmp_path):
    rows = [{"event": "step", "step": 1}, {"event": "done", "step": 2}, {"event": "step", "step": 2}]
    lines = [json.dumps(row) for row in [*rows, {"event": "step", "step": 3}]]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + '\n{"ste')
    assert run_directory.rows_until(tmp_path, 2) == [rows[0], rows[2]]
    assert run_directory.rows_until(tmp_path, None) == []


def test_the_saved_configuration_is_the_resolved_one(tmp_path):
    run_directory.open_run(load.load([f"run_dir={tmp_path}/a", "compress.large.k=64"]))
    assert "${" not in (tmp_path / "a/config.yaml").read_text()
    assert OmegaConf.load(tmp_path / "a/config.yaml").compress.large.k == 64


PYPROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize(
    ("package", "least", "feature"),
    [
        ("torch", "2.9", lambda: signature(torch.optim.Muon).parameters["adjust_lr_fn"]),
        ("tokenizers", "0.22", lambda: importlib.import_module("tokenizers")),
        ("transformers", "5.0", lambda: importlib.import_module("transformers").AutoModelForCausalLM),
    ],
)
def test_lower_bounds_are_those_of_what_the_code_calls(package, least, feature):
    """`feature` is there in the first release that the bound lets in: Muon came to torch with 2.9, and tokenizers 0.22
    is the least that transformers 5.0 asks for."""
    [bound] = [one for one in map(Requirement, PYPROJECT["dependencies"]) if one.name == package]
    before, _, last = least.rpartition(".")
    older = f"{before}.{int(last) - 1}.999" if int(last) else f"{int(before) - 1}.999"
    assert bound.specifier.contains(least) and not bound.specifier.contains(older)
    assert feature()
    assert bound.specifier.contains(version(package), prereleases=True)


def test_a_run_from_before_there_was_a_clip_says_how_to_go_on(tmp_path):
    older = OmegaConf.to_container(load.load(["workers=2"]), resolve=True)
    older.pop("clip")
    (tmp_path / "config.yaml").write_text(OmegaConf.to_yaml(older))
    with pytest.raises(UserError, match="clip is none there and auto here: set clip=none"):
        run_directory.refuse_other_settings(tmp_path, run_directory.comparable(load.load(["workers=2"])))
    run_directory.refuse_other_settings(tmp_path, run_directory.comparable(load.load(["workers=2", "clip=none"])))


def test_a_clip_that_cannot_be_is_refused_before_anything_starts():
    with pytest.raises(UserError, match="clip=median needs peers that take the same outer step"):
        build.check_parts(load.load(["recipe=noloco", "clip=median"]))
    with pytest.raises(UserError, match="clip=often is not one of auto, median, none"):
        build.check_parts(load.load(["clip=often"]))


@pytest.mark.parametrize("recipe", ["recipe=sparseloco", "recipe=noloco"])
def test_the_largest_payload_follows_from_the_model_and_an_option_may_only_say_less(recipe):
    """Before: 1 GiB a peer and a round, whatever the model. `nano` has some 100,000 parameters."""
    kind = "gossip" if "noloco" in recipe else "gather"

    def limited(*options):
        settings = load.load([recipe, f"exchange=swarm_{kind}", *options])
        model = build.check_parts(settings)
        build.limit_payloads(settings, model)
        return settings.exchange.max_blob_bytes, sum(p.numel() for p in model.parameters())

    most, values = limited()
    assert 2 * 8 * values < most < 1 << 28, "both weights of NoLoCo in float32 fit, 1 GiB does not"
    assert limited("exchange.max_blob_bytes=1000")[0] == 1000
    assert limited(f"exchange.max_blob_bytes={1 << 40}")[0] == most
    threads = load.load(["recipe=diloco", "exchange=inprocess"])
    build.limit_payloads(threads, build.check_parts(threads))
    assert "max_blob_bytes" not in threads.exchange
