"""Accept invites, and exchange the admissions, removals and withdrawals with the other peers.

    outerloop/1/invites   {look, proof, peer}   ->   <- {listed} | {refused}   look: an invite; listed: exchange.allow
                          {use}                 ->   <- {count} | {refused}, then each known statement in its own frame
                          {known}               ->   <- {count}, then each known statement in its own frame
                          {tell}                ->                             tell: one statement

The first two requests are for machines that are not in the run yet. Only a listed peer accepts them.

    look    shows a token. Afterwards, the asking machine may read the roster, the run manifest, the contributions, the
            expelled peers, and the index of the training data
    use     contains a binding (invites.py), which names the peer to admit. The receiver signs that it received the
            binding, stores this admission, and sends it to the other peers. A repeated use for the same peer is
            answered only with the statements about that peer, because any peer of the run could repeat the request
    known   sha256 of the asking peer's statements. If both peers know the same statements, none is sent. Answered only
            to peers that may take part
    tell    may be sent by any peer, because the signatures in a statement prove that it is genuine (invite_register.py)

`refused` is one word. commands/join/invitation.py maps it to a message that states what to do.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial

import msgpack

from outerloop.swarm.access.access_control import INVITES
from outerloop.swarm.access.admissions import Admission, Statement
from outerloop.swarm.access.invite_register import InviteRegister
from outerloop.swarm.access.invited_peers import MAX_ADMISSIONS, MAX_PER_ISSUER
from outerloop.swarm.access.invites import Binding, Invite, may_look
from outerloop.swarm.access.rate_limits import Budget, Rate, loop_s
from outerloop.swarm.access.register_files import packed, parsed
from outerloop.swarm.invites.invite_client import PROTOCOL, ask, digest_of, tell
from outerloop.swarm.p2p.framing import BrokenStream, Stream, Unreadable
from outerloop.swarm.p2p.network_thread import BackgroundTasks
from outerloop.swarm.p2p.transport import Request, RpcService, Transport, Unreachable
from outerloop.swarm.validation import MAX_PEERS, MalformedMessage

logger = logging.getLogger(__name__)
AROUND_S = 10.0
"""Pause between two polls, of which each asks one random peer. So this peer sends about six polls per minute."""
STATEMENTS, STATEMENTS_OF_STRANGERS = Rate(burst=64, per_s=1), Rate(burst=64, per_s=4)
"""Rate limits for the statements that this peer receives: per sender, and in total for all senders that may not take
part in the run. Checking a statement takes up to 1 ms; a new and valid one is also written to disk and sent to all
peers. The first limit also applies to the new statements in a peer's answers to polls: an answer that exceeds it is
accepted, but that peer is not polled again until the limit allows it."""
MAX_SENDING = 16
"""Maximum number of statements that are being sent at the same time."""
MAX_QUEUED = 8
"""Maximum number of statements that are being sent to one peer, or wait for this. A statement beyond this limit is not
sent to that peer, which receives it when it polls. Otherwise, a listed peer could sign statements faster than the peers
that it invited accept them."""
MAX_QUEUED_IN_TOTAL = MAX_QUEUED * MAX_PEERS
"""Maximum number of such statements to all peers, because a listed peer can replace the peers that it invited."""
TOO_MANY = "sent too many statements about invited peers"


class InviteService(RpcService):
    """Accepts invites, and keeps the register up to date. Only for a run with an allow-list and exchange.invites."""

    service = INVITES

    def __init__(self, transport: Transport, register: InviteRegister, *, run: str) -> None:
        super().__init__(transport, run=run)
        self._protocol = PROTOCOL
        self._register, self._run, self._trust = register, run, transport.trust
        self._received, self._polled = (
            Budget(STATEMENTS, STATEMENTS_OF_STRANGERS, is_member=self._trust.allow.__contains__, now_s=loop_s)
            for _ in range(2)
        )
        self._using, self._slots = asyncio.Lock(), asyncio.Semaphore(MAX_SENDING)
        self._random = random.Random(transport.peer_id)
        self._sending = BackgroundTasks()
        self._queued: Counter[tuple[str, bool]] = Counter()  # (peer, whether it may take part) -> statements

    async def keep_up(self) -> None:
        """Poll all peers once, then one random peer at a time, until cancelled.

        If this peer was invited, it first sends its own admission to all peers, because some may not know it.
        """
        polled: Sequence[str] = self._others()
        self.tell([one for one in self._register.peers.used if one.peer == self._transport.peer_id])
        while True:
            await asyncio.gather(*map(self._poll, polled))
            await asyncio.sleep(AROUND_S)
            others = self._others()
            polled = [self._random.choice(others)] if others else []

    def objection(self, invite: Invite, *, peer: str) -> str:
        """Return one word that states why this peer does not accept an invite, or "" if it accepts the invite.

        `peer`: id of the peer to admit, or "" if it is not known yet.
        """
        peers, allow = self._register.peers, self._trust.allow
        if self._transport.peer_id not in allow.configured:
            return "invited"
        if invite.run != self._run:
            return "run"
        if invite.issuer not in allow.listed or not invite.is_signed(self._trust.signatures):
            return "issuer"
        if peer in peers.removed:
            return "removed"
        if user := peers.user_of(invite):
            return "" if user == peer else "used"
        if (invite.issuer, invite.digest) in peers.withdrawals:
            return "withdrawn"
        if invite.rounds and allow.current_number() is None:
            return "starting"
        if self._register.now_s() > invite.expires_s:
            return "expired"
        full = peers.number_by(invite.issuer) >= MAX_PER_ISSUER or len(peers.admissions) >= MAX_ADMISSIONS
        return "full" if full else ""

    async def _answer(self, remote: str, request: Request, stream: Stream) -> None:
        try:
            if "look" in request:
                await self._answer_look(remote, request, stream)
            elif "use" in request:
                await self._answer_use(remote, Binding.from_list(request["use"]), stream)
            elif "tell" in request:
                await self._receive(remote, parsed(request["tell"]))
                return
            elif remote in self._trust.allow:
                shared = self._register.peers.shared
                await self._send([] if request.get("known") == digest_of(shared) else shared, stream)
            else:
                await stream.turn_away()
                return
        except MalformedMessage as error:
            raise Unreadable(str(error)) from error
        await stream.ended()

    async def _answer_look(self, remote: str, request: Request, stream: Stream) -> None:
        invite, peer = Invite.from_list(request["look"]), request.get("peer")
        why = self.objection(invite, peer=peer if type(peer) is str else "")
        if not why and not may_look(invite, remote, request.get("proof"), self._trust.signatures):
            why = "issuer"
        if why:
            await self._refuse(remote, why, stream)
            return
        self._trust.let_look(remote)
        await stream.send_object({"listed": sorted(self._trust.allow.configured)})

    async def _answer_use(self, remote: str, binding: Binding, stream: Stream) -> None:
        async with self._using:  # of two bindings of one token, only one must count as the first
            why = self.objection(binding.invite, peer=binding.peer)
            if not why and not binding.is_signed(self._trust.signatures):
                why = "issuer"
            known = not why and self._register.peers.user_of(binding.invite)
            if not why and not known:
                await self._admit(binding)
        if why:
            await self._refuse(remote, why, stream)
        else:
            await self._send(self._register.peers.about(binding.peer) if known else self._register.peers.shared, stream)

    async def _admit(self, binding: Binding) -> None:
        at_s, number = int(self._register.now_s()), self._trust.allow.current_number() or 0
        admission = Admission.new(binding, self._trust.signatures, at_s=at_s, number=number)
        self.tell(await self._register.add([admission]))

    async def _refuse(self, remote: str, why: str, stream: Stream) -> None:
        self._trust.rejections.note("outsiders", remote, f"showed an invite that is not accepted: {why}")
        await stream.send_object({"refused": why})

    async def _send(self, statements: Sequence[Statement], stream: Stream) -> None:
        await stream.send_object({"count": len(statements)})
        for one in statements:
            await stream.send(msgpack.packb(packed(one)))

    async def _receive(self, remote: str, statement: Statement) -> None:
        """Accept a statement that a peer has sent and, if it is new, send it to the other peers."""
        if lacking := self._received.spend(remote):
            self._trust.rejections.note("requests", lacking, TOO_MANY)
            return
        self.tell(await self._add(remote, [statement]), received_from=remote)

    async def _poll(self, peer: str) -> None:
        """Ask a peer for its statements, and send each new one to the peers that it stops.

        They are not sent to all peers, because all peers poll.
        """
        if lacking := self._polled.lacking(peer):
            self._trust.rejections.note("requests", lacking, TOO_MANY)
            return
        try:
            statements = await ask(self._transport, peer, known=digest_of(self._register.peers.shared))
        except (BrokenStream, Unreachable, TimeoutError) as error:
            logger.debug("could not ask %s for the invited peers: %s", peer, error)
            return
        self._polled.charge(peer, self._register.cost(statements))
        for one in await self._add(peer, statements):
            self._notify_stopped(one)

    async def _add(self, remote: str, statements: Sequence[Statement]) -> list[Statement]:
        """Accept statements from a peer, and return the new ones."""
        try:
            return await self._register.add(statements)
        except MalformedMessage as error:
            self._trust.rejections.note("requests", remote, str(error))
            return []

    def tell(self, statements: Iterable[Statement], *, received_from: str = "") -> None:
        """Send statements to all other peers, and notify the peers that they stop, in the background."""
        for statement in filter(self._register.is_shared, statements):
            self._start_sending(statement, {*self._others()} - {received_from})
            self._notify_stopped(statement)

    def _notify_stopped(self, statement: Statement) -> None:
        """Send the proof to the peers that a statement stops.

        A removed peer receives its removal. If a token was used twice, the second peer receives the admission of the
        first one. If a token was withdrawn before it was used, the peer that used it receives the withdrawal.
        """
        self._start_sending(*self._register.peers.stopped_by(statement))

    def _start_sending(self, statement: Statement, peers: Iterable[str]) -> None:
        """Send a statement to each of these peers in the background, unless too many to that peer, or in total, wait.

        Statements to a peer that may no longer take part are counted separately, so that it receives the proof of this.
        """
        for peer in {*peers} - {self._transport.peer_id}:
            queue = peer, peer in self._trust.allow
            if self._queued[queue] >= MAX_QUEUED or len(self._sending) >= MAX_QUEUED_IN_TOTAL:
                logger.debug("a statement to %s was dropped: %d wait", peer, len(self._sending))
                continue
            self._queued[queue] += 1
            self._sending.start(self._tell(peer, statement)).add_done_callback(partial(self._ended, queue))

    def _ended(self, queue: tuple[str, bool], _: asyncio.Task[None]) -> None:
        self._queued[queue] -= 1
        if not self._queued[queue]:
            del self._queued[queue]

    async def _tell(self, peer: str, statement: Statement) -> None:
        try:
            async with self._slots:
                await tell(self._transport, peer, statement)
        except (BrokenStream, Unreachable, TimeoutError) as error:
            logger.debug("%s did not receive a statement (%s): %s", peer, packed(statement)[0], error)

    def _others(self) -> list[str]:
        return sorted(self._trust.allow.admitted - {self._transport.peer_id})
