"""Use an invite to join a run with an allow-list: fetch the run's settings, then have this machine's key admitted."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from outerloop.commands.doctor.network import last_line
from outerloop.commands.join.offer import Offer, checked_manifest
from outerloop.commands.join.other_peers import answering_others
from outerloop.commands.join.run_folder import default_folder
from outerloop.commands.join.settings import typed_values, uses_open_internet
from outerloop.commands.join.silence import why_silent
from outerloop.commands.observe import roster_from_worker
from outerloop.config.manifest.allowed_options import is_plain
from outerloop.config.manifest.content import RunManifest
from outerloop.config.manifest.describe_run import RUN
from outerloop.config.option_mapping import to_overrides
from outerloop.config.run_directory import identity_file
from outerloop.swarm.access.access_control import AccessControl, AllowList, RejectionLog
from outerloop.swarm.access.identity import ensure_identity
from outerloop.swarm.access.invite_register import InviteRegister
from outerloop.swarm.access.invites import Token, digest_of_list
from outerloop.swarm.access.register_files import folder_of
from outerloop.swarm.access.signatures import Signatures
from outerloop.swarm.invites.invite_client import InviteRefused, look, use
from outerloop.swarm.manifest.run_manifest import fetch
from outerloop.swarm.membership.known_addresses import peer_of
from outerloop.swarm.p2p.framing import BrokenStream
from outerloop.swarm.p2p.observer import ObserverNode, visit
from outerloop.swarm.p2p.transport import Unreachable
from outerloop.swarm.storage import Folder
from outerloop.swarm.timeouts import HISTORY_S, OPEN_S
from outerloop.swarm.validation import MalformedMessage, quote
from outerloop.types import UserError

NEW = "ask the operator who sent it for a new one (outerloop invite)"
REFUSALS = {
    "run": "is for another run than that of this peer: use the address that came with the invite",
    "issuer": f"was not issued by a listed peer of this run: {NEW}",
    "removed": (
        "is of a machine that was removed from the run: ask the organizer, who can readmit it with outerloop expelled"
        " RUN_DIR --lift NAME"
    ),
    "used": f"was already used by another machine: {NEW}",
    "withdrawn": f"was withdrawn: {NEW}",
    "expired": f"has expired: {NEW}",
    "starting": (
        "is limited to a number of rounds, and the peer at this address is in no round yet: try again once it trains"
    ),
    "full": "cannot be used, because too many peers were invited: ask the operator to list this machine's id instead",
    "invited": "cannot be used at a peer that was invited itself: use the address of a listed peer",
}
"""Word with which a peer refuses an invite (InviteService.objection) -> what is wrong, and what to do."""


class Invitation:
    """An invite, the peer at which this machine uses it, and this machine's run directory, which has its key file.

    `open_internet`: whether to use relays and hole punching. `listed`: the run's allow-list. It is empty until
    `ask_peer` has received it.
    """

    def __init__(self, token: Token, address: str, run_dir: Path, *, open_internet: bool) -> None:
        self._token, self._address, self.run_dir = token, address, run_dir
        self._identity = identity_file(run_dir, 0)
        self._open_internet = open_internet
        self._receiver = peer_of(address)
        self.listed: Sequence[str] = ()

    @staticmethod
    def read(text: str, typed: Sequence[str], *, address: str) -> Invitation:
        """Parse a token.

        Raises UserError if it is malformed, if the run id is not plain text, because this command uses it in the name
        of a folder, or if the user asked for more than one worker.

        `typed`: options that the user typed, which may contain run_dir, workers and exchange.open_internet.
        """
        try:
            token = Token.from_text(text)
        except MalformedMessage as error:
            raise UserError(f"--invite: {error}: copy the whole token, or {NEW}") from error
        if not is_plain(RUN, token.invite.run):
            raise UserError(
                f"--invite: the invite is for run {quote(token.invite.run)}, but the id of a run contains only letters,"
                f" digits, spaces and _ . , : + -: {NEW}"
            )
        options = typed_values(typed)
        if options.get("workers", 1) != 1:
            raise UserError("an invite admits one worker: leave workers= out, and use one invite for each machine")
        default = default_folder(token.invite.run, {peer_of(address), token.invite.issuer})
        run_dir = Path(str(options.get("run_dir", default)))
        return Invitation(token, address, run_dir, open_internet=uses_open_internet(options))

    @property
    def run(self) -> str:
        """The id of the run, as the issuer signed it."""
        return self._token.invite.run

    @property
    def overrides(self) -> list[str]:
        """The options that this machine sets as a member of the run: its allow-list."""
        return to_overrides({"exchange.allow": list(self.listed)})

    def ask_peer(self) -> Offer:
        """Show the token to the peer, and return the settings of the run. The token can still be used afterwards.

        Raises UserError if the invite is not accepted, if the settings are those of another run, or if the peer does
        not answer.
        """
        with self._looking() as node:
            signed = node.call(fetch(node, self._receiver), timeout_s=2 * OPEN_S)
            manifest = checked_manifest(signed.content if signed else b"")
            self._check_run(manifest)
            seen = roster_from_worker(node, self._address, self._token.invite.run)()
            return Offer(manifest, self._receiver, seen, signed, answering_others(node, seen, self._address))

    @contextmanager
    def sources(self) -> Iterator[tuple[ObserverNode, list[str]]]:
        """Yield a node and the ids of the peers from which it can read the index of the training data.

        There is only one such peer: the one to which the node has shown the token.
        """
        with self._looking() as node:
            yield node, [self._receiver]

    def use(self) -> None:
        """Ask the peer to admit this machine's key, and store the admission next to the key file.

        Create the key if this machine has none yet.

        Raises UserError if the invite is not accepted, or if the peer does not answer.
        """
        own = Signatures.of(ensure_identity(self._identity))
        with self._visiting() as node:
            binding = self._token.binding(own.peer_id)
            statements = node.call(use(node, self._receiver, binding), timeout_s=2 * HISTORY_S)
        trust = AccessControl(own, AllowList(self.listed), RejectionLog())
        register = InviteRegister(Folder(folder_of(self._identity)), trust, run=self._token.invite.run)
        try:
            asyncio.run(register.add(statements))
        except MalformedMessage as error:
            raise UserError(f"the peer at {self._address} sent a forged admission ({error}): {NEW}") from error
        if own.peer_id not in register.peers.last:
            raise UserError(f"the peer at {self._address} did not admit this machine: {NEW}")

    @contextmanager
    def _looking(self) -> Iterator[ObserverNode]:
        """Connect to the peer and show the token, so that the peer lets this machine read the settings of the run."""
        own = Signatures.of(self._identity).peer_id if self._identity.exists() else ""
        with self._visiting() as node:
            listed = node.call(look(node, self._receiver, self._token, peer=own), timeout_s=2 * OPEN_S)
            self._check_list(listed)
            self.listed = listed
            yield node

    def _check_list(self, listed: Sequence[str]) -> None:
        """Raise UserError unless `listed` is the list of the peer that issued the invite."""
        if digest_of_list(listed) != self._token.invite.listed:
            raise UserError(
                f"the allow-list of the peer at {self._address} is not that of the peer that issued the invite: {NEW}"
            )

    def _check_run(self, manifest: RunManifest) -> None:
        """Raise UserError unless the manifest is that of the run in the invite."""
        if str(manifest.run) != self.run:
            raise UserError(
                f"the peer at {self._address} sent the settings of run {quote(manifest.run)}, but the invite is for run"
                f" {quote(self.run)}: use the address that came with the invite, or {NEW}"
            )

    @contextmanager
    def _visiting(self) -> Iterator[ObserverNode]:
        """Connect to the peer as a visitor with a new key. Refusals and network errors are raised as UserErrors."""
        try:
            with visit(open_internet=self._open_internet) as node:
                self._dial(node)
                yield node
        except InviteRefused as refusal:
            what = REFUSALS.get(str(refusal), f"is not accepted: {NEW}")
            raise UserError(f"the invite {what}") from refusal
        except (Unreachable, BrokenStream, TimeoutError) as error:
            raise UserError(
                f"the peer at {self._address} does not accept invites ({last_line(error)}): check that it runs; leave"
                " --invite out if the run has no allow-list"
            ) from error

    def _dial(self, node: ObserverNode) -> None:
        """Connect to the peer. Raises UserError if that fails."""
        try:
            node.call(node.dial(self._address), timeout_s=2 * OPEN_S)
        except (Unreachable, TimeoutError) as error:
            raise UserError(why_silent(self._address)) from error
