"""A peer commits to its states in each round that it can show to continue the previous one; an auditor checks both."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from outerloop.inner.audit.observer import AuditObserver
from outerloop.inner.audit.state import capture, leaf_of
from outerloop.inner.data.assignment import BEFORE_FIRST, hash_without_chain
from outerloop.inner.trainer import Trainer
from outerloop.state import canonical
from outerloop.swarm.audit.desk import AuditDesk, Order
from outerloop.swarm.audit.leaves import MATCH, Leaf
from outerloop.swarm.audit.picks import Pick
from outerloop.swarm.audit.states import StateStore
from outerloop.types import Round
from tests.support.small_trainer import AUDITED, AUDITED_STEPS, trainer_of

EVERY = 3  # leaves after 0, 3 and 4 steps


def observed(folder: Path, trainer: Trainer[Any] | None = None) -> tuple[Trainer[Any], AuditObserver]:
    trainer = trainer or trainer_of(*AUDITED)
    trainer.stream.stream.peer = trainer.outer.exchange.peer  # type: ignore[attr-defined]  # as with a chain of commits
    desk = AuditDesk(StateStore(folder), every=EVERY)
    trainer.observer = AuditObserver(trainer, desk, tokens=trainer.stream.stream.tokens, batch=2, seq_len=16)  # type: ignore[attr-defined]
    return trainer, trainer.observer


def train(trainer: Trainer[Any], steps: int) -> None:
    for _ in range(steps):
        trainer.step()


def order_for(observer: AuditObserver, number: int, window: int, **changes: Any) -> Order:
    """An honest order to audit this peer itself, with some fields changed."""
    record, earlier = observer.desk.record(number), observer.desk.record(number - 1)
    assert record
    parts = [observer.desk.store.get(sha) for sha in record.leaves[window].hashes]
    pick = Pick(number, b"c" * 32, observer.outer.exchange.peer, observer.desk.header(number), window, ())
    landed = BEFORE_FIRST if number == 0 else Round(number - 1)
    state = tuple(bytes(part) for part in parts if part is not None)
    order = Order(pick, hash_without_chain(5, landed), record.leaves, earlier.leaves if earlier else (), state)  # type: ignore[arg-type]
    return replace(order, **changes)


def leaves(observer: AuditObserver, number: int) -> tuple[Leaf, ...]:
    record = observer.desk.record(number)
    assert record
    return record.leaves


def test_every_window_of_honest_rounds_matches(tmp_path: Path) -> None:
    trainer, observer = observed(tmp_path)
    train(trainer, 3 * AUDITED_STEPS + 1)
    assert [len(leaves(observer, number)) for number in range(3)] == [3, 3, 3]
    for number in range(3):
        for window in range(2):
            assert observer.examine(order_for(observer, number, window)) == MATCH
    assert leaves(observer, 1)[0].optimizer == leaves(observer, 0)[-1].optimizer
    assert leaves(observer, 1)[0].weights != leaves(observer, 0)[-1].weights, "a round landed in between"


def test_an_order_is_carried_out_before_the_next_step(tmp_path: Path) -> None:
    trainer, observer = observed(tmp_path)
    train(trainer, AUDITED_STEPS)
    order, cancelled = order_for(observer, 0, 1), order_for(observer, 0, 1)
    cancelled.leaf.cancel()
    observer.desk.put(cancelled)
    observer.desk.put(order)
    train(trainer, 1)
    assert order.leaf.result(0) == MATCH


def test_a_differing_leaf_is_named(tmp_path: Path) -> None:
    trainer, observer = observed(tmp_path)
    train(trainer, 2 * AUDITED_STEPS + 1)
    first, middle, last = leaves(observer, 1)
    other = b"x" * 32
    cases = [
        (1, {"leaves": (first, middle, replace(last, weights=other))}, 2),
        (0, {"leaves": (first, replace(middle, optimizer=other), last)}, 1),
        (0, {"leaves": (first, replace(middle, rest=other), last)}, 1),
        (0, {"leaves": (replace(first, weights=other), middle, last)}, 0),
        (0, {"leaves": (first, last)}, 0),
        (0, {"before": (replace(leaves(observer, 0)[-1], optimizer=other),)}, 0),
        (1, {"parent": other}, 2),
    ]
    for window, changes, leaf in cases:
        assert observer.examine(order_for(observer, 1, window, **changes)) == leaf
    state = order_for(observer, 1, 1).state
    empty = (canonical.pack({}), state[1], state[2])
    assert observer.examine(order_for(observer, 1, 1, state=empty)) == 1, "a state that fits no model"


def with_step_counts(tree: Any, count: float) -> Any:
    """A tree whose optimizer has counted this many steps."""
    if isinstance(tree, dict):
        return {key: torch.tensor(count) if key == "step" else with_step_counts(x, count) for key, x in tree.items()}
    return tree


@pytest.mark.parametrize("count", [-1.0, -5.0, -1e30])
def test_a_state_from_which_no_optimizer_can_continue_is_the_first_differing_leaf(tmp_path: Path, count: float) -> None:
    trainer, observer = observed(tmp_path, trainer_of(*AUDITED, "inner.optimizer.fused=false"))
    train(trainer, 2 * AUDITED_STEPS + 1)
    state = order_for(observer, 1, 1).state
    tree = canonical.unpack(state[1])
    forged = (state[0], canonical.pack(with_step_counts(tree, count)), state[2])
    assert forged != state
    assert observer.examine(order_for(observer, 1, 1, state=forged)) == 1


def test_moments_in_which_all_gradients_vanish_are_the_first_differing_leaf(tmp_path: Path) -> None:
    """A peer that states them can compute its later states without data: here, it trains on other windows."""
    trainer, auditor = observed(tmp_path)
    train(trainer, AUDITED_STEPS)
    liar = trainer_of(*AUDITED)
    draw = torch.Generator().manual_seed(1)
    others = [[torch.randint(0, 256, (2, 17), generator=draw) for _ in range(2)] for _ in range(AUDITED_STEPS + 1)]
    liar.train_on(others[-1])  # creates the moments
    assert liar.optimizer is not None
    for moments in liar.optimizer.state.values():
        moments["exp_avg"].fill_(1e18)
        moments["exp_avg_sq"].fill_(3e38)
    states = [capture(liar)]
    for step, windows in enumerate(others[:AUDITED_STEPS], start=1):
        liar.train_on(windows)
        liar.outer.after_inner_step(1)
        if step in (EVERY, AUDITED_STEPS):
            states.append(capture(liar))
    pick = Pick(0, b"c" * 32, auditor.outer.exchange.peer, auditor.desk.header(0), 0, ())
    claimed = tuple(leaf_of(state) for state in states)
    order = Order(pick, hash_without_chain(5, BEFORE_FIRST), claimed, (), states[0])
    assert auditor.examine(order) == 0


def test_a_model_with_other_constants_does_not_match(tmp_path: Path) -> None:
    """A peer that trains another model, here without positions, replays its steps with the same bits."""
    liar, recorded = observed(tmp_path / "liar")
    with torch.no_grad():
        liar.model.model.rotary_emb.inv_freq.zero_()
    train(liar, 2 * AUDITED_STEPS + 1)
    orders = [order_for(recorded, 0, 0), order_for(recorded, 1, 1)]
    auditor, observer = observed(tmp_path / "auditor")
    train(auditor, AUDITED_STEPS)
    assert [observer.examine(order) for order in orders] == [0, 1]


@pytest.mark.parametrize("error", [RuntimeError("can't allocate memory"), MemoryError()])  # torch's on a CPU; Python's
def test_an_auditor_that_fails_to_replay_names_no_leaf(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    trainer, observer = observed(tmp_path)
    train(trainer, 2 * AUDITED_STEPS + 1)
    order = order_for(observer, 1, 1)

    def fail(*arguments: Any, **options: Any) -> None:
        raise error

    for place in ("observer.assigned_windows", "observer.replay", "state.refuse_impossible", "replay.capture"):
        with monkeypatch.context() as short_of_memory:
            short_of_memory.setattr(f"outerloop.inner.audit.{place}", fail)
            assert observer.examine(order) is None
    assert caplog.messages[-1].endswith(str(error) or "out of memory")


def test_how_a_round_begins_is_checked_only_for_peers_whose_payload_was_counted(tmp_path: Path) -> None:
    trainer, observer = observed(tmp_path)
    train(trainer, 2 * AUDITED_STEPS + 1)
    own = order_for(observer, 1, 1)
    absent = replace(own.pick, peer="another")
    first = replace(own.leaves[0], weights=b"x" * 32)
    assert observer.follows(replace(own, pick=absent, leaves=(first, *own.leaves[1:])))
    assert not observer.follows(replace(own, leaves=(first, *own.leaves[1:])))


def test_a_round_after_a_failed_one_has_no_leaves(tmp_path: Path) -> None:
    trainer, observer = observed(tmp_path)
    train(trainer, AUDITED_STEPS)
    assert observer.last
    observer.after_rounds([replace(observer.last, failed="no answer", peers=())])
    train(trainer, 2 * AUDITED_STEPS)
    assert leaves(observer, 1) == () and len(leaves(observer, 2)) == 3


def test_a_restarted_peer_has_leaves_from_its_second_round_on(tmp_path: Path) -> None:
    trainer, _ = observed(tmp_path / "first")
    train(trainer, AUDITED_STEPS + 2)
    _, observer = observed(tmp_path / "second", trainer)
    train(trainer, 2 * AUDITED_STEPS)
    assert observer.desk.record(1) is None, "it did not see the first steps"
    assert len(leaves(observer, 2) if observer.desk.record(2) else ()) == 0
    train(trainer, 2)
    assert leaves(observer, 2) == ()
    train(trainer, AUDITED_STEPS)
    assert len(leaves(observer, 3)) == 3


def test_a_peer_whose_weights_are_not_the_slow_weights_has_no_leaves(tmp_path: Path) -> None:
    trainer, observer = observed(tmp_path)
    train(trainer, AUDITED_STEPS)
    with torch.no_grad():
        trainer.params[0].view(-1)[0] += 1
    train(trainer, 2 * AUDITED_STEPS)
    assert leaves(observer, 1) == () and len(leaves(observer, 2)) == 3


def test_without_space_on_the_disk_training_continues_without_leaves(tmp_path: Path, monkeypatch: Any) -> None:
    trainer, observer = observed(tmp_path)

    def fail(number: int, parts: Any) -> None:
        raise OSError(28, "no space left on device")

    monkeypatch.setattr(observer.desk.store, "put", fail)
    train(trainer, AUDITED_STEPS)
    assert leaves(observer, 0) == ()
