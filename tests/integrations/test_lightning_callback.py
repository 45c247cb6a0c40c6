"""The outer loop in Lightning's Trainer."""

import csv
from pathlib import Path
from types import SimpleNamespace

import lightning
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins.precision import MixedPrecision
from torch.utils.data import DataLoader, TensorDataset

import outerloop
from outerloop.core.round import CHARTS
from outerloop.integrations.lightning_callback import optimizer_steps
from outerloop.types import Round, UserError
from tests.support import toy
from tests.support.late_peer import Behind, Log


class Regression(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1))

    def training_step(self, batch, index):
        x, y = batch
        return ((self.model(x) - y) ** 2).mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


class WithMuon(Regression):
    def configure_optimizers(self):
        return outerloop.recipe_optimizer("muloco", self)


class Broken(Regression):
    def training_step(self, batch, index):
        raise RuntimeError("out of something")


def callback_of(*options, **more):
    return outerloop.LightningCallback("diloco", *options, exchange=toy.alone(), **more)


def fit(folder, *callbacks, module=Regression, ckpt_path=None, max_steps=9, **arguments):
    """The module after 9 optimizer steps; all batches are alike, since loaders begin anew at a checkpoint."""
    x = torch.randn(2, 7, generator=torch.Generator().manual_seed(1)).repeat(40, 1)
    data = DataLoader(TensorDataset(x, torch.ones(80, 1)), batch_size=2)
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_steps=max_steps,
        callbacks=list(callbacks),
        logger=CSVLogger(folder),
        log_every_n_steps=1,
        default_root_dir=folder,
        enable_progress_bar=False,
        enable_model_summary=False,
        **arguments,
    )
    trained = module()
    trainer.fit(trained, data, ckpt_path=ckpt_path)
    return trained, trainer


def round_rows(trainer):
    """The logged rounds of a fit, as text by chart name."""
    with Path(trainer.logger.experiment.metrics_file_path).open() as file:
        return [row for row in csv.DictReader(file) if row["outer/delta_norm"]]


def test_one_peer_that_averages_trains_as_before_and_every_optimizer_step_counts_once(tmp_path):
    callback = callback_of(*toy.AVERAGED, "schedule.sync_every=4", "state_dtype=float64", samples=6)
    plain, _ = fit(tmp_path / "a", accumulate_grad_batches=3)
    module, trainer = fit(tmp_path / "b", callback, accumulate_grad_batches=3)
    assert toy.same_weights(plain, module)
    assert callback.outer.inner_step == trainer.global_step == 9 and callback.outer.samples == 6
    rows = round_rows(trainer)
    assert [row["step"] for row in rows] == ["4", "8"]
    assert all(row[chart] != "" for row in rows for chart in CHARTS.values())


def test_a_step_that_gradscaler_skips_counts_as_an_inner_step(tmp_path):
    """With a loss scale of 2^24, the first float16 gradients overflow; with 1, which follows, none do."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, backoff_factor=2.0**-24)
    callback = callback_of("schedule.sync_every=3")
    precision = MixedPrecision("16-mixed", "cpu", scaler=scaler)
    _, trainer = fit(tmp_path, callback, accumulate_grad_batches=3, plugins=[precision])
    assert {int(state["step"]) for state in trainer.optimizers[0].state.values()} == {8}
    assert callback.outer.inner_step == trainer.global_step == 9
    assert [row["step"] for row in round_rows(trainer)] == ["3", "6", "9"]


def test_steps_are_those_of_the_trainer():
    with pytest.raises(UserError, match=r"got steps=90, but the Trainer's max_steps sets steps: leave out steps="):
        callback_of(steps=90)


def test_a_checkpoint_without_an_outer_loop_is_refused(tmp_path):
    fit(tmp_path, ModelCheckpoint(dirpath=tmp_path, filename="{step}", every_n_train_steps=4, save_top_k=-1))
    with pytest.raises(UserError, match=r"resumes from step 4, but .*step=4\.ckpt contains no outer loop"):
        fit(tmp_path, callback_of("schedule.sync_every=3"), ckpt_path=tmp_path / "step=4.ckpt")


def test_the_optimizer_of_a_recipe_trains_and_resumes(tmp_path, caplog):
    """Lightning computes the gradients in a closure, which it passes to the optimizer's step."""
    options = ("muloco", "schedule.sync_every=3")
    saves = ModelCheckpoint(dirpath=tmp_path, filename="{step}", every_n_train_steps=4, save_top_k=-1)
    whole, resumed = (outerloop.LightningCallback(*options, exchange=toy.alone()) for _ in range(2))
    module, _ = fit(tmp_path / "a", whole, saves, module=WithMuon)
    again, _ = fit(
        tmp_path / "b", resumed, module=WithMuon, ckpt_path=tmp_path / "step=4.ckpt", enable_checkpointing=False
    )
    assert "expects the inner optimizer" not in caplog.text
    assert resumed.outer.inner_step == 9 and toy.same_weights(module, again)


def test_a_checkpoint_holds_the_outer_loop(tmp_path):
    options = ["schedule.sync_every=3", "schedule.delay=2"]
    whole, resumed = callback_of(*options), callback_of(*options)
    saves = ModelCheckpoint(dirpath=tmp_path, filename="{step}", every_n_train_steps=4, save_top_k=-1)
    module, _ = fit(tmp_path / "a", whole, saves)
    again, _ = fit(tmp_path / "b", resumed, ckpt_path=tmp_path / "step=4.ckpt", enable_checkpointing=False)
    assert resumed.outer.inner_step == 9 and resumed.outer.slow_hash == whole.outer.slow_hash
    assert toy.same_weights(module, again)


@pytest.mark.parametrize(("keeps", "total"), [(True, 520), (False, 20)])
def test_the_bytes_of_a_resumed_run_include_those_sent_before(keeps, total, tmp_path):
    """Checkpoints of earlier versions do not contain the bytes."""
    saves = ModelCheckpoint(dirpath=tmp_path, filename="{step}", every_n_train_steps=4, save_top_k=-1)
    first, resumed = (
        outerloop.LightningCallback("diloco", "schedule.sync_every=3", exchange=toy.alone(sent)) for sent in (500, 20)
    )
    fit(tmp_path / "a", first, saves)
    saved = torch.load(file := tmp_path / "step=4.ckpt", weights_only=True)
    if not keeps:
        del saved["callbacks"]["LightningCallback"]["bytes_sent"]
    torch.save(saved, file)
    _, trainer = fit(tmp_path / "b", resumed, ckpt_path=file, enable_checkpointing=False)
    assert [float(row["outer/bytes_sent"]) for row in round_rows(trainer)] == [total, total]


@pytest.mark.parametrize("length", [{}, {"max_steps": -1, "max_epochs": 1, "limit_train_batches": 9}])
@pytest.mark.parametrize(("missed", "own_steps"), [(1, 6), (3, 3)])
def test_a_peer_that_missed_rounds_ends_at_the_same_inner_step_as_the_others(missed, own_steps, length, tmp_path):
    """It launches no round that the others do not take part in."""
    others = outerloop.LightningCallback("diloco", "schedule.sync_every=3", exchange=(log := Log(toy.alone())))
    fit(tmp_path / "a", others)
    exchange = Behind(toy.alone(), {round: log.rounds[round] for round in sorted(log.rounds)[:missed]})
    late = outerloop.LightningCallback("diloco", "schedule.sync_every=3", exchange=exchange)
    _, trainer = fit(tmp_path / "b", late, **length)
    assert late.outer.inner_step == 9 and trainer.global_step == own_steps
    assert sorted(exchange.log) == sorted(log.rounds) == [Round(0), Round(1), Round(2)]
    assert (late.outer.slow_hash == others.outer.slow_hash) == (missed == 3)


@pytest.mark.parametrize(("estimate", "steps"), [(10, 10), (-1, None), (float("inf"), None)])
def test_a_trainer_may_have_no_last_step(estimate, steps):
    assert optimizer_steps(SimpleNamespace(estimated_stepping_batches=estimate)) == steps


def test_an_error_leaves_the_run_at_once(tmp_path):
    callback, left = callback_of("schedule.sync_every=3"), []
    start = callback.on_train_start

    def started(*args):
        start(*args)
        callback.outer.exchange.abort = lambda: left.append(True)

    callback.on_train_start = started
    with pytest.raises(RuntimeError, match="out of something"):
        fit(tmp_path, callback, module=Broken)
    assert left == [True] and callback.outer.closed and not callback.outer.is_attached


class TwoOptimizers(Regression):
    automatic_optimization = False

    def configure_optimizers(self):
        return [torch.optim.SGD(part.parameters(), lr=1e-2) for part in (self.model[0], self.model[2])]


def test_several_optimizers_are_refused(tmp_path):
    """The Trainer counts the steps of all of them as global steps."""
    with pytest.raises(UserError, match=r"the module has 2 optimizers.*outerloop\.attach in your own training loop"):
        fit(tmp_path, callback_of("schedule.sync_every=3"), module=TwoOptimizers)


def test_a_trainer_that_shards_the_module_is_refused_before_anything_is_made():
    with pytest.raises(UserError, match="this Trainer shards the model over 2 processes"):
        outerloop.LightningCallback("diloco").on_train_start(SimpleNamespace(world_size=2, model=toy.model()), None)


def test_a_fit_without_a_checkpoint_begins_anew():
    """The state of a checkpoint is of the one `fit` that it was given to."""
    module, told = Regression(), []
    callback = callback_of("schedule.sync_every=3")
    make, callback.make = callback.make, lambda module, state, *more: told.append(state) or make(module, None, *more)
    callback.load_state_dict(saved := {"inner_step": 7})
    more = {"estimated_stepping_batches": -1, "ckpt_path": None, "global_step": 0}
    trainer = SimpleNamespace(world_size=1, optimizers=[module.configure_optimizers()], **more)
    for _ in range(2):
        callback.on_train_start(trainer, module)
        callback.on_train_end(trainer, module)
    assert told == [saved, None]
