"""`outerloop invite`: print a token with which one machine can join a run with an allow-list, or withdraw it."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path

from outerloop.commands.arguments import Parser
from outerloop.commands.doctor.network import local_ip
from outerloop.commands.invite.issued_tokens import IssuedToken, add_token, minute, token_lines, unused
from outerloop.commands.invite.withdrawal import withdraw
from outerloop.commands.join_line import address_hint, join_command
from outerloop.commands.listed_workers import ListedRun, ListedWorker, listed_run, peers_of
from outerloop.config.manifest.content import parse
from outerloop.config.manifest.describe_run import describe
from outerloop.swarm.access.admissions import Admission, Removal
from outerloop.swarm.access.invited_peers import MAX_PER_ISSUER, InvitedPeers
from outerloop.swarm.access.invites import NAME, Token
from outerloop.swarm.access.register_files import ADDRESS
from outerloop.swarm.validation import MAX_NUMBER
from outerloop.types import UserError

DESCRIPTION = """\
Prints a token with which one machine can join a run with an allow-list, and the line to type on that machine. The first
machine that uses the token is admitted; no list is edited. Run this command on a machine whose id is in exchange.allow.
The run need not be active. Send the line over a private channel: anyone who has the line can use the token."""

EXAMPLES = """\
examples
  outerloop invite runs/mine                               valid for 7 days
  outerloop invite runs/mine --name lab-2 --expires 12h
  outerloop invite runs/mine --rounds 500                  the machine takes part in 500 rounds at most
  outerloop invite runs/mine --list                        the peers that were invited to the run, and unused tokens
  outerloop invite runs/mine --withdraw lab-2              the token that was printed with this name cannot be used

An invited machine cannot invite others. outerloop expel RUN_DIR ID removes it. A token that was sent to the wrong
person can be withdrawn on the machine that printed it, until a machine has used it. This cannot be undone: print a new
token. A machine that uses the token later, at a peer that has not heard of the withdrawal yet, is stopped as soon as
that peer hears of it."""

ANY_ADDRESS = {"0.0.0.0": "192.0.2.1", "::": "2001:db8::1"}
"""Wildcard host -> a reserved, remote address (RFC 5737, 3849). `local_ip` returns the local address of its route."""
UNITS = {"m": 60, "h": 3600, "d": 86400}
MAX_EXPIRES_S = 90 * UNITS["d"]
"""Longest time for which a token can be valid."""


def parser() -> Parser:
    """Return the option parser."""
    out = Parser("invite", example="outerloop invite runs/mine", description=DESCRIPTION, epilog=EXAMPLES)
    out.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="the run's run_dir on this machine")
    out.add_argument("--name", default="", help="name of the machine, for lists and logs")
    rounds = "rounds in which it may take part; each fragment counts (default: 0, no limit)"
    out.add_argument("--rounds", type=int, default=0, help=rounds)
    out.add_argument("--expires", default="7d", help="how long the token can be used: 30m, 12h or 7d (default: 7d)")
    instead = out.add_mutually_exclusive_group()
    instead.add_argument("--list", action="store_true", help="list the invited peers and this machine's tokens instead")
    instead.add_argument(
        "--withdraw",
        metavar="TOKEN",
        help="withdraw an unused token instead: its name, its id in the list, or its text",
    )
    return out


def main(arguments: Sequence[str]) -> int:
    """Run the command and return exit code 0.

    Raises UserError if an option is invalid, or if this machine cannot invite others to the run.
    """
    options = parser().parse_args(arguments)
    if options.name and not NAME.fullmatch(options.name):
        raise UserError(
            f"invite: --name {options.name} must be 1 to 32 letters, digits, _ . or -, starting with a letter or digit:"
            " pass --name lab-2"
        )
    if not 0 <= options.rounds <= MAX_NUMBER:
        raise UserError(f"invite: --rounds {options.rounds} is out of range: pass 1 or more, or 0 for no limit")
    expires_s = int(time.time()) + seconds(options.expires)
    run = listed_run(options.run_dir, command="invite")
    if options.list:
        peers = peers_of(run.workers[0])
        tokens = token_lines(run.workers[0], peers, now_s=time.time())
        print("\n".join([*(lines(peers) or ["no peer was invited"]), *tokens]))
        return 0
    if options.withdraw is not None:
        print(withdraw(run, options.withdraw, now_s=time.time()))
        return 0
    if not run.config.exchange.get("invites", False):
        raise UserError(
            "invite: this run accepts no invites: restart it with exchange.invites=true on all machines, or add the id"
            " of the new machine to all lists"
        )
    if reason := parse(describe(run.config).encode()).reason:
        raise UserError(f"invite: no machine can join this run with outerloop join, because {reason}: edit the lists")
    token = issue(run, name=options.name, expires_s=expires_s, rounds=options.rounds)
    print(f"a token for one machine to join run {run.run}, to be used before {minute(expires_s)}")
    print("\n".join(how_to_join(addresses(run.workers[0]) or configured_addresses(run), token)))
    return 0


def how_to_join(known: Sequence[str], token: str) -> list[str]:
    """Return what to do on the invited machine, ending with the line to type. `known`: addresses of a listed worker."""
    if not known:
        return [
            "on that machine; replace ADDRESS with the address that this machine prints when the run starts here:",
            f"\nouterloop join ADDRESS --invite {token}",
        ]
    hint = address_hint(known, announce="exchange.announce=[/ip4/ADDRESS/tcp/{port}]")
    return [*([f"{hint}\n"] if hint else []), "on that machine:", f"\n{join_command(known)} --invite {token}"]


def issue(run: ListedRun, *, name: str, expires_s: int, rounds: int) -> str:
    """Return a new token, signed by the first listed worker, and record it.

    Raises UserError if this machine has already invited the maximum number of peers.
    """
    worker = run.workers[0]
    now_s = time.time()
    peers = peers_of(worker).without_outdated(now_s=now_s)
    number = len(unused(worker, peers, now_s=now_s)) + peers.number_by(worker.signatures.peer_id)
    if number >= MAX_PER_ISSUER:
        raise UserError(
            f"invite: this machine has reached the limit of {MAX_PER_ISSUER} invited peers, unused and withdrawn"
            " tokens: wait until some tokens have expired, or invite from another listed machine"
        )
    token = Token.new(worker.signatures, run=run.run, listed=run.allow, name=name, expires_s=expires_s, rounds=rounds)
    add_token(worker, IssuedToken(token.invite.digest, expires_s, name), now_s=now_s)
    return token.to_text()


def lines(peers: InvitedPeers) -> list[str]:
    """Return one line for each invited peer."""
    return [line(one, peers.removals.get(one.peer)) for one in peers.used]


def line(admission: Admission, removal: Removal | None) -> str:
    """Return one line that states who invited a peer, when it joined, its last round, and whether it was removed."""
    limit = "" if admission.last is None else f", up to round {admission.last} (from 0; each fragment counts)"
    removed = "; removed from the run" if removal is not None and not removal.lifted else ""
    name = admission.invite.name or "-"
    return (
        f"{admission.peer} {name} invited by {admission.invite.issuer}, joined {minute(admission.at_s)}{limit}{removed}"
    )


def addresses(worker: ListedWorker) -> list[str]:
    """Return the addresses at which a worker listened when it last ran; none if it has never run."""
    return bytes(worker.access.read(ADDRESS)).decode().splitlines() if ADDRESS in worker.access.names() else []


def configured_addresses(run: ListedRun) -> list[str]:
    """Return the addresses at which the first listed worker will listen; none if the port is chosen at its start."""
    options, worker = run.config.exchange, run.workers[0]
    peer = f"/p2p/{worker.signatures.peer_id}"
    if announced := options.get("announce"):
        return [f"{address}{peer}" for address in announced]
    if not options.get("port"):
        return []
    host = str(options.get("host") or "127.0.0.1")
    ip = local_ip(ANY_ADDRESS[host]) if host in ANY_ADDRESS else host
    return [f"/ip{6 if ':' in ip else 4}/{ip}/tcp/{options.port + worker.index}{peer}"] if ip else []


def seconds(text: str) -> int:
    """Return a duration in seconds. Raises UserError if it is malformed or too long."""
    match = re.fullmatch(r"([1-9][0-9]{0,5})([mhd])", text)
    value = int(match[1]) * UNITS[match[2]] if match else 0
    if not 0 < value <= MAX_EXPIRES_S:
        raise UserError(f"invite: --expires {text} must be from 1m to 90d: pass --expires 30m, 12h or 7d")
    return value
