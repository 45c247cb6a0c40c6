"""Ways to look at the roster of a run from outside: an open run's in the DHT, a listed run's through a worker here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from outerloop.commands.rundir import identity_file
from outerloop.swarm.dht_node import NotAllowed
from outerloop.swarm.directory import Directory
from outerloop.swarm.framing import BrokenStream, TurnedAway
from outerloop.swarm.identity import onlooker_file
from outerloop.swarm.roster import Record, parsed, read_roster
from outerloop.swarm.signatures import Signatures
from outerloop.swarm.timeouts import DHT_S, OPEN_S
from outerloop.swarm.transport import Unreachable
from outerloop.swarm.visitor import Visitor, visit
from outerloop.types import UserError

Seen = list[tuple[Record, float]]
"""Records, with the age of what they tell in seconds."""
Look = Callable[[], Seen]


@contextmanager
def looking(address: str, *, run: str, run_dir: Path | None) -> Iterator[Look]:
    """A way to see who is there now, by name, for the length of a block.

    Args:
        address: full multiaddr of a running peer.
        run: its exchange.run.
        run_dir: the run directory of that peer, needed where the run has an allow-list.

    Raises:
        UserError: the peer cannot be reached, or its run has a list and `run_dir` is not this peer's.
    """
    with ExitStack() as stack:
        try:
            visitor = stack.enter_context(visit(initial_peers=[address]))
        except NotAllowed as error:
            if run_dir is None:
                raise UserError(
                    f"run {run!r} has an exchange.allow, and its peers tell nobody else: on the machine of one of them"
                    " type outerloop status with its address and --run-dir with its run_dir"
                ) from error
        else:
            yield lambda: by_name(visitor.call(read_roster(visitor.dht, run), timeout_s=2 * DHT_S))
            return
        peer_id = address.rpartition("/p2p/")[2]
        visitor = stack.enter_context(visit(identity_path=onlooker_file(worker_key(run_dir, peer_id))))
        yield lambda: through(visitor, address, run)


def worker_key(run_dir: Path, peer_id: str) -> Path:
    """The key of the worker with this id in a run directory. Raises UserError."""
    for key in sorted(identity_file(run_dir, 0).parent.parent.glob(f"*/{identity_file(run_dir, 0).name}")):
        if Signatures.of(key).peer_id == peer_id:
            return key
    raise UserError(f"run_dir={run_dir} has no worker {peer_id}: type the address that one of its workers printed")


def through(visitor: Visitor, address: str, run: str) -> Seen:
    """Who is there, as a peer tells that knows this visitor. Raises UserError."""
    directory = Directory(visitor, visitor.records, run=run)
    try:
        peer_id = visitor.call(visitor.dial(address), timeout_s=2 * OPEN_S)
        return by_name(parsed(visitor.call(directory.read_through(peer_id), timeout_s=4 * OPEN_S)))
    except TurnedAway as error:
        raise UserError(f"{address} does not know this machine's key: was its worker started anew?") from error
    except (Unreachable, BrokenStream, TimeoutError) as error:
        raise UserError(
            f"{address} does not answer for run {run!r}: is it running, and is --run its exchange.run?"
        ) from error


def by_name(seen: Seen) -> Seen:
    """In the order of names."""
    return sorted(seen, key=lambda one: one[0].name)
