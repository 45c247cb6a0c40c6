"""Record a peer's inner steps while it trains, and replay those of other peers that it has to audit.

A leaf consists of hashes of the state between two inner steps. The steps between two leaves are a window. J is the
setting exchange.audit_every (swarm/audit/leaves.py).

round begins    add a leaf. A round has leaves only if this peer can show that it continues the previous round: it
                landed that round, and either that round did not count its payload, or it has recorded that round and
                its weights are the slow weights
every J steps   add a leaf. Every state with which a window begins is also stored on disk
round ends      add a leaf, before the payload is built
between steps   replay the windows that the network thread has ordered (swarm/audit/desk.py). The training thread does
                this, because settings of torch may differ between threads
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from torch import Tensor

from outerloop.core.outer_loop import OuterLoop
from outerloop.core.round import RoundReport
from outerloop.exchange_protocols import landed_commit, late_joiner
from outerloop.inner.audit.machine import class_of
from outerloop.inner.audit.replay import replay, steps_of
from outerloop.inner.audit.state import capture, leaf_of, weights_hash
from outerloop.inner.data.assignment import assigned_windows
from outerloop.inner.data.windows import TokenArray
from outerloop.inner.trainer import Trainer
from outerloop.swarm.audit.desk import AuditDesk, Order, Record
from outerloop.swarm.audit.leaves import MATCH, Leaf
from outerloop.swarm.validation import id_of
from outerloop.types import Round

logger = logging.getLogger(__name__)
ROUNDS_KNOWN = 8
"""Number of rounds whose slow weights and participants are remembered, for checks of how a round begins."""


class AuditObserver:
    """Observes the inner steps of one peer.

    Args:
        trainer: the trainer of this peer, whose outer loop lands each round right after its launch.
        desk: connects this peer's trainer with its network thread.
        tokens: the whole training text.
        batch, seq_len: sequences per batch, and tokens per sequence.
    """

    def __init__(
        self, trainer: Trainer[OuterLoop], desk: AuditDesk, *, tokens: TokenArray, batch: int, seq_len: int
    ) -> None:
        self.trainer, self.outer, self.desk = trainer, trainer.outer, desk
        self.tokens, self.batch, self.seq_len = tokens, batch, seq_len
        self.steps = self.outer.schedule.sync_every
        self.begins, self.commit = True, b""
        self.number = self.done = 0
        self.leaves: list[Leaf] = []
        self.sizes: list[tuple[int, int, int]] = []
        self.valid = False
        self.last: RoundReport | None = None
        self.slow: dict[int, bytes] = {}  # round -> hash of the slow weights with which it begins
        self.counted: dict[int, frozenset[str]] = {}  # round -> peers whose payloads it includes

    def begin_step(self) -> None:
        """Replay the windows that have been ordered. Before the first inner step of a round, record its first leaf."""
        while order := self.desk.take():
            order.leaf.set_result(self.examine(order))
        commit = landed_commit(self.outer.exchange)
        if self.begins or commit != self.commit:
            self.commit = commit
            self.begin_round()

    def after_update(self) -> None:
        """Record a leaf after every J-th inner step, and announce the round's leaves after its last step."""
        self.done += 1
        if self.valid and (self.done % self.desk.every == 0 or self.done == self.steps):
            self.add_leaf()
        if self.done == self.steps:
            leaves = self.leaves if self.valid else ()
            self.desk.set_record(Record(self.number, tuple(leaves), tuple(self.sizes)))

    def after_rounds(self, rounds: Sequence[RoundReport]) -> None:
        """Note which rounds landed or failed, and whose payloads they include."""
        for report in rounds:
            self.begins, self.last = True, report
            self.counted[report.round.number] = frozenset(report.peers)

    # recording

    def begin_round(self) -> None:
        """Begin to record the round that launches next."""
        if self.desk.machine == bytes(32):
            self.desk.machine = class_of(
                self.trainer, self.tokens, seq_len=self.seq_len, batch=self.batch, sync_every=self.steps
            )
        self.number, self.done, self.begins = self.outer.next_round.number, 0, False
        self.leaves, self.sizes = [], []
        self.slow[self.number] = self.slow_hash()
        for known in (self.slow, self.counted):
            for old in [number for number in known if number < self.number - ROUNDS_KNOWN]:
                del known[old]
        self.valid = self.landed_before()
        if self.valid:
            self.add_leaf()
            self.valid = self.continues()

    def landed_before(self) -> bool:
        """Return whether this peer begins the round where the previous one landed, or begins the run.

        Only then does it train on the windows that the last commit assigns.
        """
        if self.outer.inner_step != self.number * self.steps:
            return False
        if self.last is None:
            return self.number == 0 and not self.commit and not late_joiner(self.outer.exchange)
        return not self.last.failed and self.last.round.number == self.number - 1

    def continues(self) -> bool:
        """Return whether an auditor can verify that the first leaf continues the previous round."""
        if self.outer.exchange.peer not in self.counted.get(self.number - 1, ()):
            return True
        recorded = self.desk.record(self.number - 1) is not None
        return recorded and self.leaves[0].weights == self.slow[self.number]

    def add_leaf(self) -> None:
        """Add a leaf for the current state. Store the state on disk if a window of inner steps begins with it."""
        state = capture(self.trainer)
        self.leaves.append(leaf_of(state))
        self.sizes.append((len(state[0]), len(state[1]), len(state[2])))
        if self.done < self.steps:
            try:
                self.desk.store.put(self.number, state)
            except OSError as error:
                logger.warning("%s is not audited, because its states cannot be stored: %s", Round(self.number), error)
                self.valid = False

    def slow_hash(self) -> bytes:
        """Return the hash that a leaf contains for the slow weights, in the dtype of the model's parameters."""
        return weights_hash({name: self.outer.slow[name].to(p.dtype) for name, p in self.outer.island.params.items()})

    # auditing

    def examine(self, order: Order) -> int | None:
        """Check the leaves of an order, and replay its window of inner steps.

        Return the number of the first leaf that differs, or MATCH, or None if this machine cannot replay the window,
        for example for lack of memory.
        """
        try:
            return self.first_difference(order)
        except (RuntimeError, MemoryError) as error:  # for lack of memory, torch raises RuntimeError
            why = str(error) or "out of memory"
            logger.warning("%s: cannot replay the steps of %s: %s", Round(order.pick.number), order.pick.peer, why)
            return None

    def first_difference(self, order: Order) -> int:
        """Return the number of the first leaf of an order that differs, or MATCH.

        Raises RuntimeError or MemoryError if this machine cannot replay the window.
        """
        window, every, claimed = order.pick.window, self.desk.every, order.leaves
        if len(claimed) != 1 + -(-self.steps // every) or not self.follows(order):
            return 0
        first, last = window * every, min((window + 1) * every, self.steps)
        steps = steps_of(
            lambda numbers: self.windows(order, numbers),
            first=first,
            last=last,
            batch=self.batch,
            accumulate=self.trainer.accumulate,
        )
        before = order.pick.number * self.steps + first
        try:
            [found] = replay(self.trainer, order.state, steps, inner_step=before, every=every)
        except (ValueError, ArithmeticError):  # the state does not fit the model, or no optimizer can continue from it
            return window
        return MATCH if found == claimed[window + 1] else window + 1

    def follows(self, order: Order) -> bool:
        """Return whether the first leaf continues the previous round, as far as this peer knows that round."""
        number, first = order.pick.number, order.leaves[0]
        if order.pick.peer not in self.counted.get(number - 1, ()):
            return True
        if number in self.slow and first.weights != self.slow[number]:
            return False
        return not order.before or first.optimizer == order.before[-1].optimizer

    def windows(self, order: Order, numbers: range) -> Tensor:
        """Return the training windows with these numbers, on which the audited peer was due to train."""
        return assigned_windows(
            self.tokens, commit=order.parent, peer=id_of(order.pick.peer), numbers=numbers, seq_len=self.seq_len
        )
