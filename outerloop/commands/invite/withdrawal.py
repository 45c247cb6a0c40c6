"""`outerloop invite --withdraw`: withdraw a token that this machine has issued and that no machine has used."""

from __future__ import annotations

import asyncio
from typing import NoReturn

from outerloop.commands.invite.issued_tokens import IssuedToken, is_unused, minute, read_tokens
from outerloop.commands.listed_workers import ListedRun, ListedWorker, peers_of
from outerloop.swarm.access.admissions import Withdrawal
from outerloop.swarm.access.invited_peers import MAX_ADMISSIONS, InvitedPeers
from outerloop.swarm.access.invites import PREFIX, Token
from outerloop.swarm.access.register_files import write_waiting
from outerloop.swarm.validation import MalformedMessage
from outerloop.types import UserError


def withdraw(run: ListedRun, given: str, *, now_s: float) -> str:
    """Withdraw the token with this name, id or text at the Unix time `now_s`. Return the line to print.

    Raises UserError if there is no such token, or several, or if a machine has used it, or if it has expired.
    """
    worker, token = find(run, given, now_s=now_s)
    peers = peers_of(worker).without_outdated(now_s=now_s)
    refuse_if_used(token, peers)
    if earlier := peers.withdrawals.get((worker.signatures.peer_id, token.digest)):
        return f"{token.label} was withdrawn before, {minute(earlier.at_s)}: there is nothing to do"
    if token.expires_s <= now_s:
        raise UserError(f"invite: {token.label} expired {minute(token.expires_s)}: no machine can use it any more")
    if len(peers.withdrawals) >= MAX_ADMISSIONS:
        raise UserError(
            f"invite: {MAX_ADMISSIONS} tokens of this run are withdrawn, which is the limit: if a machine uses"
            f" {token.label}, remove it with outerloop expel"
        )
    withdrawal = Withdrawal.new(
        worker.signatures, run=run.run, digest=token.digest, expires_s=token.expires_s, at_s=int(now_s)
    )
    asyncio.run(write_waiting(worker.access, withdrawal))
    return (
        f"{token.label} is withdrawn on all machines: within 10 s if the run is active, otherwise when the run starts"
        " here again"
    )


def find(run: ListedRun, given: str, *, now_s: float) -> tuple[ListedWorker, IssuedToken]:
    """Return the token with this name, id or text, and the worker that has issued it.

    If several tokens have the name, the unused one is returned. If none of them is unused, the newest one is returned.

    Raises UserError if there is no such token, or if several unused ones have the name.
    """
    issued = [(worker, token) for worker in run.workers for token in read_tokens(worker)]
    found = [(worker, token) for worker, token in issued if given and given in (token.name, token.id)]
    if not found:
        return of_text(run, given) if given.startswith(PREFIX) else not_issued(run, given)
    usable = [(worker, token) for worker, token in found if is_unused(token, worker, peers_of(worker), now_s=now_s)]
    if len(usable) > 1:
        ids = " or ".join(token.id for _, token in usable)
        raise UserError(f"invite: {len(usable)} unused tokens have the name {given}: pass the id of one, {ids}")
    return usable[0] if usable else found[-1]


def of_text(run: ListedRun, text: str) -> tuple[ListedWorker, IssuedToken]:
    """Return the token with this text, and the worker that has issued it.

    Raises UserError if the text is malformed, if the token is for another run, or if another machine has issued it.
    """
    try:
        invite = Token.from_text(text).invite
    except MalformedMessage as error:
        raise UserError(f"invite: {error}: copy the whole token, or pass its name") from error
    if invite.run != run.run:
        raise UserError(
            f"invite: the token is for run {invite.run}, not {run.run}: pass the run_dir of run {invite.run}"
        )
    token = IssuedToken(invite.digest, invite.expires_s, invite.name)
    for worker in run.workers:
        if worker.signatures.peer_id == invite.issuer:
            return worker, token
    refuse_if_used(token, peers_of(run.workers[0]))
    raise UserError(
        f"invite: {token.label} was issued by {invite.issuer}: run this command on the machine of that peer"
    )


def not_issued(run: ListedRun, given: str) -> NoReturn:
    """Raise UserError, because this machine has no token with this name or id.

    The error names the user of the token if a machine used it so long ago that it has been dropped from the file.
    """
    peers = peers_of(run.workers[0])
    for one in peers.used:
        if given and given == one.invite.name:
            refuse_if_used(IssuedToken(one.invite.digest, one.invite.expires_s, given), peers)
    raise UserError(
        f"invite: this machine has issued no token {given}, or it has expired: run outerloop invite RUN_DIR --list for"
        " names and ids"
    )


def refuse_if_used(token: IssuedToken, peers: InvitedPeers) -> None:
    """Raise UserError if a machine was admitted with this token."""
    for one in peers.used:
        if one.invite.digest == token.digest:
            raise UserError(
                f"invite: {token.label} was used already: to remove its user, run outerloop expel RUN_DIR {one.peer}"
            )
