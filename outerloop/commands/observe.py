"""Observe a run without joining it.

The roster of an open run is read from the DHT. The roster of a run with an allow-list is read from a worker on this
machine, using a key that is stored next to the worker's own key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import ExitStack, contextmanager
from pathlib import Path

from outerloop.config.manifest.content import RunManifest, parse
from outerloop.config.run_directory import identity_file
from outerloop.swarm.access.identity import onlooker_file
from outerloop.swarm.access.signatures import Signatures
from outerloop.swarm.accountability.accusations import ask
from outerloop.swarm.accountability.evidence import Evidence, guilty
from outerloop.swarm.manifest.run_manifest import fetch
from outerloop.swarm.membership.known_addresses import peer_of
from outerloop.swarm.membership.listed_roster import ListedRoster
from outerloop.swarm.membership.roster import Record, parsed, read_roster
from outerloop.swarm.p2p.framing import BrokenStream, TurnedAway
from outerloop.swarm.p2p.greeting import NotAllowed
from outerloop.swarm.p2p.observer import ObserverNode, visit
from outerloop.swarm.p2p.transport import Unreachable
from outerloop.swarm.timeouts import DHT_S, OPEN_S
from outerloop.swarm.validation import MalformedMessage
from outerloop.types import UserError

SeenPeers = list[tuple[Record, float]]
"""Records of peers, each with its age in seconds."""


class RunObservation:
    """Observes a run through the peer `peer_id`, without joining it. `roster` is called to read the current roster."""

    def __init__(self, visitor: ObserverNode, peer_id: str, *, run: str, roster: Callable[[], SeenPeers]) -> None:
        self._visitor, self._peer_id, self._run = visitor, peer_id, run
        self._roster = roster
        self._pending: Future[list[Evidence]] | None = None
        self._expelled: list[Evidence] | None = None

    def seen(self) -> SeenPeers:
        """Return the records of the peers in the roster, sorted by name."""
        return sorted(self._roster(), key=lambda one: one[0].name)

    def expelled(self, *, wait_s: float = 0.0) -> list[Evidence] | None:
        """Return the evidence against each peer that the observed peer has expelled, or None if it has not answered.

        The evidence is verified locally. Waits up to `wait_s` seconds for an answer. While a request is pending,
        returns the result of the previous request.
        """
        pending = self._pending = self._pending or self._visitor.spawn(ask(self._visitor, self._run, self._peer_id))
        wait([pending], wait_s)
        if pending.done():
            self._expelled, self._pending = self._checked(pending), None
        return self._expelled

    def manifest(self) -> RunManifest | None:
        """Return the settings of the run as the observed peer describes them, or None if it does not."""
        try:
            signed = self._visitor.call(fetch(self._visitor, self._peer_id), timeout_s=2 * OPEN_S)
            return parse(signed.content) if signed else None
        except (BrokenStream, Unreachable, TimeoutError, MalformedMessage):
            return None

    def _checked(self, answer: Future[list[Evidence]]) -> list[Evidence] | None:
        try:
            return [evidence for evidence in answer.result() if guilty(evidence, self._visitor.trust.signatures)]
        except (BrokenStream, Unreachable, TimeoutError):
            return None


@contextmanager
def observe_run(address: str, *, run: str, run_dir: Path | None) -> Iterator[RunObservation]:
    """Observe a run within a `with` block, without joining it.

    Args:
        address: full multiaddr of a running peer.
        run: exchange.run of that peer.
        run_dir: run directory of that peer; required if the run has an allow-list.

    Raises:
        UserError: if the peer cannot be reached, or if its run has an allow-list and `run_dir` is not the peer's.
    """
    peer_id = peer_of(address)
    with ExitStack() as stack:
        try:
            node = stack.enter_context(visit(initial_peers=[address]))
            roster = roster_from_dht(node, run)
        except NotAllowed as error:
            if run_dir is None:
                raise UserError(
                    f"run {run!r} has an exchange.allow, and its peers answer only each other: on the machine of one of"
                    " these peers, run outerloop status with that peer's address, and with its run_dir as --run-dir"
                ) from error
            node = stack.enter_context(visit(identity_path=onlooker_file(worker_key(run_dir, peer_id))))
            roster = roster_from_worker(node, address, run)
        yield RunObservation(node, peer_id, run=run, roster=roster)


def worker_key(run_dir: Path, peer_id: str) -> Path:
    """Return the key file of the worker in `run_dir` with this peer id. Raises UserError if no worker has it."""
    for key in sorted(identity_file(run_dir, 0).parent.parent.glob(f"*/{identity_file(run_dir, 0).name}")):
        if Signatures.of(key).peer_id == peer_id:
            return key
    raise UserError(
        f"run_dir={run_dir} has no worker with peer id {peer_id}: pass an address that one of its workers printed"
    )


def roster_from_dht(visitor: ObserverNode, run: str) -> Callable[[], SeenPeers]:
    """Return a function that reads the roster of an open run from the DHT."""
    return lambda: visitor.call(read_roster(visitor.dht, run), timeout_s=2 * DHT_S)


def roster_from_worker(visitor: ObserverNode, address: str, run: str) -> Callable[[], SeenPeers]:
    """Return a function that reads the roster of a run with an allow-list from the peer at `address`.

    That peer must know the key of `visitor`. The returned function raises UserError if the peer refuses or does not
    answer.
    """
    directory = ListedRoster(visitor, visitor.records, run=run)

    def read() -> SeenPeers:
        try:
            peer_id = visitor.call(visitor.dial(address), timeout_s=2 * OPEN_S)
            return parsed(visitor.call(directory.read_through(peer_id), timeout_s=4 * OPEN_S))
        except TurnedAway as error:
            raise UserError(
                f"{address} does not know this machine's key: restart the worker at this address"
            ) from error
        except (Unreachable, BrokenStream, TimeoutError) as error:
            raise UserError(
                f"{address} does not answer for run {run!r}: check that it is running with this exchange.run"
            ) from error

    return read
