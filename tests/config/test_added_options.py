"""Options from outside: recipes in a folder of one's own, and keys added with + that somebody must read."""

import subprocess
import sys

import pytest

import outerloop
from outerloop.commands import main
from outerloop.config import load
from outerloop.config.options import sweep_check
from outerloop.launcher import multirun
from outerloop.types import UserError
from tests.support import toy

MINE = """\
# @package _global_
defaults:
  - /recipe/diloco
  - _self_

schedule:
  sync_every: 7
"""
HALF = """\
class Half:
    linear = True

    def __init__(self, *, scale):
        self.scale = scale
"""
TINY = ["model=nano", "workers=2", "exchange=inprocess", "rounds=1", "schedule.sync_every=1", "eval.sequences=4"]


@pytest.fixture
def mine(tmp_path):
    """A folder of yaml files of one's own, as an option."""
    (tmp_path / "conf/recipe").mkdir(parents=True)
    (tmp_path / "conf/recipe/mine.yaml").write_text(MINE)
    return f"hydra.searchpath=[file://{tmp_path}/conf]"


def test_a_recipe_of_ones_own_is_one_of_the_recipes(mine, monkeypatch, capsys):
    settings = load.load([mine, "recipe=mine", "rounds=3"])
    assert settings.schedule.sync_every == 7 and settings.rounds == 3
    assert settings.method.optimizer.nesterov, "it is based on one of ours"
    assert "mine" in load.groups([mine])["recipe"] and "mine" not in load.groups()["recipe"]
    monkeypatch.setattr(sys, "argv", ["outerloop", "train", mine, "recipe=mine", "--cfg"])
    assert main.main() == 0 and "sync_every: 7" in capsys.readouterr().out


def test_a_mistake_beside_a_recipe_of_ones_own_is_answered_as_ever(mine):
    with pytest.raises(UserError, match=r"recipe must be one of .*loco, mine, muloco.*: set recipe=mine"):
        load.load([mine, "recipe=mino"])
    with pytest.raises(UserError, match=r"schedule has sync_every, delay, early: set schedule\.sync_every"):
        load.load([mine, "recipe=mine", "schedule.sync_evry=3"])
    with pytest.raises(UserError, match="must be a valid integer"):
        load.load([mine, "recipe=mine", "rounds=many"])
    with pytest.raises(UserError, match="searchpath=file:///nowhere is not a folder: set"):
        load.load(["hydra.searchpath=[file:///nowhere]", "recipe=mine"])


def test_from_recipe_takes_a_recipe_of_ones_own(mine):
    outer = outerloop.from_recipe("mine", toy.model(), mine, exchange=toy.alone())
    assert outer.schedule.sync_every == 7 and outer.method.momentum == 0.9


@pytest.mark.slow  # in the default suite without processes: the tests above
def test_a_recipe_of_ones_own_trains_in_a_sweep(mine, tmp_path):
    train = [sys.executable, "-m", "outerloop", "train", mine, *TINY]
    sweep = [*train, "-m", "recipe=mine,sparseloco", f"hydra.sweep.dir={tmp_path}/sweep"]
    done = subprocess.run(sweep, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(list((tmp_path / "sweep").glob("*/summary.json"))) == 2


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("+stepz=10", "stepz: no such option; the options are method"),
        ("+round=10", "round: no such option; .*: set rounds"),
        ("+inner.foo=3", "inner.foo: no such option; inner has batch"),
        ("++inner.lrr=3", "inner.lrr: no such option; .*: set inner.lr"),
        ("+eval.evry=3", "set eval.every"),
        ("+schedule.syn_every=3", "set schedule.sync_every"),
        ("+exchange.prt=3", "set exchange.port"),
        ("+data.x=3", "data.x: no such option; data has non_iid"),
        ("+model.width=256", "model.width: no such option; model has vocab_size"),
        ("+compress.large.values.x=1", "compress.large.values.x: no such option"),
        ("+inner.optimizer.lookahead.k=1", "inner.optimizer.lookahead.k: no such option"),
        ("+method.optimizer.frob=1", "method.optimizer.frob: no such option"),
    ],
)
def test_an_added_option_that_no_part_reads_is_refused(override, said):
    with pytest.raises(UserError, match=said) as error:
        load.load([override])
    assert "\n" not in str(error.value)


def test_it_is_refused_in_a_sweep_and_in_a_loop_of_ones_own():
    with pytest.raises(UserError, match="stepz: no such option"):
        multirun.multirun(["+stepz=10,20"])
    with pytest.raises(UserError, match="stepz: no such option"):
        outerloop.from_recipe("sparseloco", toy.model(), "+stepz=10", exchange=toy.alone())


def test_an_argument_of_a_constructor_can_be_added(tmp_path, monkeypatch):
    (tmp_path / "half_of.py").write_text(HALF)
    monkeypatch.syspath_prepend(tmp_path)
    own = ["compress._target_=half_of.Half", "compress=identity"]
    assert load.load([*own, "+compress.scale=2.0"]).compress.scale == 2.0
    with pytest.raises(UserError, match=r"compress\.size: no such option"):
        load.load([*own, "+compress.size=2.0"])
    assert load.load(["recipe=diloco", "+method.optimizer.maximize=true"]).method.optimizer.maximize
    factor = [
        "+method.lr_factor._target_=outerloop.inner.lr_schedule.warmup_cosine",
        "+method.lr_factor._partial_=true",
    ]
    assert load.load([*factor, "+method.lr_factor.warmup_steps=3"]).method.lr_factor.warmup_steps == 3
    with pytest.raises(UserError, match=r"method\.lr_factor\.warmup: no such option"):
        load.load([*factor, "+method.lr_factor.warmup=3"])
    module = ["model=module", "model._target_=torch.nn.Embedding"]
    assert load.load([*module, "+model.num_embeddings=256"]).model.num_embeddings == 256
    keywords = ["model=module", "model._target_=transformers.LlamaConfig.from_dict"]
    assert load.load([*keywords, "+model.config_dict.hidden_size=8"]).model.config_dict.hidden_size == 8
    assert load.load(["++rounds=5", "+hydra.searchpath=[]"]).rounds == 5


def test_every_run_of_a_sweep_has_the_options_that_are_added():
    runs = list(
        sweep_check.combinations(["+model.width=128,256", "seed=0", "hydra/launcher=joblib", "+x=interval(2,3)"])
    )
    assert runs == [[f"+model.width={width}", "seed=0", "+x=2.0"] for width in (128, 256)]


@pytest.mark.parametrize("arguments", [["--help"], [], ["runs/a", "first", "None"]])
def test_a_worker_started_by_hand_is_told_what_it_is(arguments, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["outerloop", "worker", *arguments])
    assert main.main() == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "outerloop worker RUN_DIR INDEX STEP is started by outerloop train" in said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["recipe=diloco,sparseloco"], "recipe=diloco,sparseloco is a sweep with .*: run outerloop train -m"),
        (["seed=range(3)"], r"seed=range\(3\) is a sweep"),
        (["model=module"], "model._target_ is not set, and needs the dotted path of a class or function: set model."),
    ],
)
def test_a_missing_option_is_named(options, said):
    with pytest.raises(UserError, match=said) as error:
        load.load(options)
    assert "\n" not in str(error.value)
