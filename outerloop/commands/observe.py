"""Observe a run without joining it.

The roster of an open run is read from the DHT. The roster of a run with an allow-list is read from a worker on this
machine, using a key that is stored next to the worker's own key.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Generic, TypeVar

from outerloop.config.manifest.allowed_options import is_plain
from outerloop.config.manifest.content import RunManifest, parse
from outerloop.config.options.saved_settings import run_id, saved_settings
from outerloop.config.run_directory import worker_keys
from outerloop.core.contributor_rows import ContributorTable, contributors
from outerloop.swarm.access.identity import onlooker_file
from outerloop.swarm.access.public_names import KnownNames
from outerloop.swarm.access.signatures import Signatures
from outerloop.swarm.accountability.accusations import ask
from outerloop.swarm.accountability.contributors import Totals, fetch, fetch_digest
from outerloop.swarm.accountability.evidence import Evidence, guilty
from outerloop.swarm.manifest.run_manifest import fetch as fetch_manifest
from outerloop.swarm.membership.known_addresses import peer_of
from outerloop.swarm.membership.listed_roster import ListedRoster
from outerloop.swarm.membership.roster import Record, parsed, read_roster
from outerloop.swarm.p2p.framing import BrokenStream, TurnedAway
from outerloop.swarm.p2p.greeting import NotAllowed
from outerloop.swarm.p2p.observer import ObserverNode, visit
from outerloop.swarm.p2p.probe import round_trip_to
from outerloop.swarm.p2p.round_trips import Link, RoundTrips
from outerloop.swarm.p2p.transport import Unreachable
from outerloop.swarm.timeouts import DHT_S, OPEN_S, STOP_S
from outerloop.swarm.validation import MalformedMessage
from outerloop.types import UserError

SeenPeers = list[tuple[Record, float]]
"""Records of peers, each with its age in seconds."""


T = TypeVar("T")
COMPARED = 16
"""Maximum number of other peers whose counts are compared with those of the observed peer."""
RECOUNT_S = 10.0
"""Minimum number of seconds between two requests for the contributions."""


class LatestAnswer(Generic[T]):
    """The latest answer to a request that is repeated in the background, so that a display need not wait for answers.

    `request`: sends the request. `every_s`: minimum number of seconds between two requests.
    """

    def __init__(self, request: Callable[[], Future[T]], *, every_s: float = 0.0) -> None:
        self._request, self._every_s = request, every_s
        self._began_s = float("-inf")
        self._pending: Future[T] | None = None
        self._answer: T | None = None

    def get(self, *, wait_s: float = 0.0) -> T | None:
        """Return the latest answer, or None if the last request failed or no request has been answered yet.

        Sends the request again if it is due. Waits up to `wait_s` seconds for an answer that is pending.
        """
        if self._pending is None and time.monotonic() - self._began_s >= self._every_s:
            self._began_s, self._pending = time.monotonic(), self._request()
        if self._pending is not None:
            wait([self._pending], wait_s)
            if self._pending.done():
                self._answer, self._pending = answer_of(self._pending), None
        return self._answer


def answer_of(done: Future[T]) -> T | None:
    """Return the result of a request, or None if the peer did not send a valid answer."""
    try:
        return done.result()
    except (BrokenStream, Unreachable, TimeoutError):
        return None


class RunObservation:
    """An observer of a run that asks the peer `peer_id`, without joining.

    `run`: the id of the run. `roster` reads the current roster. `is_open`: whether the run has no allow-list, so that
    all its peers answer.
    """

    def __init__(
        self, visitor: ObserverNode, peer_id: str, *, run: str, roster: Callable[[], SeenPeers], is_open: bool
    ) -> None:
        self._visitor, self._peer_id, self.run = visitor, peer_id, run
        self._roster, self._is_open = roster, is_open
        self._seen: SeenPeers = []
        self._expelled = LatestAnswer(lambda: visitor.spawn(ask(visitor, run, peer_id)))
        self._counted = LatestAnswer(
            lambda: visitor.spawn(counted(visitor, run, peer_id, self._seen)), every_s=RECOUNT_S
        )
        self._round_trips = RoundTrips(self._ask)

    def seen(self) -> SeenPeers:
        """Return the records of the peers in the roster, sorted by name."""
        self._seen = sorted(self._roster(), key=lambda one: one[0].name)
        return self._seen

    def links(self) -> Mapping[str, Link]:
        """Measure the round-trip times to the peers of the last call of `seen` from now on, in the background.

        Return the newest link to each peer that has been asked, by peer id. In a run with an allow-list none is: its
        peers answer only each other.
        """
        if self._is_open:
            self._visitor.spawn(self._follow(own_addresses(self._seen)))
        return dict(self._round_trips.links)

    def stop(self) -> None:
        """Stop measuring round-trip times."""
        with suppress(TimeoutError):
            self._visitor.call(self._follow({}), timeout_s=STOP_S)

    async def _follow(self, addresses: Mapping[str, str]) -> None:
        """Measure the round-trip times to these peers instead of earlier ones. `addresses`: peer id -> address."""
        self._round_trips.follow(addresses)

    async def _ask(self, address: str) -> float:
        """Dial the peer at this address and return its round-trip time in seconds."""
        return await round_trip_to(self._visitor, await self._visitor.dial(address))

    def expelled(self, *, wait_s: float = 0.0) -> list[Evidence] | None:
        """Return the evidence against each peer that the observed peer has expelled, or None without an answer.

        The evidence is verified locally. Waits up to `wait_s` seconds for an answer. While a request is pending,
        returns the answer to the previous request.
        """
        answer = self._expelled.get(wait_s=wait_s)
        if answer is None:
            return None
        return [evidence for evidence in answer if guilty(evidence, self._visitor.trust.signatures)]

    def contributions(self, *, wait_s: float = 0.0) -> ContributorTable | None:
        """Return what each peer has contributed, or None if the observed peer has not answered or keeps no counts.

        Call `seen` first: the peers that it returns are asked for their counts as well. Waits up to `wait_s` seconds
        for an answer. While a request is pending, returns the answer to the previous request.
        """
        return self._counted.get(wait_s=wait_s)

    def manifest(self) -> RunManifest | None:
        """Return the settings of the run as the observed peer describes them, or None if it sends no valid manifest."""
        return manifest_of(self._visitor, self._peer_id)


def manifest_of(visitor: ObserverNode, peer_id: str) -> RunManifest | None:
    """Return the manifest that a peer serves, or None if it sends no valid one."""
    try:
        signed = visitor.call(fetch_manifest(visitor, peer_id), timeout_s=2 * OPEN_S)
        return parse(signed.content) if signed else None
    except (BrokenStream, Unreachable, TimeoutError, MalformedMessage):
        return None


def run_in_manifest(visitor: ObserverNode, peer_id: str) -> str:
    """Return the id of a peer's run as its manifest states it, or "default" if there is no manifest with a plain id."""
    manifest = manifest_of(visitor, peer_id)
    run = str(manifest.run) if manifest else ""
    return run if is_plain("exchange.run", run) else "default"


def own_addresses(seen: SeenPeers) -> dict[str, str]:
    """Return the first address of each peer that contains its own id, by peer id. A record may name other peers'."""
    found = {
        record.peer_id: [address for address in record.addresses if address.endswith(f"/p2p/{record.peer_id}")]
        for record, _ in seen
    }
    return {peer: addresses[0] for peer, addresses in found.items() if addresses}


async def counted(visitor: ObserverNode, run: str, peer_id: str, seen: SeenPeers) -> ContributorTable | None:
    """Fetch the contributions from the peer `peer_id`, and compare them with those of up to COMPARED others in `seen`.

    Return None if that peer keeps no counts. Raises BrokenStream, Unreachable or TimeoutError if it does not answer.
    """
    totals = await fetch(visitor, run, peer_id)
    if totals is None:
        return None
    others = [record for record, _ in seen if record.peer_id != peer_id][:COMPARED]
    digests = await asyncio.gather(*(digest_at(visitor, run, record, totals.round) for record in others))
    names = KnownNames(visitor.trust.signatures, run=run)
    return contributions_of(totals, names, seen, [digest for digest in digests if digest is not None])


async def digest_at(visitor: ObserverNode, run: str, record: Record, number: int) -> bytes | None:
    """Fetch the digest of a peer's counts as of round `number`, or None if it does not answer or has none."""
    try:
        await visitor.dial(record.addresses[0])
    except (Unreachable, IndexError):
        return None
    return await fetch_digest(visitor, run, record.peer_id, number)


def contributions_of(
    totals: Totals, names: KnownNames, seen: SeenPeers, digests: Sequence[bytes] = ()
) -> ContributorTable:
    """Return the contributions in a peer's answer, with the public names that their owners signed.

    `names`: verifies and collects the names. `digests`: digests of the counts that other peers hold for the same round.
    """
    statements = [*totals.statements.items(), *((record.peer_id, record.public_name) for record, _ in seen)]
    for peer, statement in statements:
        names.learn(peer, statement)
    equal = sum(digest == totals.digest for digest in digests)
    return ContributorTable(totals.round + 1, contributors(totals.contributors, names.texts()), len(digests), equal)


@contextmanager
def observe_run(address: str, *, run: str | None, run_dir: Path | None) -> Iterator[RunObservation]:
    """Observe a run within a `with` block, without joining it.

    Args:
        address: full multiaddr of a running peer.
        run: exchange.run of that peer; None: the one in the settings of `run_dir` or, without an allow-list, the one
            that the peer states in its manifest.
        run_dir: run directory of that peer; required if the run has an allow-list.

    Raises:
        UserError: if the peer cannot be reached, or if its run has an allow-list and `run_dir` is not the peer's.
    """
    peer_id, is_open = peer_of(address), True
    with ExitStack() as stack:
        try:
            node = stack.enter_context(visit(initial_peers=[address]))
            run = run or run_in_manifest(node, peer_id)
            roster = roster_from_dht(node, run)
        except NotAllowed as error:
            if run_dir is None:
                raise UserError(
                    "this run has an allow-list (exchange.allow), and its peers answer only each other: on the machine"
                    " of one of these peers, run the same command with that peer's address, and with its run_dir as"
                    " --run-dir"
                ) from error
            node = stack.enter_context(visit(identity_path=onlooker_file(worker_key(run_dir, peer_id))))
            run = run or run_id(saved_settings(run_dir))
            roster, is_open = roster_from_worker(node, address, run), False
        observation = RunObservation(node, peer_id, run=run, roster=roster, is_open=is_open)
        stack.callback(observation.stop)
        yield observation


def worker_key(run_dir: Path, peer_id: str) -> Path:
    """Return the key file of the worker in `run_dir` with this peer id. Raises UserError if no worker has it."""
    for key in worker_keys(run_dir):
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
