"""The command line: what composes, and the one line that answers what does not."""

import pytest
from hydra.errors import HydraException
from omegaconf import OmegaConf, open_dict

from outerloop.config import instantiate, load, schema
from outerloop.config.options.compose import compose_anew
from outerloop.types import UserError


@pytest.mark.parametrize("recipe", load.groups()["recipe"])
def test_every_recipe_composes_and_builds(recipe):
    settings = load.load([f"recipe={recipe}"])
    assert settings.recipe == recipe
    for axis in ("method", "compress", "feedback", "aggregate", "schedule"):
        instantiate.make(settings[axis])


def refuses():
    raise ValueError


def test_an_error_without_a_message_is_named_by_its_class():
    with pytest.raises(UserError, match=r"refuses: ValueError$"):
        instantiate.make(OmegaConf.create({"_target_": f"{__name__}.refuses"}))


def test_the_swarm_knows_how_many_fragments_a_round_has():
    streaming = load.load(["recipe=streaming_diloco", "schedule.fragments=3", "exchange=swarm_gather"])
    assert streaming.exchange.fragments == 3 and load.load(["recipe=sparseloco"]).exchange.fragments == 1


def test_the_command_line_wins_over_the_recipe_and_that_over_the_axis():
    assert load.load(["recipe=diloco"]).schedule.sync_every == 100
    assert load.load(["recipe=diloco", "schedule.sync_every=7"]).schedule.sync_every == 7
    assert "identity" in load.load(["recipe=sparseloco", "compress=identity"]).compress._target_
    assert load.load(["recipe=streaming_diloco", "merge_local=carry"]).merge_local == "carry"


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("recipe=sparsloco", "recipe must be one of .*: set recipe=sparseloco"),
        ("recip=diloco", "recip: no such option; the options are .*: set recipe"),
        ("exchange=carrier_pigeon", "exchange must be one of .*inprocess"),
        ("schedule.sync_evry=3", "schedule has sync_every, delay, early: set schedule.sync_every"),
        ("inner.optimizer.betta=[0.9,0.9]", "inner.optimizer has lr, betas"),
        ("workers=0", "workers=0 must be greater than or equal to 1: set workers=4"),
        ("run_dir=s3://bucket/run", "run_dir=s3://bucket/run is a URL"),
        ("rounds=-1", "rounds=-1 must be greater than or equal to 1"),
        ("rounds=many", "rounds=many must be a valid integer: set rounds=60"),
        ("rounds=2.5", "rounds=2.5 must be a valid integer: set rounds=60"),
        ("rounds='3'", "rounds=3 must be a valid integer"),
        (
            "threads=0",
            "greater than or equal to 1: for its description, run outerloop options threads",
        ),
        ("threads=all", "threads=all must be a valid integer"),
        ("rounds=null", "rounds=null must be a valid integer: set rounds=60"),
        ("eval.sequences=3", "less than one per worker: set eval.sequences=4"),
        ("inner.lr=fast", "inner.lr=fast must be a valid number: set inner.lr=0.002"),
        ("inner.lr=nan", "inner.lr=NaN must be a finite number"),
        ("inner.micro_batch=0", "inner.micro_batch=0 must be greater than or equal to 1 or 'auto'"),
        ("inner.micro_batch=all", "inner.micro_batch=all must be a valid integer or 'auto'"),
        ("inner.compile=3", "inner.compile=3 must be a valid boolean: set inner.compile=false"),
        ("merge_local=keep", "merge_local=keep must be a valid number or 'carry': set merge_local=0.0"),
        ("merge_local=2", "merge_local=2 must be less than or equal to 1 or 'carry': set merge_local=0.0"),
        ("state_dtype=float8", "state_dtype=float8 must be 'float32' or 'float64': set state_dtype=float32"),
        ("method=ddp", "set schedule=every_h schedule.sync_every=1"),
        ("inner=gradients", "set inner=adamw"),
        ("rounds", "'rounds' is not an option"),
        ("lr=1e-3", "lr: no such option: set inner.lr=1e-3"),
        ("device=cpu", "device: no such option: set inner.device=cpu"),
        ("+rounds=3", r"\+rounds: the option already exists: set rounds=3"),
        ("data.files=a.txt", "data.files is an option of data=text and data=tokens"),
        ("exchange.together=3", "exchange.together is an option of exchange=distributed_gossip"),
        (
            "inner.optimizer.betas=3",
            r"inner.optimizer.betas=3 must be a list or text or null: set inner.optimizer.betas=\[0.9, 0.95\]",
        ),
        ("compress.large.values.chunk=q", "compress.large.values.chunk=q must be an integer or null"),
        ("feedback.beta=much", "feedback.beta=much must be a number: set feedback.beta=0.95"),
        ("exchange.port=70000", r"exchange.port=70000 must be less than or equal to 65535: set exchange.port=0"),
        ("exchange.allow=7", "exchange.allow=7 must be a valid list: for its description, run outerloop options"),
        ("exchange.allow=12D3KooW", r"exchange.allow=12D3KooW must be a valid list: set exchange.allow=\[12D3KooW\]"),
        ("rounds=[", "'rounds=\\[' cannot be read: quote a value"),
    ],
)
def test_bad_input_is_answered_in_one_line(override, said):
    with pytest.raises(UserError, match=said) as error:
        load.load([override])
    assert "\n" not in str(error.value)


def test_only_the_option_that_cannot_be_read_is_named():
    with pytest.raises(UserError) as error:
        load.load(["seed=1", "run_dir=a 'b", "rounds"])
    quoted = "quote a value that contains quotes or brackets, as in 'run_dir=\"a [b]\"'"
    assert str(error.value) == f'"run_dir=a \'b" cannot be read: {quoted}'
    assert load.load(['run_dir="a [b]"']).run_dir == "a [b]"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["exchange=folder", "exchange.folder=/tmp/x", "inner.lrr=1"], "inner.lrr: no such option; .*: set inner.lr=1"),
        (["exchange=folder", "exchange.folder=/tmp/x", "inner.lr=${nope}"], "Interpolation key 'nope' not found"),
        (["model=module", "model._target_=a.B", "inner.lrr=1"], "inner.lrr: no such option; .*: set inner.lr=1"),
        (["exchange=folder", "+exchange.folder=/tmp/x", "inner.lrr=1"], "inner.lrr: no such option"),
        (["exchange=folder", "exchange.folders=/tmp/x"], "exchange.folders: no such option; .*: set exchange.folder="),
    ],
)
def test_an_option_that_must_be_set_is_not_taken_for_an_unknown_one(given, said):
    with pytest.raises(UserError, match=f"^{said}"):
        load.load(given)


def test_an_option_that_a_file_of_ones_own_has_forgotten_is_named(tmp_path, monkeypatch):
    """The optimizer is complete; what the trainer reads is not."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(
        "batch: 2\nlr: 0.1\noptimizer:\n  _target_: torch.optim.SGD\n  _partial_: true\n"
    )
    with pytest.raises(UserError, match=r"the configuration lacks inner\.seq_len: set \+inner\.seq_len="):
        load.load(["recipe=diloco", "inner=mine.yaml"])


def test_an_integer_default_of_an_argument_of_any_type_allows_a_number(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text("defaults:\n  - /recipe/diloco\n  - _self_\nmethod:\n  optimizer:\n    lr: 1\n")
    assert load.load(["recipe=mine.yaml", "method.optimizer.lr=0.7"]).method.optimizer.lr == 0.7


def test_an_exchange_of_ones_own_has_options_of_its_own():
    own = ["exchange=inprocess", "+exchange.allow=all"]
    with pytest.raises(UserError, match="no such option"):
        load.load(own)
    config = load.load(["exchange=inprocess"])
    with open_dict(config):
        config.exchange.allow = "all"
    schema.check(config, lambda: config)


def test_a_file_of_ones_own_is_a_choice_only_where_it_is_named(tmp_path, monkeypatch):
    """Hydra's store keeps it for the whole process; other calls do not list it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "stray.yaml").write_text("rounds: 3\n")
    assert load.load(["recipe=stray.yaml"]).rounds == 3
    assert "stray" in load.groups(["recipe=stray.yaml"])["recipe"]
    assert "stray" in load.groups(["recipe=diloco,stray"])["recipe"], "a sweep whose files are already stored"
    assert "stray" not in load.groups()["recipe"]
    with pytest.raises(UserError, match="recipe must be one of") as error:
        load.load(["recipe=stry"])
    assert "stray" not in str(error.value)


@pytest.mark.parametrize(
    ("recipe", "choice"),
    [("outerloop_v1", "feedback=none"), ("outerloop_v1", "feedback=dgc"), ("muloco", "method=average")],
)
def test_a_part_of_a_recipe_is_replaced_without_the_options_that_only_the_old_part_takes(recipe, choice):
    group = choice.partition("=")[0]
    config = load.load([f"recipe={recipe}", choice])
    instantiate.make(config[group])
    assert config[group] == load.load(["recipe=diloco", choice])[group], "the file of the choice, and nothing else"


def test_an_option_that_the_new_part_takes_keeps_the_value_of_the_recipe():
    assert load.load(["recipe=outerloop_v1", "feedback=ef"]).feedback.beta == 0.85


def test_an_option_typed_for_a_part_that_does_not_take_it_is_refused():
    with pytest.raises(UserError, match=r"^feedback\.beta is not an option of feedback=none: leave it out$"):
        load.load(["recipe=outerloop_v1", "feedback=none", "feedback.beta=0.5"])


def test_a_mistake_in_the_file_of_a_new_part_is_not_dropped(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "half.yaml").write_text("_target_: outerloop.feedback.ef.ErrorFeedback\nbta: 0.5\n")
    config = load.load(["recipe=outerloop_v1", "feedback=half.yaml"])
    with pytest.raises(UserError, match="unexpected keyword argument 'bta'"):
        instantiate.make(config.feedback)


def composition(compose, overrides):
    """What a function makes of overrides, with the types of its nodes, or its error."""
    try:
        config = compose(overrides)
    except HydraException as error:
        return type(error), str(error)
    return OmegaConf.to_yaml(config), OmegaConf.is_struct(config), OmegaConf.is_struct(config.inner)


@pytest.mark.parametrize(
    "overrides",
    [
        ["inner.lr=2", "recipe=muloco", "rounds=3", "schedule.sync_every=7"],
        ["seed=0", "recipe=diloco", "seed=${rounds}", "inner.batch=null", "rounds="],
        ["method.optimizer={lr:1.0}", "exchange.allow=[a,b]", "log=[console,wandb]", "run_dir='a [b]'"],
        ["aggregate=median_clip", "aggregate.of._target_=outerloop.aggregate.weighted.Weighted"],
        ["+model.width=3", "model.width=4", "~data.non_iid", "hydra.run.dir=x"],
        ["feedback=local", "feedback.beta=0.5", "feedback={beta:0.9}"],
        ["rounds=3", "inner.lrr=1"],
        ["rounds=3", "recipe=nothing"],
        ["rounds=3", "inner/nothing=3"],
    ],
)
def test_values_set_after_a_cached_composition_are_those_that_hydra_sets(overrides):
    assert composition(load.compose_config, overrides) == composition(compose_anew, tuple(overrides))


def test_values_are_set_after_a_cached_composition_of_the_choices(monkeypatch):
    load.compose_config(["recipe=muloco", "rounds=3"])
    monkeypatch.setattr("outerloop.config.options.compose.compose_anew", None)
    assert load.compose_config(["rounds=4", "recipe=muloco"]).rounds == 4


def test_a_cached_composition_is_not_changed_by_its_reader():
    one = load.compose_config(["recipe=diloco"])
    one.seed = one.seed + 1
    other = load.compose_config(["recipe=diloco"])
    assert other is not one and other.seed == one.seed - 1


def test_a_file_of_ones_own_that_has_changed_is_read_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf/recipe").mkdir(parents=True)
    for every in (7, 8):
        text = f"# @package _global_\ndefaults:\n  - sparseloco\nrecipe: mine\nschedule:\n  sync_every: {every}\n"
        (tmp_path / "conf/recipe/mine.yaml").write_text(text)
        (tmp_path / "own.yaml").write_text(text)
        assert load.load(["recipe=mine"]).schedule.sync_every == every
        assert load.load(["recipe=./own.yaml"]).schedule.sync_every == every
