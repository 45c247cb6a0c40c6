"""Ask a peer for the manifest of its run, as a visitor that takes no part in the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import outerloop
from outerloop.commands.doctor.network import last_line
from outerloop.commands.join.other_peers import answering_others
from outerloop.commands.join.silence import why_silent
from outerloop.commands.observe import SeenPeers, roster_from_dht
from outerloop.config.manifest.content import RunManifest, parse
from outerloop.swarm.manifest.run_manifest import SignedManifest, fetch
from outerloop.swarm.membership.known_addresses import peer_of
from outerloop.swarm.p2p.daemon import NoPeerAnswers
from outerloop.swarm.p2p.framing import BrokenStream, TurnedAway
from outerloop.swarm.p2p.greeting import NotAllowed
from outerloop.swarm.p2p.observer import visit
from outerloop.swarm.p2p.transport import Unreachable
from outerloop.swarm.timeouts import OPEN_S
from outerloop.swarm.validation import MalformedMessage, quote
from outerloop.types import UserError

LISTED = (
    "this run has an allow-list (exchange.allow), so its peers answer only its members: ask one of its operators for an"
    " invite (outerloop invite), and run outerloop join ADDRESS --invite TOKEN"
)


@dataclass(frozen=True)
class Offer:
    """A peer's description of its run.

    manifest   the settings of the run, signed by the peer
    peer_id    id of the peer that signed the manifest; not the id in the address if a relay forwarded the manifest
    seen       records of the peers that are in the run now
    signed     the manifest with its signature, which a relay can forward
    others     addresses of other peers of the run that answer
    """

    manifest: RunManifest
    peer_id: str
    seen: SeenPeers
    signed: SignedManifest | None = None
    others: Sequence[str] = ()

    @property
    def peers(self) -> set[str]:
        """The ids of all peers of the run that this machine has learned of."""
        return {self.peer_id, *(record.peer_id for record, _ in self.seen)}


def ask_peer(address: str, *, run: str | None = None, open_internet: bool = False) -> Offer:
    """Fetch the manifest from the peer at a full multiaddr, and the records of all peers of its run.

    Args:
        run: id of the run that the peer must be in, if `address` is a remembered one; None: any run.
        open_internet: whether to use relays and hole punching, as with exchange.open_internet=true.

    Raises UserError if the peer cannot be reached, if it is in another run, or if its run cannot be joined in this way.
    """
    peer_id = peer_of(address)
    try:
        with visit(initial_peers=[address], open_internet=open_internet) as node:
            signed = node.call(fetch(node, peer_id), timeout_s=2 * OPEN_S)
            manifest = checked_manifest(signed.content if signed else b"")
            if run is not None:
                refuse_other_run(manifest, run, address)
            author = signed.peer if signed else peer_id
            seen = roster_from_dht(node, str(manifest.run))()
            return Offer(manifest, author, seen, signed, answering_others(node, seen, address))
    except (NotAllowed, TurnedAway) as error:
        raise UserError(LISTED) from error
    except NoPeerAnswers as error:
        raise UserError(why_silent(address)) from error
    except (Unreachable, BrokenStream, TimeoutError) as error:
        raise UserError(
            f"the peer at {address} sent no settings of its run ({last_line(error)}): check that it runs outerloop"
            f" {outerloop.__version__}, or run outerloop doctor --peer with its address"
        ) from error


def refuse_other_run(manifest: RunManifest, run: str, address: str) -> None:
    """Raise UserError unless the manifest, which a remembered peer sent, is that of the run with this id."""
    if str(manifest.run) != run:
        raise UserError(
            f"the peer at {address}, which this machine has stored as a peer of run {quote(run)}, sent the settings of"
            f" run {quote(manifest.run)}: run the same command again, which chooses a stored peer at random, or ask the"
            " operator of the run for the address of a running peer"
        )


def checked_manifest(content: bytes) -> RunManifest:
    """Parse a manifest and return it.

    Raises UserError if the content is empty or malformed, or if the manifest states why the run cannot be joined.
    """
    if not content:
        raise UserError(
            "the peers of this run use their own training program, so outerloop join cannot join it: start the same"
            " program on this machine, with this address as initial_peers"
        )
    try:
        manifest = parse(content)
    except MalformedMessage as error:
        raise UserError(f"{error}: install the version of outerloop that the run uses") from error
    if manifest.reason:
        raise UserError(
            f"this run cannot be joined with outerloop join, because {manifest.reason}: ask its operator for the"
            " options, and run outerloop train"
        )
    return manifest


def refuse_without_peers(offer: Offer, address: str) -> None:
    """Raise UserError if no peer is in the run. Call this only on a machine without a checkpoint of the run.

    A relay forwards the manifest also when all peers have left. `address`: where the offer came from.
    """
    if offer.peer_id != peer_of(address) and not offer.seen:
        raise UserError(
            f"the relay at this address finds no active peer of run {offer.manifest.run} (the run has ended or is"
            " interrupted): ask the operator of the run, or try again later"
        )
