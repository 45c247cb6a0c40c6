"""Form a run: agree with the other peers on one sorted list of members, and so on the ranks.

The members are the first `peers` roster entries in the order of joining, counting only peers with the same settings
(mismatched_peers.py handles the others). A roster is only what one peer currently sees, so each peer asks every other
for the list that *it* sees:

    all listed peers report the same list    the swarm has formed
    more than half of them do                it forms after FORM_GRACE_S without the others, and logs their names
    others have already formed with a list   their list overrides what this peer sees: a surplus machine that appears
    that contains this peer                  a moment later cannot separate it from the members that have formed

The list, including the times of joining, names the session. Agreements are valid in their session only. A run that is
resumed as a whole forms a new session. A peer that restarts while the others continue, and remembers their session,
rejoins it. A late joiner is not a member: the others know its name, and the agreement counts on it once it has the
state.

A peer believes that a list has formed if more than half of the voters report it (proof.py lists what a minority can
do). The voters are:

    this peer is in the list              the members in the list, including this peer
    it is not; run with exchange.allow    the other listed peers, as for the commits that follow
    it is not; open run, or gossip        the peers that it would form with, if there are enough; else all that report
                                          a list that has formed

A session that this peer remembers needs no proof.
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
    session_of,
)
from outerloop.swarm.membership.mismatched_peers import MismatchedPeers
from outerloop.swarm.membership.roster import Record, Roster, id_of
from outerloop.swarm.p2p.framing import BrokenStream, Stream, TurnedAway, Unreadable
from outerloop.swarm.p2p.rpc import RpcService
from outerloop.swarm.p2p.transport import Request, Transport, Unreachable
from outerloop.swarm.timeouts import FORM_GRACE_S, FORM_POLL_S, VIEW_S, limit
from outerloop.swarm.validation import MAX_PEERS
from outerloop.types import UserError

logger = logging.getLogger(__name__)


class Formation(RpcService):
    """This peer's part in forming the run, and the members that it knows.

    `names`: peer id -> name of every member, sorted by name. `session`: name of the session. `late_joiner`: whether the
    session had already started without this peer. All three are final once `form` has returned. `remembers` returns
    whether this peer was in a session before; None: nothing is remembered, as in gossip.
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
        remembers: Callable[[str], bool] | None = None,
    ) -> None:
        super().__init__(transport, run=run)
        self._roster = roster
        self._run = run
        self._remembers = remembers
        self._peers = peers
        self._own = own
        self._mismatched = mismatched
        self._silent: set[str] = set()  # members in this peer's list that do not report the same list
        self._turned_away_by: set[str] = set()
        self._records: list[Record] = []
        self._members: Members = [[own.name, own.joined]]
        self._formed_lists: dict[str, Members] = {}  # lists of the peers that have formed, by peer name
        self._late_reported: dict[str, dict[str, str]] = {}  # late joiners (peer id -> name) that each of them reports
        self._formed = False
        self._late = LateJoiners(self._present)
        self.late_joiner = False
        self._majority: tuple[Members, float] = [], math.inf  # list that more than half report, since when

    def __contains__(self, peer_id: str) -> bool:
        return peer_id in self.known

    @property
    def names(self) -> dict[str, str]:
        return {id_of(name): name for name, _ in self._members}

    @property
    def known(self) -> dict[str, str]:
        """Members and late joiners: peer id -> name."""
        return self._late.names | self.names

    @property
    def session(self) -> str:
        return session_of(self._run, self._members)

    async def form(self, *, timeout_s: float) -> None:
        """Wait until `peers` members see the same list.

        Raises UserError if that takes longer than `timeout_s`, naming the peers present; if this peer's own settings
        are the wrong ones; or if all other peers reject it.
        """
        pause_s = FORM_POLL_S[0]
        try:
            async with limit(timeout_s):
                while not await self._agreed():
                    await asyncio.sleep(pause_s)
                    pause_s = min(1.5 * pause_s, FORM_POLL_S[1])
        except TimeoutError as error:
            raise UserError(self._what_is_missing(timeout_s)) from error

    async def _answer(self, remote: str, request: Request, stream: Stream) -> None:
        """Answer any peer with the members that this peer sees; the roster is public already."""
        name = request.get("name")
        if is_name(name) and id_of(name) == remote:
            self._welcome(remote, name)
        names = self.names
        late = [name for peer_id, name in self._late.names.items() if peer_id not in names]
        await send_pages(stream, {"formed": self._formed}, self._members, late)
        await stream.ended()
        await self._late.forget_gone()

    def _welcome(self, peer_id: str, name: str) -> None:
        """Remember the name of a peer that asks. Raises Unreadable if it had another name before."""
        known = self.known.get(peer_id, name)
        if known != name:
            raise Unreadable(f"it calls itself {name}, but is known as {known}")
        if not self._late.add(name):
            self._transport.trust.refusals.note("outsiders", peer_id, f"there are {MAX_PEERS} late joiners already")

    async def _present(self) -> Iterable[str]:
        return [record.peer_id for record in await self._roster.read()]

    async def _agreed(self) -> bool:
        self._records = await self._mismatched.leave_out(await self._roster.read())
        if odd := self._mismatched.odd(self._records):
            await asyncio.sleep(2 * FORM_POLL_S[1])  # stay in the roster until the others have seen it too
            raise UserError(odd)
        first = sorted(self._records, key=lambda record: (record.joined, record.peer_id))[: self._peers]
        self._members = sorted([record.name, record.joined] for record in first)
        self._silent = {name for name, _ in self._members} - {self._own.name}
        self._turned_away_by, self._formed_lists, self._late_reported = set(), {}, {}
        others = [record for record in self._records if record.name != self._own.name]
        await asyncio.gather(*map(self._ask, others))
        if self._turned_away_by and len(self._turned_away_by) == len(others):
            raise UserError(self._outside())
        self._late.add_reported(self._late_reported.values())
        self._conclude(self._majority_list())
        return self._formed

    async def _ask(self, other: Record) -> None:
        """Ask a peer for its list. Give up after VIEW_S: it may be slow, starting, or dead but not yet expired."""
        try:
            async with limit(VIEW_S), self._stream_to(other.peer_id) as stream:
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

    def _take_list(self, reporter: str, answer: Request) -> None:
        """Keep the lists of a peer that has formed, if they are valid."""
        allow = self._transport.trust.allow
        if why := objection(answer["members"], allow):
            self._transport.trust.refusals.note("requests", reporter, f"{self._protocol}: {why}")
            return
        self._formed_lists[reporter] = answer["members"]
        self._late_reported[reporter] = names_in(answer["late"], allow)

    def _majority_list(self) -> Members:
        """Return the list that more than half of the formed peers report, else []; log those that report another."""
        lists = self._formed_lists
        reports = list(lists.values())
        majority = next((members for members in reports if 2 * reports.count(members) > len(reports)), [])
        for name in [name for name, members in lists.items() if majority and members != majority]:
            self._transport.trust.refusals.note(
                "ballots", name, "reports a different member list than most peers that have formed"
            )
        return majority

    def _conclude(self, formed: Members) -> None:
        """Set whether the swarm has formed. `formed`: the list that most formed peers report; empty: no such list."""
        is_member = [self._own.name, self._own.joined] in formed and not self._remembers_that(formed)
        if formed and self._is_backed(formed, is_member):
            self.late_joiner = not is_member
            self._members, self._formed = formed, True
        elif len(self._members) == self._peers and self._own.peer_id in self.names and self._enough_see_the_same():
            self._formed = True

    def _remembers_that(self, members: Members) -> bool:
        return self._remembers is not None and self._remembers(session_of(self._run, members))

    def _is_backed(self, formed: Members, is_member: bool) -> bool:
        """Return whether enough peers report that this list has formed, or this peer remembers its session."""
        reporters = {id_of(name) for name, members in self._formed_lists.items() if members == formed}
        if is_member:
            voters = {id_of(name) for name, _ in formed}
            reporters.add(self._own.peer_id)
        else:
            voters = self._voters()
        return 2 * len(reporters & voters) > len(voters) or self._remembers_that(formed)

    def _voters(self) -> set[str]:
        """Return the ids of the peers whose reports of a formed list count for a peer that is not in that list."""
        listed = self._transport.trust.allow.listed if self._remembers else frozenset[str]()
        would_form = len(self._members) == self._peers and self._own.peer_id in self.names
        known = listed or frozenset(self.names if would_form else ())
        return set(known - {self._own.peer_id}) or set(map(id_of, self._formed_lists))

    def _enough_see_the_same(self) -> bool:
        """Return whether enough members report the list that this peer sees.

        All of them are enough, or more than half of them once FORM_GRACE_S has passed or a peer has formed with it.
        """
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
            logger.warning("%s reports a different member list, or does not answer: formed without it", name)
        return True

    def _what_is_missing(self, waited_s: float) -> str:
        return "; ".join(filter(None, (self._missing(waited_s), self._mismatched.line())))

    def _missing(self, waited_s: float) -> str:
        if self._formed_lists:
            reporters = _list([record for record in self._records if record.name in self._formed_lists])
            if not self._majority_list():
                return f"run {self._run} has started, but these peers do not agree on its members: {reporters}"
            return f"run {self._run} has started according to {reporters}; more than half of the peers must report it"
        present = (
            f"after {waited_s:.0f} s {len(self._records)} of {self._peers} peers are present ({_list(self._records)})"
        )
        if len(self._records) < self._peers:
            missing, join = self._peers - len(self._records), f"exchange.initial_peers=[{self._own.addresses[0]}]"
            return f"{present}, {missing} missing; start them with {join}, or set exchange.peers={len(self._records)}"
        if len(self._records) > self._peers:
            return f"{present}, too many; a run keeps its number of peers. Set exchange.peers={len(self._records)}"
        if self._turned_away_by:
            return self._outside()
        others = ", ".join(sorted(self._silent))
        return f"{present}, but these do not answer, or see other members: {others}; can they be reached from here?"

    def _outside(self) -> str:
        return (
            f"{', '.join(sorted(self._turned_away_by))} of run {self._run} reject this peer: there, "
            f"set exchange.allow=[...,{self._own.peer_id}]"
        )


def _list(records: Sequence[Record]) -> str:
    return ", ".join(sorted(record.name for record in records))
