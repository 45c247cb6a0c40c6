"""The outer loop in Hugging Face's Trainer."""

import contextlib
import os
from types import SimpleNamespace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

import outerloop
from outerloop.config import run_directory
from outerloop.core.round import CHARTS
from outerloop.integrations.hf_callback import is_newer, place_staged_files
from outerloop.state import checkpoint
from outerloop.types import Round, UserError
from tests.support import toy
from tests.support.late_peer import Behind, Log


def trainer_of(folder, *options, recipe="diloco", exchange=None, shard=0, logs=True, **arguments):
    """A Trainer of a little Llama with the outer loop of these options, or without one."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=32, max_position_embeddings=16, tie_word_embeddings=True, **sizes))
    tokens = torch.randint(32, (64, 8), generator=torch.Generator().manual_seed(shard))
    args = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=2,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        logging_steps=1,
        **{"save_strategy": "no", "max_steps": 9, "learning_rate": 1e-2} | arguments,
    )
    rows = [{"input_ids": row, "labels": row} for row in tokens]
    trainer = Trainer(model, args, train_dataset=rows, eval_dataset=rows)
    if options:
        told = {"trainer": trainer} if logs else {}
        trainer.add_callback(outerloop.HFCallback(recipe, *options, exchange=exchange or toy.alone(), **told))
    return trainer


def callback_of(trainer):
    return next(one for one in trainer.callback_handler.callbacks if isinstance(one, outerloop.HFCallback))


class FailsOnce(TrainerCallback):
    """Raises an error in the third step of the first training."""

    failed = False

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 3 and not self.failed:
            self.failed = True
            raise RuntimeError("CUDA out of memory.")


def trainer_that_fails(folder, **arguments):
    """A Trainer whose first training fails just after a round, with the outer loop of one peer of a swarm."""
    trainer = trainer_of(folder / "out", **arguments)
    trainer.add_callback(FailsOnce())
    trainer.add_callback(outerloop.HFCallback("diloco", peers=1, sync_every=3, run_dir=folder / "peer"))
    return trainer


@pytest.mark.parametrize("logs", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_one_peer_that_averages_trains_as_before_and_every_optimizer_step_counts_once(logs, tmp_path):
    options = [*toy.AVERAGED, "schedule.sync_every=4", "state_dtype=float64"]
    plain = trainer_of(tmp_path / "a", gradient_accumulation_steps=3)
    trainer = trainer_of(tmp_path / "b", *options, logs=logs, gradient_accumulation_steps=3)
    plain.train()
    trainer.train()
    outer = callback_of(trainer).outer
    assert toy.same_weights(plain.model, trainer.model)
    assert outer.inner_step == trainer.state.global_step == 9
    rounds = [row for row in trainer.state.log_history if "outer/delta_norm" in row]
    assert [row["step"] for row in rounds] == [4, 8] and all(row.keys() >= set(CHARTS.values()) for row in rounds)
    losses = [[row["loss"] for row in one.state.log_history if "loss" in row] for one in (plain, trainer)]
    assert losses[0] == losses[1] and len(losses[0]) == 9
    assert outer.samples == 2 * 3, "of the one step since the last round"


@pytest.mark.parametrize("optim", ["adamw_torch", "adamw_torch_fused"])
def test_a_step_that_gradscaler_skips_counts_as_an_inner_step(optim, tmp_path):
    """With a loss scale of 2^127, the first gradients overflow; with 1, which follows, none do."""
    trainer = trainer_of(tmp_path, "schedule.sync_every=3", gradient_accumulation_steps=2, optim=optim)
    trainer.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, backoff_factor=2.0**-127)
    trainer.train()
    assert {int(state["step"]) for state in trainer.optimizer.state.values()} == {8}
    assert callback_of(trainer).outer.inner_step == trainer.state.global_step == 9
    assert [row["step"] for row in trainer.state.log_history if "outer/delta_norm" in row] == [3, 6, 9]


def test_a_checkpoint_holds_the_outer_loop(tmp_path):
    options = ["schedule.sync_every=3", "schedule.delay=2"]
    whole = trainer_of(tmp_path / "a", *options, save_strategy="steps", save_steps=4)
    whole.train()
    resumed = trainer_of(tmp_path / "a", *options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "a/checkpoint-4"))
    outer, other = callback_of(whole).outer, callback_of(resumed).outer
    assert other.inner_step == 9 and other.slow_hash == outer.slow_hash and toy.same_weights(whole.model, resumed.model)
    (tmp_path / "a/checkpoint-4/outerloop.pt").unlink()
    with pytest.raises(UserError, match=r"resumes from step 4, but .*outerloop\.pt does not exist"):
        trainer_of(tmp_path / "a", *options).train(resume_from_checkpoint=str(tmp_path / "a/checkpoint-4"))


@pytest.mark.parametrize(("keeps", "total"), [(True, 520), pytest.param(False, 20, marks=pytest.mark.slow)])
def test_the_bytes_of_a_resumed_run_include_those_sent_before(keeps, total, tmp_path):
    """Checkpoints of earlier versions do not contain the bytes."""
    options = {"exchange": toy.alone(500), "save_strategy": "steps", "save_steps": 4}
    trainer_of(tmp_path, "schedule.sync_every=3", **options).train()
    saved = checkpoint.read(file := tmp_path / "checkpoint-4/outerloop.pt")
    if not keeps:
        del saved["bytes_sent"]
    torch.save(saved, file)
    resumed = trainer_of(tmp_path, "schedule.sync_every=3", exchange=toy.alone(20))
    resumed.train(resume_from_checkpoint=str(file.parent))
    rounds = [row for row in resumed.state.log_history if "outer/bytes_sent" in row and row["step"] > 4]
    assert [row["outer/bytes_sent"] for row in rounds] == [total, total]


class IsKilled(TrainerCallback):
    """Raises an error when the Trainer has written this checkpoint and deleted the older ones."""

    def __init__(self, step):
        self.step = step

    def on_save(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("when", "step"),
    [
        ({"save_strategy": "steps", "save_steps": 3}, 6),
        pytest.param({"save_strategy": "epoch"}, 9, marks=pytest.mark.slow),
    ],
)
def test_the_only_checkpoint_holds_the_outer_loop_whenever_the_process_is_killed(when, step, tmp_path):
    trainer = trainer_of(tmp_path, save_total_limit=1, **when)
    trainer.add_callback(IsKilled(step))
    trainer.add_callback(outerloop.HFCallback("diloco", "schedule.sync_every=3", exchange=toy.alone()))
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    (folder,) = tmp_path.glob("checkpoint-*")
    assert folder.name == f"checkpoint-{step}"
    resumed = trainer_of(tmp_path, "schedule.sync_every=3")
    resumed.train(resume_from_checkpoint=True)
    assert callback_of(resumed).outer.inner_step == max(9, step + 1), "the Trainer takes at least one step"


class IsKilledInEvaluation(TrainerCallback):
    def on_prediction_step(self, args, state, control, **kwargs):
        if state.global_step == 6:
            raise KeyboardInterrupt


@pytest.mark.slow
def test_a_run_that_is_killed_while_it_evaluates_resumes_from_the_checkpoint_before(tmp_path):
    """The Trainer evaluates before it saves."""
    steps = {"save_strategy": "steps", "save_steps": 3, "eval_strategy": "steps", "eval_steps": 3}
    trainer = trainer_of(tmp_path, "schedule.sync_every=3", **steps)
    trainer.add_callback(IsKilledInEvaluation())
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    whole, resumed = (trainer_of(folder, "schedule.sync_every=3", **steps) for folder in (tmp_path / "b", tmp_path))
    for each in (whole, resumed):
        each.train(resume_from_checkpoint=each is resumed)
    assert callback_of(resumed).outer.slow_hash == callback_of(whole).outer.slow_hash
    assert not [*tmp_path.glob("_outerloop-step-*")]
    assert all((folder / "outerloop.pt").exists() for folder in tmp_path.glob("checkpoint-*"))


def test_a_staged_file_is_moved_to_its_checkpoint_by_a_later_save(tmp_path):
    """The process was killed after the Trainer had written checkpoint-3, and resumed from the staged file."""
    for step in (3, 6, 9, 12):
        (tmp_path / f"_outerloop-step-{step}.pt").write_text(f"of step {step}")
    (tmp_path / "checkpoint-3").mkdir()
    (tmp_path / "checkpoint-6").mkdir()
    (tmp_path / "checkpoint-12").mkdir()
    for step in (6, 12):
        (tmp_path / f"checkpoint-{step}/outerloop.pt").write_text("was there")
    place_staged_files(tmp_path, written=12)
    assert (tmp_path / "checkpoint-3/outerloop.pt").read_text() == "of step 3"
    assert (tmp_path / "checkpoint-6/outerloop.pt").read_text() == "was there"
    assert (tmp_path / "checkpoint-12/outerloop.pt").read_text() == "of step 12"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-12", "checkpoint-3", "checkpoint-6"]


@pytest.mark.parametrize("killed", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_new_run_in_the_same_folder_replaces_the_outer_loop_of_the_run_before(killed, tmp_path):
    """`killed`: after the Trainer had written the checkpoint, before the outer loop was moved into it."""
    options = {"save_strategy": "steps", "save_steps": 4}
    trainer_of(tmp_path, "schedule.sync_every=2", max_steps=4, **options).train()
    trainer = trainer_of(tmp_path, shard=1, max_steps=4, **options)
    if killed:
        trainer.add_callback(IsKilled(4))
    trainer.add_callback(outerloop.HFCallback("diloco", "schedule.sync_every=2", exchange=toy.alone()))
    with pytest.raises(KeyboardInterrupt) if killed else contextlib.nullcontext():
        trainer.train()
    resumed = trainer_of(tmp_path, "schedule.sync_every=2", shard=1, max_steps=5)
    resumed.train(resume_from_checkpoint=True)
    assert callback_of(resumed).outer.slow_hash == callback_of(trainer).outer.slow_hash


def test_a_staged_file_without_its_checkpoint_leaves_the_outer_loop_of_the_run_before(tmp_path):
    """A new run was killed while it evaluated: the checkpoint of this step is still that of the run before."""
    inside, staged = tmp_path / "checkpoint-4/outerloop.pt", tmp_path / "_outerloop-step-4.pt"
    inside.parent.mkdir()
    for seconds, file in enumerate([inside, inside.with_name("trainer_state.json"), staged]):
        file.touch()
        os.utime(file, (seconds, seconds))
    assert not is_newer(staged, inside)
    os.utime(inside.with_name("trainer_state.json"), (3, 3))
    assert is_newer(staged, inside)


def test_the_outer_loop_of_another_run_is_refused(tmp_path):
    """The folder of the Trainer holds a checkpoint of the same step, from which it does not resume."""
    saves = {"save_strategy": "steps", "save_steps": 4}
    for name, lr in (("a", 1e-2), ("b", 1e-3)):
        trainer_of(tmp_path / name, "schedule.sync_every=3", learning_rate=lr, **saves).train()
    with pytest.raises(UserError, match=r"from step 4, but .*a/checkpoint-4 is of another run: set output_dir="):
        trainer_of(tmp_path / "a", "schedule.sync_every=3").train(resume_from_checkpoint=f"{tmp_path}/b/checkpoint-4")


@pytest.mark.parametrize(("finds", "batch"), [(True, 2), (False, 8)])
def test_samples_are_those_of_the_batch_size_that_fits(finds, batch):
    args = SimpleNamespace(world_size=1, train_batch_size=8, gradient_accumulation_steps=3, auto_find_batch_size=finds)
    state = SimpleNamespace(global_step=0, max_steps=9, train_batch_size=2)  # of the resumed run, if it is not found
    callback, model = outerloop.HFCallback("diloco", exchange=toy.alone()), toy.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    callback.on_train_begin(args, state, None, model=model, optimizer=optimizer)
    assert callback.attached is not None and callback.attached.samples == batch * 3
    callback.abort()


@pytest.mark.parametrize("saves", [True, False])
def test_each_process_in_which_the_trainer_writes_writes_the_outer_loop(saves, tmp_path):
    """With save_on_each_node=True, this includes the first process of the second node."""
    args = SimpleNamespace(
        world_size=1, train_batch_size=8, gradient_accumulation_steps=1, auto_find_batch_size=False,
        output_dir=tmp_path, should_save=saves,
    )  # fmt: skip
    state = SimpleNamespace(global_step=0, max_steps=9, is_world_process_zero=not saves)
    callback, model = outerloop.HFCallback("diloco", exchange=toy.alone()), toy.model()
    callback.on_train_begin(args, state, None, model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    (tmp_path / "checkpoint-3").mkdir()
    state.global_step = 3
    callback.on_save(args, state, None)
    assert [path.name for path in tmp_path.rglob("*.pt")] == ["outerloop.pt"] * saves
    callback.abort()


def test_two_peers_on_different_data_hold_one_model(tmp_path):
    def live(exchange):
        rank = exchange.rank
        trainer = trainer_of(
            tmp_path / str(rank), "schedule.sync_every=3", recipe="sparseloco", exchange=exchange, shard=rank
        )
        trainer.train()
        return trainer.model, [row["loss"] for row in trainer.state.log_history if "loss" in row]

    (one, losses), (other, other_losses) = toy.run_workers(2, live)
    assert toy.same_weights(one, other) and losses != other_losses


@pytest.mark.parametrize(
    "length", [{"max_steps": 9}, pytest.param({"max_steps": -1, "num_train_epochs": 9 / 32}, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(("missed", "own_steps"), [pytest.param(1, 6, marks=pytest.mark.slow), (3, 3)])
def test_a_peer_that_missed_rounds_ends_at_the_same_inner_step_as_the_others(missed, own_steps, length, tmp_path):
    """It launches no round that the others do not take part in, and saves and evaluates at its end."""
    options = ["schedule.sync_every=3"]
    others = trainer_of(tmp_path / "a", *options, exchange=(log := Log(toy.alone())))
    others.train()
    exchange = Behind(toy.alone(), {round: log.rounds[round] for round in sorted(log.rounds)[:missed]})
    saves = {"save_strategy": "steps", "save_steps": 100}
    late = trainer_of(tmp_path / "b", *options, exchange=exchange, **saves, **length)
    late.train()
    outer = callback_of(late).outer
    assert outer.inner_step == 9 and late.state.global_step == own_steps
    assert sorted(exchange.log) == sorted(log.rounds) == [Round(0), Round(1), Round(2)]
    assert (outer.slow_hash == callback_of(others).outer.slow_hash) == (missed == 3)
    assert (tmp_path / f"b/checkpoint-{own_steps}/outerloop.pt").exists()


@pytest.mark.parametrize("kind", [{"fsdp": "full_shard"}, {"deepspeed": "zero.json"}])
def test_a_trainer_that_shards_the_model_is_refused_before_anything_is_made(kind):
    args = SimpleNamespace(world_size=2, **{"fsdp": "", "deepspeed": None} | kind)
    with pytest.raises(UserError, match="this Trainer shards the model over 2 processes"):
        outerloop.HFCallback("diloco").on_train_begin(args, None, None, model=toy.model())


def test_a_misspelled_argument_is_refused_before_training_begins():
    with pytest.raises(TypeError, match="sync_evry"):
        outerloop.HFCallback("sparseloco", sync_evry=30)


def test_steps_are_those_of_the_trainer():
    with pytest.raises(UserError, match=r"got steps=90, but the Trainer's max_steps sets steps: leave out steps="):
        outerloop.HFCallback("sparseloco", steps=90)


def test_the_run_is_left_when_the_optimizer_does_not_fit():
    model, exchange, left = toy.model(), toy.alone(), []
    exchange.abort = lambda: left.append(True)
    args = SimpleNamespace(world_size=1, train_batch_size=1, gradient_accumulation_steps=1, auto_find_batch_size=False)
    optimizer = SimpleNamespace(optimizer=torch.optim.SGD(model[0].parameters(), lr=0.1))
    callback = outerloop.HFCallback("diloco", exchange=exchange)
    with pytest.raises(UserError, match=r"1\.weight is trainable, but SGD does not train it"):
        callback.on_train_begin(
            args,
            SimpleNamespace(global_step=0, max_steps=9, train_batch_size=None),
            None,
            model=model,
            optimizer=optimizer,
        )
    assert left == [True]


@pytest.mark.parametrize("retries", [pytest.param(True, marks=pytest.mark.slow), False])
def test_training_begins_again_after_an_error(retries, tmp_path):
    trainer = trainer_that_fails(tmp_path, auto_find_batch_size=retries)
    if not retries:
        with pytest.raises(RuntimeError, match="out of memory"):
            trainer.train()
    trainer.train()
    assert callback_of(trainer).outer.inner_step == 9
    assert [row["step"] for row in trainer.state.log_history if "outer/delta_norm" in row] == [3, 6, 9]


def test_a_training_that_failed_can_be_left(tmp_path):
    trainer = trainer_that_fails(tmp_path)
    callback = callback_of(trainer)
    callback.abort()
    with pytest.raises(RuntimeError, match="out of memory"):
        trainer.train()
    for _ in range(2):
        callback.abort()
    assert callback.outer.closed and not callback.rounds
    trainer.optimizer.step()  # would raise an error if the outer loop were still attached
    run_directory.unlock(run_directory.lock_directory(tmp_path / "peer"))
