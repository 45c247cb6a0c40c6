"""Pass audit data between two threads: leaves from the trainer to the network, and orders to replay back."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from outerloop.swarm.audit.leaves import NO_ROOT, Header, Leaf, root_of
from outerloop.swarm.audit.picks import Pick
from outerloop.swarm.audit.states import StateStore

AUDIT_ROUNDS_KEPT = 2
"""Number of rounds before the current one whose states a peer keeps for its auditors.

Leaves are kept for one round more, because an auditor compares a round with the one before it.
"""


@dataclass(frozen=True)
class Record:
    """A peer's record of one round. `leaves`: empty if the round cannot be audited.

    `sizes`: for each kept state, the sizes of its three parts in bytes (weights, optimizer, rest).
    """

    number: int
    leaves: tuple[Leaf, ...]
    sizes: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class Order:
    """An audit whose state has arrived, so that the trainer can replay it.

    parent    digest of the commit before the audited round, which determines the peer's assigned training windows
    leaves    the leaves of the audited round, which match the root in the payload's header
    before    the leaves of the peer's previous round, or empty if the header of that round is missing or has none
    state     weights, optimizer and rest of the state before the window to replay; their hashes are those of its leaf
    leaf      the result: the first differing leaf, or MATCH, or None if this machine cannot replay the window
    """

    pick: Pick
    parent: bytes
    leaves: Sequence[Leaf]
    before: Sequence[Leaf]
    state: tuple[bytes, bytes, bytes]
    leaf: Future[int | None] = field(default_factory=Future)


class AuditDesk:
    """The object through which the trainer's thread and the network thread of a peer exchange audit data.

    `store`: keeps this peer's states. `machine`: hash of this peer's machine class; zeros until the trainer has set it.
    `every`: J, the number of inner steps between two leaves.
    """

    def __init__(self, store: StateStore, *, every: int) -> None:
        self.store, self.every = store, every
        self.machine = NO_ROOT
        self._records: dict[int, Record] = {}
        self._orders: queue.SimpleQueue[Order] = queue.SimpleQueue()

    def set_record(self, record: Record) -> None:
        """Set what this peer's payload of a round commits to, before the payload is offered."""
        oldest = record.number - AUDIT_ROUNDS_KEPT
        kept = {number: known for number, known in self._records.items() if number >= oldest - 1}
        self._records = {**kept, record.number: record}
        self.store.forget_before(oldest)

    def record(self, number: int) -> Record | None:
        """Return what this peer recorded in a round, or None if it has no record."""
        return self._records.get(number)

    def header(self, number: int) -> Header:
        """Return the header of this peer's payload of a round."""
        record = self.record(number)
        leaves = record.leaves if record else ()
        return Header(len(leaves), root_of(number, leaves), self.machine)

    @property
    def state_bytes(self) -> tuple[int, ...]:
        """The largest sizes in bytes of the three parts of this peer's recent states; empty if no state is recorded."""
        sizes = [sizes for record in self._records.values() for sizes in record.sizes]
        return tuple(map(max, zip(*sizes, strict=True)))

    def put(self, order: Order) -> None:
        """Ask the trainer to replay a window."""
        self._orders.put(order)

    def take(self) -> Order | None:
        """Return the next order that has not been cancelled, or None if no such order waits."""
        while not self._orders.empty():
            order = self._orders.get()
            if order.leaf.set_running_or_notify_cancel():
                return order
        return None
