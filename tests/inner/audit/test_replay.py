"""A replay of honest inner steps gives the same bits, and one step that differs is found in its window."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from safetensors.torch import save

from outerloop.inner.audit.replay import Steps, replay, steps_of
from outerloop.inner.audit.state import State, capture, leaf_of, restore, tensors_of
from outerloop.inner.trainer import Trainer
from outerloop.state import canonical
from outerloop.swarm.audit.leaves import Leaf
from outerloop.types import UserError
from tests.support.small_trainer import trainer_of

SMALL_BATCH = ["inner.batch=4", "inner.micro_batch=3", "inner.accumulate=2", "rounds=4", "schedule.sync_every=60"]
ROTARY = "model.rotary_emb.inv_fre"
Fake = Callable[[Trainer[Any], list[torch.Tensor]], None]


def trained(
    trainer: Trainer[Any], steps: int, *, every: int, fake: Fake | None = None, at: int = -1
) -> tuple[list[State], Steps]:
    """Take inner steps. Return the states at the leaves, and the batches that were assigned.

    `fake` takes step `at` (from 0) instead of the trainer.
    """
    states, assigned = [capture(trainer)], []
    for step in range(steps):
        windows = [trainer.stream.next() for _ in range(trainer.accumulate)]
        assigned.append([window.clone() for window in windows])
        if fake and step == at:
            fake(trainer, windows)
        else:
            trainer.train_on(windows)
        trainer.outer.after_inner_step(1)
        if (step + 1) % every == 0:
            states.append(capture(trainer))
    return states, assigned


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_an_honest_window_is_replayed_bit_for_bit(optimizer: str) -> None:
    trainer = trainer_of("model=tiny", f"inner={optimizer}", *SMALL_BATCH)
    [start, *states], steps = trained(trainer, 6, every=2)
    own, random = capture(trainer), torch.get_rng_state()
    assert replay(trainer, start, steps, inner_step=0, every=2) == [leaf_of(state) for state in states]
    assert replay(trainer, states[0], steps[2:5], inner_step=2, every=2)[0] == leaf_of(states[1])
    assert capture(trainer) == own and torch.equal(torch.get_rng_state(), random), "the auditor's state stays"


def skipped(trainer: Trainer[Any], windows: list[torch.Tensor]) -> None:
    """Take no step."""


def other_data(trainer: Trainer[Any], windows: list[torch.Tensor]) -> None:
    """Change one token of one window."""
    windows[0][0, 0] ^= 1
    trainer.train_on(windows)


def scaled(trainer: Trainer[Any], windows: list[torch.Tensor]) -> None:
    """Double the gradient of one parameter."""
    handle = trainer.params[-1].register_hook(lambda gradient: 2 * gradient)
    trainer.train_on(windows)
    handle.remove()


def noisy(trainer: Trainer[Any], windows: list[torch.Tensor]) -> None:
    """Add noise to one weight."""
    trainer.train_on(windows)
    with torch.no_grad():
        trainer.params[0].view(-1)[0] += 1e-4


def fewer_windows(trainer: Trainer[Any], windows: list[torch.Tensor]) -> None:
    """Train on one window of each batch only."""
    trainer.train_on([window[:1] for window in windows])


@pytest.mark.parametrize(
    "fake",
    [skipped, noisy, *(pytest.param(fake, marks=pytest.mark.slow) for fake in (other_data, scaled, fewer_windows))],
)
def test_one_faked_step_of_thirty_is_found_in_its_window(fake: Fake) -> None:
    trainer = trainer_of(*SMALL_BATCH)
    states, steps = trained(trainer, 30, every=5, fake=fake, at=17)
    matches = [
        replay(trainer, states[i], steps[5 * i : 5 * i + 5], inner_step=5 * i, every=5) == [leaf_of(states[i + 1])]
        for i in range(6)
    ]
    assert matches == [True, True, True, False, True, True]


def leaf_at(trainer: Trainer[Any], state: State, steps: Steps, inner_step: int) -> Leaf:
    return replay(trainer, state, steps, inner_step=inner_step, every=99)[0]


def test_the_learning_rate_follows_from_the_position_and_the_number_of_updates() -> None:
    trainer = trainer_of(*SMALL_BATCH, "inner.warmup_steps=2")
    [start, end], steps = trained(trainer, 2, every=2)
    assert leaf_at(trainer, start, steps, 0) == leaf_of(end) != leaf_at(trainer, start, steps, 200)
    late = canonical.unpack(start[1])
    late["updates"] += 1
    assert leaf_at(trainer, (start[0], canonical.pack(late), start[2]), steps, 5) != leaf_at(trainer, start, steps, 5)


def changed(state: State, part: int, change: Callable[[Any], Any]) -> State:
    tree = canonical.unpack(state[part])
    change(tree)
    parts = [*state]
    parts[part] = canonical.pack(tree)
    return parts[0], parts[1], parts[2]


@pytest.mark.parametrize(
    ("part", "change"),
    [
        (0, lambda tree: tree.popitem()),
        (0, lambda tree: tree.update(more=torch.zeros(1))),
        (0, lambda tree: tree.update({next(iter(tree)): torch.zeros(3)})),
        (0, lambda tree: tree.update({next(iter(tree)): "text"})),
        (1, lambda tree: tree.update(updates=torch.zeros(2))),
        (1, lambda tree: tree["optimizer"]["state"][0].popitem()),
        (1, lambda tree: tree["optimizer"].update(state=[])),
        (2, lambda tree: tree["buffers"].update({f"{ROTARY}Q": tree["buffers"].pop(f"{ROTARY}q")})),
        (2, lambda tree: tree.update(rng={})),
        (2, lambda tree: tree["rng"].update(cpu=torch.zeros(7, dtype=torch.uint8))),
    ],
)
def test_a_state_with_other_tensors_is_refused(part: int, change: Callable[[Any], Any]) -> None:
    trainer = trainer_of(*SMALL_BATCH)
    [_, state], steps = trained(trainer, 2, every=2)
    with pytest.raises(ValueError, match="names, shapes or dtypes of the tensors"):
        leaf_at(trainer, changed(state, part, change), steps, 2)


def test_an_invalid_random_state_is_refused() -> None:
    trainer = trainer_of(*SMALL_BATCH)
    [_, state], steps = trained(trainer, 2, every=2)
    invalid = changed(state, 2, lambda tree: tree["rng"]["cpu"].fill_(255))
    with pytest.raises(ValueError, match="random number generators is invalid"):
        leaf_at(trainer, invalid, steps, 2)


def test_a_state_does_not_depend_on_the_number_of_gpus_or_on_the_index_of_the_trainers_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The generators of GPUs are generators of the CPU here."""
    trainer = trainer_of(*SMALL_BATCH)
    gpus = [torch.Generator().manual_seed(seed) for seed in (1, 2)]
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: gpus[device.index].get_state())
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: gpus[device.index].set_state(state.clone()))
    trainer.device = torch.device("cuda", 1)
    state, random = capture(trainer), gpus[1].get_state()
    gpus[1:] = []
    trainer.device = torch.device("cuda", 0)
    assert capture(trainer) != state
    restore(trainer, state, like=trainer)
    assert capture(trainer) == state and torch.equal(gpus[0].get_state(), random)


@pytest.mark.parametrize("part", [0, 1, 2])
def test_bytes_that_are_no_state_are_refused_before_they_are_decoded(
    part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = trainer_of(*SMALL_BATCH)
    [_, state], steps = trained(trainer, 2, every=2)
    lists = torch.frombuffer(bytearray(b"[" + b"[]," * 10_000 + b"[]]"), dtype=torch.uint8)
    many_names = {str(i): torch.zeros(0) for i in range(10_000)}
    decode, decoded = canonical.unpack, []
    monkeypatch.setattr(canonical, "unpack", lambda data: decoded.append(data) or decode(data))  # type: ignore[func-returns-value]
    for content in (b"\x80\x04.", b"\xff" * 9, save({canonical.TREE: lists}), canonical.pack(many_names)):
        parts = [*state[:part], content, *state[part + 1 :]]
        with pytest.raises(ValueError, match="names, shapes or dtypes of the tensors"):
            leaf_at(trainer, (parts[0], parts[1], parts[2]), steps, 2)
    assert not any(data not in state for data in decoded)


def test_a_tree_of_the_same_size_that_is_no_json_is_refused() -> None:
    trainer = trainer_of(*SMALL_BATCH)
    [_, state], steps = trained(trainer, 2, every=2)
    with pytest.raises(ValueError, match="not an encoded state"):
        leaf_at(trainer, (state[0].replace(b'{"map":', b"[[[[[[["), state[1], state[2]), steps, 2)


def test_an_optimizer_with_other_state_than_tensors_is_refused() -> None:
    with pytest.raises(UserError, match=r"set inner=adamw or inner=muon, or exchange\.audit=0"):
        tensors_of({"state": {0: {"step": 3}}, "param_groups": []})


def test_the_windows_of_a_step_are_in_the_order_of_training() -> None:
    steps = steps_of(lambda numbers: torch.tensor([*numbers]), first=2, last=4, batch=3, accumulate=2)
    assert [[batch.tolist() for batch in step] for step in steps] == [
        [[12, 13, 14], [15, 16, 17]],
        [[18, 19, 20], [21, 22, 23]],
    ]
