"""Form a run: agree with the other peers on one sorted list of members, which also determines their ranks.

The members are the first `peers` peers that joined, counting only those with the same settings (mismatched_peers.py
handles the others), and none that was invited for a number of rounds: these rounds may be over, and the peers do not
know the current round yet. Such a peer joins late. Peers may see different rosters for a while, so each peer asks every
other peer for its member list:

    all members report the same list          the run has formed
    more than half of the members report      the run forms without the other members, after FORM_GRACE_S or once a
    the same list                             peer has formed with this list; this peer logs their names
    other peers have already formed with a    this peer adopts their list, so that a surplus machine that appears a
    list that contains this peer              moment later cannot separate it from the members that have formed
    other peers have already formed with a    this peer adopts the list, and is a late joiner
    list that does not contain this peer

The member list, including the join times, determines the session id. Votes and commits are valid only in their session.
If all peers resume a run, they form a new session. A peer that restarts while the others continue, and remembers their
session, rejoins it. A peer that joins the run and has no checkpoint of it (`newcomer`) does not form the run as its
only member: if no other peer is there, the run has ended or is interrupted. A late joiner is not a member: the members
know its name, and it can join the roster of the gather rounds once it has the state.

A peer believes that the run has formed with a member list if more than half of the voters report it. For what a
minority can do, see consensus/proof.py. The voters are:

    if this peer is in the member list        the members in that list, including this peer; counted as `peers` if they
                                              are fewer
    else, in a run with exchange.allow        the other peers on the allow-list, which also vote on the commits
    else, in an open run or in gossip         the peers with which this peer would form the run, if there are enough of
                                              them; otherwise all peers that report a formed list

A session that this peer remembers needs no proof.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable

from outerloop.swarm.membership.late_joiners import LateJoiners
from outerloop.swarm.membership.member_list import (
    Members,
    is_name,
    names_in,
    objection,
    receive_pages,
    send_pages,
    session_of,
)
from outerloop.swarm.membership.member_poll import MemberPoll
from outerloop.swarm.membership.mismatched_peers import MismatchedPeers
from outerloop.swarm.membership.roster import Record, Roster, id_of
from outerloop.swarm.p2p.framing import BrokenStream, Stream, TurnedAway, Unreadable
from outerloop.swarm.p2p.transport import Request, RpcService, Transport, Unreachable
from outerloop.swarm.timeouts import FORM_GRACE_S, FORM_POLL_S, VIEW_S, limit
from outerloop.swarm.validation import MAX_PEERS
from outerloop.types import UserError

logger = logging.getLogger(__name__)


class Formation(RpcService):
    """This peer's part in forming the run, and the members that it knows.

    `names`: peer id -> name of every member, sorted by name. `session`: id of the session. `late_joiner`: whether the
    session had already started without this peer. All three are final once `form` has returned. `remembers`: returns
    whether this peer has already taken part in the session with this id, or None if sessions are not remembered, as in
    gossip. `newcomer`: this peer does not form the run alone.
    """

    service = "members"

    def __init__(
        self,
        transport: Transport,
        roster: Roster,
        *,
        run: str,
        peers: int,
        own: Record,
        mismatched: MismatchedPeers,
        newcomer: bool = False,
        remembers: Callable[[str], bool] | None = None,
    ) -> None:
        super().__init__(transport, run=run)
        self._roster = roster
        self._run = run
        self._remembers = remembers
        self._peers = peers
        self._own = own
        self._mismatched = mismatched
        self._newcomer = newcomer
        self._members: Members = [[own.name, own.joined]]
        self._poll = MemberPoll.of([], run=run, peers=peers, own=own)
        self._formed = False
        self._late = LateJoiners(self._present)
        self.late_joiner = False
        self._majority: tuple[Members, float] = [], math.inf  # list reported by more than half, and since when

    def __contains__(self, peer_id: str) -> bool:
        return peer_id in self.known

    @property
    def names(self) -> dict[str, str]:
        return {id_of(name): name for name, _ in self._members}

    @property
    def known(self) -> dict[str, str]:
        """Map from id to name of all members and late joiners."""
        return self._late.names | self.names

    @property
    def session(self) -> str:
        return session_of(self._run, self._members)

    async def form(self, *, timeout_s: float) -> None:
        """Wait until the run has formed.

        Raises UserError if that takes longer than `timeout_s` (the message names the peers present), if this peer's own
        settings are probably wrong, or if more than half of the peers reject this peer.
        """
        pause_s = FORM_POLL_S[0]
        try:
            async with limit(timeout_s):
                while not await self._agreed():
                    await asyncio.sleep(pause_s)
                    pause_s = min(1.5 * pause_s, FORM_POLL_S[1])
        except TimeoutError as error:
            poll = self._poll
            lines = poll.describe_missing(timeout_s), poll.describe_rejection(), self._mismatched.line()
            raise UserError("; ".join(filter(None, lines))) from error

    async def _answer(self, remote: str, request: Request, stream: Stream) -> None:
        """Answer a request from any peer with this peer's member list, which is not secret: the roster is public."""
        name = request.get("name")
        if is_name(name) and id_of(name) == remote:
            self._welcome(remote, name)
        names = self.names
        late = [name for peer_id, name in self._late.names.items() if peer_id not in names]
        await send_pages(stream, {"formed": self._formed}, self._members, late)
        await stream.ended()
        await self._late.forget_gone()

    def _welcome(self, peer_id: str, name: str) -> None:
        """Record the name of a peer that sent a request. Raises Unreadable if the peer used another name before."""
        known = self.known.get(peer_id, name)
        if known != name:
            raise Unreadable(f"it calls itself {name}, but is known as {known}")
        if not self._late.add(name):
            self._transport.trust.rejections.note("outsiders", peer_id, f"there are already {MAX_PEERS} late joiners")

    async def _present(self) -> Iterable[str]:
        return [record.peer_id for record in await self._roster.read()]

    async def _agreed(self) -> bool:
        """Poll the other peers once. Return whether the run has formed."""
        records = await self._mismatched.leave_out(await self._roster.read())
        if odd := self._mismatched.odd(records):
            await asyncio.sleep(2 * FORM_POLL_S[1])  # stay in the roster until the other peers have seen this peer
            raise UserError(odd)
        allow = self._transport.trust.allow
        limited = frozenset(record.peer_id for record in records if allow.may_be_past_limit(record.peer_id))
        poll = MemberPoll.of(records, run=self._run, peers=self._peers, own=self._own, limited=limited)
        self._poll, self._members = poll, poll.members
        await asyncio.gather(*(self._ask(poll, other) for other in poll.others))
        self._late.add_reported(poll.late.values())
        self._conclude(poll)
        if not self._formed and poll.is_rejected(allow.listed):
            raise UserError(poll.describe_rejection())
        return self._formed

    async def _ask(self, poll: MemberPoll, other: Record) -> None:
        """Ask a peer for its member list. Give up after VIEW_S, because the peer may be slow or dead."""
        try:
            async with limit(VIEW_S), self._stream_to(other.peer_id) as stream:
                await stream.send_object({"name": self._own.name})
                answer = await receive_pages(stream)
        except TurnedAway as refusal:
            poll.turned_away_by[other.name] = refusal.why
            return
        except (BrokenStream, TimeoutError, Unreachable):
            return
        if answer["members"] == poll.members and poll.is_listed:
            poll.silent.discard(other.name)
        if answer.get("formed"):
            self._take_list(poll, other.name, answer)

    def _take_list(self, poll: MemberPoll, reporter: str, answer: Request) -> None:
        """Record the members and late joiners reported by a peer that has formed, if its member list is valid."""
        allow = self._transport.trust.allow
        if why := objection(answer["members"], allow):
            self._transport.trust.rejections.note("requests", reporter, f"{self._protocol}: {why}")
            return
        poll.formed_lists[reporter] = answer["members"]
        poll.late[reporter] = names_in(answer["late"], allow)

    def _conclude(self, poll: MemberPoll) -> None:
        """Decide whether the run has formed: with the list of most formed peers, or else with this peer's list."""
        formed = poll.majority_list()
        self._note_dissent(poll, formed)
        is_member = [self._own.name, self._own.joined] in formed and not self._remembers_that(formed)
        if formed and self._is_backed(poll, formed, is_member):
            self.late_joiner = not is_member
            self._members, self._formed = formed, True
        elif self._may_form(poll) and self._enough_see_the_same(poll):
            self._formed = True

    def _may_form(self, poll: MemberPoll) -> bool:
        """Return whether this peer may form the run with its own member list. A newcomer may not do so alone."""
        return poll.is_complete and not (self._newcomer and len(poll.members) == 1)

    def _note_dissent(self, poll: MemberPoll, formed: Members) -> None:
        """Log each formed peer whose member list differs from `formed`, the list that most formed peers report."""
        for name in [name for name, members in poll.formed_lists.items() if formed and members != formed]:
            self._transport.trust.rejections.note(
                "ballots", name, "reports a different member list than most peers that have formed"
            )

    def _is_backed(self, poll: MemberPoll, formed: Members, is_member: bool) -> bool:
        """Return whether enough peers report that the run has formed with the members `formed`.

        If this peer remembers the session of these members, no reports are needed.
        """
        listed = self._transport.trust.allow.listed if self._remembers else frozenset[str]()
        return poll.is_backed(formed, is_member=is_member, listed=listed) or self._remembers_that(formed)

    def _remembers_that(self, members: Members) -> bool:
        return self._remembers is not None and self._remembers(session_of(self._run, members))

    def _enough_see_the_same(self, poll: MemberPoll) -> bool:
        """Return whether enough members report the same list as this peer.

        At first, all members must report it. Once more than half of them have reported it for FORM_GRACE_S, or once any
        peer has formed with it, more than half are enough.
        """
        now_s = asyncio.get_running_loop().time()
        if 2 * len(poll.silent) >= len(poll.members):
            self._majority = [], math.inf
            return False
        if self._majority[0] != poll.members:
            self._majority = poll.members, now_s
        has_formed = poll.members in poll.formed_lists.values()
        if poll.silent and not has_formed and now_s < self._majority[1] + FORM_GRACE_S:
            return False
        for name in sorted(poll.silent):
            logger.warning("the run has formed without %s, which reports a different member list or is silent", name)
        return True
