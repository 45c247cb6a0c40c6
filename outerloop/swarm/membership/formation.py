"""Membership of a run: which peers take part, and the same sorted list of them everywhere, so that all agree on ranks.

The members are the first `peers` of the roster in the order of joining, of those with the same settings
(mismatched_peers.py has the others). A roster is only what a peer happens to see, so each one asks every other for the
list that *it* sees:

    all of the list tell the same        the swarm has formed
    more than half of it do              it forms after FORM_GRACE_S without the others, and names them
    others have formed, by a list        it goes before what this peer sees itself: a surplus machine that shows up a
    with this peer in it                 moment later cannot separate it from the members that have already formed

The list, with the times of joining, names the sitting: what is agreed on holds in it alone. A run that is resumed as a
whole forms anew; who is restarted while others go on, and remembers their sitting, is back in it. Who comes late is no
member: the others know its name, and the agreement counts on it once it has the state.

That a list has formed is believed when more than half of these tell it (proof.py says what fewer can): of the members
in it, this peer included, if it is one; else of the others on exchange.allow, as for the commits after it; in an open
run, and in gossip, of those that it would form with, or else of all that have formed. A sitting that this peer
remembers needs no proof.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Sequence

from outerloop.swarm.membership.late_joiners import LateJoiners
from outerloop.swarm.membership.member_list import (
    Members,
    is_name,
    names_in,
    objection,
    receive_pages,
    send_pages,
    sitting_of,
)
from outerloop.swarm.membership.mismatched_peers import MismatchedPeers
from outerloop.swarm.membership.roster import Record, Roster, id_of
from outerloop.swarm.p2p.framing import BrokenStream, Stream, TurnedAway, Unreadable
from outerloop.swarm.p2p.transport import Request, Transport, Unreachable, anybody
from outerloop.swarm.timeouts import FORM_GRACE_S, FORM_POLL_S, VIEW_S, limit
from outerloop.swarm.validation import MAX_PEERS
from outerloop.types import UserError

logger = logging.getLogger(__name__)


class Formation:
    """`names`: peer id -> name of every member, in the order of names; final once `form` has returned.

    `sitting` is final then, too, and `came_late`: whether it was under way. `remembers` says whether this peer has been
    in a sitting before; None: nothing is remembered, as in gossip.
    """

    def __init__(
        self,
        transport: Transport,
        roster: Roster,
        *,
        run: str,
        peers: int,
        own: Record,
        mismatched: MismatchedPeers,
        remembers: Callable[[str], bool] | None = None,
    ) -> None:
        self._transport = transport
        self._roster = roster
        self._run = run
        self._remembers = remembers
        self._protocol = f"outerloop/1/{run}/members"
        self._peers = peers
        self._own = own
        self._mismatched = mismatched
        self._silent: set[str] = set()  # of the members here, those that do not tell the same
        self._turned_away_by: set[str] = set()
        self._records: list[Record] = []
        self._members: Members = [[own.name, own.joined]]
        self._formed_lists: dict[str, Members] = {}  # of those who have formed, by who tells it
        self._late_told: dict[str, dict[str, str]] = {}  # by who tells it: peer id -> name
        self._formed = False
        self._late = LateJoiners(self._there)
        self.came_late = False
        self._majority: tuple[Members, float] = [], math.inf  # a list that more than half tell, and since when

    def __contains__(self, peer_id: str) -> bool:
        return peer_id in self.known

    @property
    def names(self) -> dict[str, str]:
        return {id_of(name): name for name, _ in self._members}

    @property
    def known(self) -> dict[str, str]:
        """Members, and who came late."""
        return self._late.names | self.names

    @property
    def sitting(self) -> str:
        return sitting_of(self._run, self._members)

    async def serve(self) -> None:
        """Tell whom this run is open to which members this peer sees: the roster is public already."""
        await self._transport.serve(self._protocol, allowed=anybody, handler=self._tell)

    async def form(self, *, timeout_s: float) -> None:
        """Wait until `peers` members see the same list. Raises UserError, telling who is there."""
        pause_s = FORM_POLL_S[0]
        try:
            async with limit(timeout_s):
                while not await self._agreed():
                    await asyncio.sleep(pause_s)
                    pause_s = min(1.5 * pause_s, FORM_POLL_S[1])
        except TimeoutError as error:
            raise UserError(self._what_is_missing(timeout_s)) from error

    async def _tell(self, remote: str, request: Request, stream: Stream) -> None:
        name = request.get("name")
        if is_name(name) and id_of(name) == remote:
            self._welcome(remote, name)
        names = self.names
        late = [name for peer_id, name in self._late.names.items() if peer_id not in names]
        await send_pages(stream, {"formed": self._formed}, self._members, late)
        await stream.ended()
        await self._late.forget_gone()

    def _welcome(self, peer_id: str, name: str) -> None:
        """Know one that asks by its name. Raises Unreadable when it had another one before."""
        known = self.known.get(peer_id, name)
        if known != name:
            raise Unreadable(f"it names itself {name}, and is {known}")
        if not self._late.add(name):
            self._transport.trust.refusals.note("outsiders", peer_id, f"{MAX_PEERS} came late before it")

    async def _there(self) -> Iterable[str]:
        return [record.peer_id for record in await self._roster.read()]

    async def _agreed(self) -> bool:
        self._records = await self._mismatched.leave_out(await self._roster.read())
        if odd := self._mismatched.odd(self._records):
            await asyncio.sleep(2 * FORM_POLL_S[1])  # stay in the roster until the others have seen it too
            raise UserError(odd)
        first = sorted(self._records, key=lambda record: (record.joined, record.peer_id))[: self._peers]
        self._members = sorted([record.name, record.joined] for record in first)
        self._silent = {name for name, _ in self._members} - {self._own.name}
        self._turned_away_by, self._formed_lists, self._late_told = set(), {}, {}
        others = [record for record in self._records if record.name != self._own.name]
        await asyncio.gather(*map(self._hear, others))
        if self._turned_away_by and len(self._turned_away_by) == len(others):
            raise UserError(self._outside())
        self._late.add_told(self._late_told.values())
        self._conclude(self._most_told())
        return self._formed

    async def _hear(self, other: Record) -> None:
        """What another one sees; nobody who is slow, still starting, or dead and not yet expired is waited for."""
        try:
            async with limit(VIEW_S), self._transport.open_stream(other.peer_id, self._protocol) as stream:
                await stream.send_object({"name": self._own.name})
                answer = await receive_pages(stream)
        except TurnedAway:
            self._turned_away_by.add(other.name)
            return
        except (BrokenStream, TimeoutError, Unreachable):
            return
        if answer["members"] == self._members and self._own.peer_id in self.names:
            self._silent.discard(other.name)
        if answer.get("formed"):
            self._take_list(other.name, answer)

    def _take_list(self, teller: str, answer: Request) -> None:
        """Take the lists of one that has formed, if they can be right."""
        allow = self._transport.trust.allow
        if why := objection(answer["members"], allow):
            self._transport.trust.refusals.note("requests", teller, f"{self._protocol}: {why}")
            return
        self._formed_lists[teller] = answer["members"]
        self._late_told[teller] = names_in(answer["late"], allow)

    def _most_told(self) -> Members:
        """The list that more than half of those tell who have formed, if any; who tells another is refused by name."""
        lists = self._formed_lists
        most = [one for one in lists.values() if 2 * sum(one == other for other in lists.values()) > len(lists)]
        for name in [name for name, one in lists.items() if most and one != most[0]]:
            self._transport.trust.refusals.note(
                "ballots", name, "tells other members than most of those who have formed"
            )
        return most[0] if most else []

    def _conclude(self, formed: Members) -> None:
        """Set whether the swarm has formed. `formed`: the list that most of those tell who have formed; empty: none."""
        is_member = [self._own.name, self._own.joined] in formed and not self._remembers_that(formed)
        if formed and self._is_backed(formed, is_member):
            self.came_late = not is_member
            self._members, self._formed = formed, True
        elif len(self._members) == self._peers and self._own.peer_id in self.names and self._enough_see_the_same():
            self._formed = True

    def _remembers_that(self, members: Members) -> bool:
        return self._remembers is not None and self._remembers(sitting_of(self._run, members))

    def _is_backed(self, formed: Members, is_member: bool) -> bool:
        """Whether enough peers tell that this list has formed."""
        tellers = {id_of(name) for name, one in self._formed_lists.items() if one == formed}
        if is_member:
            voters = {id_of(name) for name, _ in formed}
            tellers.add(self._own.peer_id)
        else:
            voters = self._voters()
        return 2 * len(tellers & voters) > len(voters) or self._remembers_that(formed)

    def _voters(self) -> set[str]:
        """Ids of those whose word on who has formed counts for a peer that is no member."""
        listed = self._transport.trust.allow.listed if self._remembers else frozenset[str]()
        would_form = len(self._members) == self._peers and self._own.peer_id in self.names
        known = listed or frozenset(self.names if would_form else ())
        return set(known - {self._own.peer_id}) or set(map(id_of, self._formed_lists))

    def _enough_see_the_same(self) -> bool:
        """Whether all members tell the list that this peer sees, or more than half of them, long enough."""
        now_s = asyncio.get_running_loop().time()
        if 2 * len(self._silent) >= len(self._members):
            self._majority = [], math.inf
            return False
        if self._majority[0] != self._members:
            self._majority = self._members, now_s
        has_formed = self._members in self._formed_lists.values()
        if self._silent and not has_formed and now_s < self._majority[1] + FORM_GRACE_S:
            return False
        for name in sorted(self._silent):
            logger.warning("%s does not tell the same members as the others, or nothing: formed without its word", name)
        return True

    def _what_is_missing(self, waited_s: float) -> str:
        return "; ".join(filter(None, (self._missing(waited_s), self._mismatched.line())))

    def _missing(self, waited_s: float) -> str:
        if self._formed_lists:
            tellers = _list([record for record in self._records if record.name in self._formed_lists])
            if not self._most_told():
                return f"run {self._run} is under way, and most of these do not tell the same members: {tellers}"
            return (
                f"run {self._run} is under way, as these tell: {tellers}. More than half of the peers have to tell it"
            )
        there = f"after {waited_s:.0f} s {len(self._records)} of {self._peers} peers are there ({_list(self._records)})"
        if len(self._records) < self._peers:
            missing, join = self._peers - len(self._records), f"exchange.initial_peers=[{self._own.addresses[0]}]"
            return f"{there}, {missing} missing; start them with {join}, or type exchange.peers={len(self._records)}"
        if len(self._records) > self._peers:
            return f"{there}, too many; the run has as many as it began with. Type exchange.peers={len(self._records)}"
        if self._turned_away_by:
            return self._outside()
        others = ", ".join(sorted(self._silent))
        return f"{there}, but these do not answer, or see other members: {others}; can they be reached from here?"

    def _outside(self) -> str:
        return (
            f"{', '.join(sorted(self._turned_away_by))} of run {self._run} turn this peer away: there, "
            f"type exchange.allow=[...,{self._own.peer_id}]"
        )


def _list(records: Sequence[Record]) -> str:
    return ", ".join(sorted(record.name for record in records))
