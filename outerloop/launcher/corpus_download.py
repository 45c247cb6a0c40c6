"""Download the corpus of a run from its peers.

`outerloop join` downloads the index before it asks the user whether to join. The shards are downloaded later, before
training starts.
"""

from __future__ import annotations

import math
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from omegaconf import DictConfig

from outerloop.config.build import initial_peers, shared_corpus
from outerloop.config.options.saved_settings import run_id
from outerloop.config.run_directory import identity_file
from outerloop.exchange.swarm_waiting import progress_to
from outerloop.sinks.console import format_bytes
from outerloop.swarm.access.identity import ensure_identity
from outerloop.swarm.corpus import download as from_peers
from outerloop.swarm.corpus.folder import INDEX, CorpusFolder, OnStatus, ignore, read_or_none
from outerloop.swarm.membership.known_addresses import addresses_of, peer_of
from outerloop.swarm.membership.listed_roster import ListedRoster
from outerloop.swarm.membership.roster import parsed, read_roster
from outerloop.swarm.p2p.framing import BrokenStream
from outerloop.swarm.p2p.observer import ObserverNode, visit
from outerloop.swarm.p2p.transport import Unreachable
from outerloop.swarm.timeouts import OPEN_S, limit
from outerloop.swarm.transfer.sources import ContentUnavailable
from outerloop.types import UserError

T = TypeVar("T")
Sources = AbstractContextManager[tuple[ObserverNode, list[str]]]
"""A connected node that takes no part in the run, and the ids of the peers to download from."""
ROSTER_S = 4 * OPEN_S
"""Time limit for reading the roster from one peer, in seconds."""


def fetch_index(config: DictConfig, sources: Sources | None = None, on_status: OnStatus = ignore) -> None:
    """Download the index of the run's corpus, unless it is on this machine or the run has no corpus.

    `sources`: the peers to ask; None: those of `source_peers`. Raises UserError if no peer sends the index, or if the
    corpus is too large for corpus.max_gb or for the disk.
    """
    path = shared_corpus(config)
    if path is None:
        return
    if read_or_none(Path(path) / INDEX) is None:
        with sources or source_peers(config) as (node, peers):
            index = result_of(node, from_peers.fetch_index(node, Path(path).name, peers, run=run_id(config)))
        CorpusFolder.create(Path(path), index, on_status)
    refuse_download(CorpusFolder.open(Path(path)), max_gb=config.corpus.max_gb)


def download(config: DictConfig, on_status: OnStatus) -> None:
    """Download those parts of the run's corpus that this machine does not have. Raises UserError if that fails."""
    fetch_index(config, on_status=on_status)
    folder = CorpusFolder.open(Path(str(shared_corpus(config))))
    what = f"corpus {folder.index.name}"

    def fetch() -> None:
        progress = progress_to(on_status, what=what)
        with source_peers(config) as (node, peers):
            work = from_peers.fetch_shards(
                node,
                folder,
                peers,
                run=run_id(config),
                progress=progress,
                find_peers=partial(reconnected_peers, node, config),
            )
            result_of(node, work)

    folder.complete(fetch, on_status, progress_to(on_status, what=what, done="checked"))


def refuse_download(folder: CorpusFolder, *, max_gb: float) -> None:
    """Raise UserError if shards are missing and the corpus is larger than `max_gb` GB or does not fit on the disk."""
    size_bytes = folder.index.size_bytes
    size_gb = size_bytes / 1e9
    if size_gb > max_gb and folder.missing():
        raise UserError(
            f"the corpus {folder.index.name} of this run has {format_bytes(size_bytes)}, more than"
            f" corpus.max_gb={max_gb:g}: set corpus.max_gb={math.ceil(size_gb)} to download it"
        )
    folder.refuse_full_disk()


@contextmanager
def source_peers(config: DictConfig) -> Iterator[tuple[ObserverNode, list[str]]]:
    """Yield a node that takes no part in the run, and the ids of the peers to download from.

    These are the initial peers and all other peers in the run's roster. In a run with an allow-list, whose peers serve
    no DHT, the node has the key of this machine's first worker. Raises UserError if there is no initial peer, or if
    none answers.
    """
    addresses = initial_peers(config)
    if not addresses:
        raise UserError(
            "the corpus of this run is not on this machine: run outerloop join with the address of a peer, or set"
            " exchange.initial_peers"
        )
    open_internet, timeout_s = config.exchange.open_internet, (len(addresses) + 1) * ROSTER_S
    if config.exchange.allow:
        identity = ensure_identity(identity_file(Path(config.run_dir), 0))
        with visit(identity_path=identity, open_internet=open_internet) as node:
            dial_any(node, addresses)
            yield node, node.call(current_peers(node, config), timeout_s=timeout_s)
        return
    with visit(initial_peers=addresses, open_internet=open_internet) as node:
        yield node, node.call(current_peers(node, config), timeout_s=timeout_s)


async def reconnected_peers(node: ObserverNode, config: DictConfig) -> list[str]:
    """Connect to the initial peers again, in case a connection broke, and return what `current_peers` returns."""
    await node.dial_all(initial_peers(config))
    return await current_peers(node, config)


async def current_peers(node: ObserverNode, config: DictConfig) -> list[str]:
    """Return the ids of the initial peers and of all other peers in the run's roster.

    In a run with an allow-list, the node connects to the others, and those that cannot be reached are left out.
    """
    initial = [peer_of(address) for address in initial_peers(config)]
    if config.exchange.allow:
        others = await listed_others(node, initial, run_id(config))
    else:
        others = [record.peer_id for record, age_s in await read_roster(node.dht, run_id(config))]
    return [peer for peer in dict.fromkeys([*initial, *others]) if peer != node.peer_id]


def dial_any(node: ObserverNode, addresses: Sequence[str]) -> None:
    """Connect to those of these peers that can be reached. Raises UserError if none can."""
    failed = node.call(node.dial_all(addresses), timeout_s=2 * OPEN_S)
    if failed.keys() >= set(addresses):
        raise UserError(
            f"no initial peer can be reached ({addresses[0]}: {failed[addresses[0]]}): check exchange.initial_peers and"
            " your network"
        )


async def listed_others(node: ObserverNode, peers: Sequence[str], run: str) -> list[str]:
    """Connect to the other peers of a run with an allow-list, and return the ids of those that can be reached.

    `peers`: ids of the peers that are connected already. The first one that answers sends the roster.
    """
    roster = ListedRoster(node, node.records, run=run)
    for peer in peers:
        with suppress(Unreachable, BrokenStream, TimeoutError):
            async with limit(ROSTER_S):
                found = parsed(await roster.read_through(peer))
            addresses = addresses_of(record for record, age_s in found if record.peer_id not in (node.peer_id, *peers))
            return [peer_of(address) for address in await node.answering(addresses)]
    return []


def result_of(node: ObserverNode, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of a download in the node's thread. Raises UserError if no peer delivers."""
    future = node.spawn(work)
    try:
        return future.result()
    except ContentUnavailable as error:
        raise UserError(
            f"the corpus of this run could not be downloaded ({error}): run the same command again, which resumes"
        ) from error
    finally:
        future.cancel()
