"""The register of peers expelled from a run: stored next to the identity, and enforced by the allow-list.

    expelled   the expelled peers, each with its offence, the round of the offence, the time when this peer learned of
               it, and the evidence
    lifted     [peer, session, round] of each offence that an operator has forgiven. Evidence against that peer in that
               session is then ignored if it is about any round up to ROUNDS_KEPT after that round, because other peers
               may hold further evidence of the same offence

A peer stays expelled until an operator lifts the expulsion, even if the run is resumed in another session. Evidence
about a round far in the future of this session is ignored: the accused chooses the round it signs for, and lifting such
an expulsion would forgive all its offences up to that round.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgpack

from outerloop.swarm.access.access_control import AccessControl
from outerloop.swarm.accountability.evidence import Evidence, guilty
from outerloop.swarm.consensus.state import ROUNDS_KEPT, HardState
from outerloop.swarm.storage import Disk
from outerloop.swarm.validation import (
    MAX_NUMBER,
    MalformedMessage,
    checked_int,
    fields,
    id_of,
    items,
    peer_id,
    quote,
    unpacked,
)
from outerloop.types import UserError

logger = logging.getLogger(__name__)
NAME = "expelled"
VERSION = 1
MAX_EXPELLED = 1024
"""Maximum number of entries, equal to the size of the largest roster. A full register takes 4 MB, on disk and in an
answer to a poll. A further entry replaces the oldest one."""
MAX_OUTSIDERS = 64
"""Once this many peers are expelled, only peers in a recent roster are added. The limit is needed because new keys are
free in an open run, and each key that lies costs this peer a write and a message to all peers."""
MAX_WHY = 256
Lift = tuple[str, str, int]


@dataclass(frozen=True)
class Expulsion:
    """The register's entry for one expelled peer. `found_s`: when this peer learned of the offence (Unix time)."""

    peer: str
    session: str
    number: int
    why: str
    found_s: float
    evidence: Evidence

    def line(self) -> str:
        """Return a one-line description for display."""
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.found_s))
        return f"{self.peer} {self.why}; expelled {when}"

    def to_list(self) -> list[Any]:
        return [self.peer, self.session, self.number, self.why, self.found_s, self.evidence.to_map()]

    @staticmethod
    def from_list(value: Any) -> Expulsion:
        """Parse the result of `to_list`. Raises MalformedMessage if it is invalid."""
        if type(value) is not list or list(map(type, value[:5])) != [str, str, int, str, float] or len(value) != 6:
            raise MalformedMessage(
                f"an expulsion must be [peer, session, round, why, when, evidence]; got {quote(value)}"
            )
        peer, session, number, why, found_s, evidence = value
        if not why.isprintable() or len(why) > MAX_WHY:
            raise MalformedMessage(f"an offence must have at most {MAX_WHY} printable characters; got {quote(why)}")
        return Expulsion(peer_id(peer, "the expelled peer"), session, number, why, found_s, Evidence.from_map(evidence))


@dataclass(frozen=True)
class ExpulsionRegister:
    """The content of the register file. It is immutable: each change creates a new register.

    `expelled`: peer id -> expulsion, oldest first. `lifted`: the expulsions that an operator has lifted.
    """

    expelled: Mapping[str, Expulsion] = field(default_factory=dict)
    lifted: tuple[Lift, ...] = ()

    def with_expulsion(self, expulsion: Expulsion) -> ExpulsionRegister:
        last = list(self.expelled.items())[1 - MAX_EXPELLED :]
        return replace(self, expelled={**dict(last), id_of(expulsion.peer): expulsion})

    def without(self, peer_id: str) -> ExpulsionRegister:
        """Return the register with the expulsion of `peer_id` lifted. The peer must be expelled."""
        expulsion = self.expelled[peer_id]
        others = {other: entry for other, entry in self.expelled.items() if other != peer_id}
        return ExpulsionRegister(others, (*self.lifted, (peer_id, expulsion.session, expulsion.number)))

    def forgives(self, peer: str, session: str, number: int) -> bool:
        """Return whether an operator has forgiven the offences of `peer` (a name) in this session and round."""
        return any(
            (who, where) == (id_of(peer), session) and number <= upto + ROUNDS_KEPT for who, where, upto in self.lifted
        )

    def to_bytes(self) -> bytes:
        rows = [expulsion.to_list() for expulsion in self.expelled.values()]
        return msgpack.packb({"version": VERSION, "expelled": rows, "lifted": self.lifted})

    @staticmethod
    def from_bytes(content: bytes) -> ExpulsionRegister:
        """Parse a register. Raises MalformedMessage if it is damaged or of another version."""
        value = unpacked(content, "the list of expelled peers")
        found = fields(value, "the list of expelled peers", ("version", "expelled", "lifted"))
        checked_int(found["version"], "the version of the list of expelled peers", minimum=VERSION, maximum=VERSION)
        entries = [Expulsion.from_list(row) for row in items(found["expelled"], "expelled peers")]
        lifted = tuple(_lift(row) for row in items(found["lifted"], "lifted expulsions"))
        return ExpulsionRegister({id_of(expulsion.peer): expulsion for expulsion in entries}, lifted)


def read_register(disk: Disk) -> ExpulsionRegister:
    """Return the register on disk, or an empty one if there is no file. Raises UserError if the file is damaged."""
    try:
        return ExpulsionRegister.from_bytes(bytes(disk.read(NAME))) if NAME in disk.names() else ExpulsionRegister()
    except MalformedMessage as error:
        raise UserError(
            f"{error}: remove the file '{NAME}' from the folder of this peer's payloads; other peers will resend it"
        ) from error


async def write_register(disk: Disk, register: ExpulsionRegister) -> None:
    """Write the register, and return once it is synced to disk."""
    await disk.write(NAME, register.to_bytes())


class ExpelledPeers:
    """The register of a running peer. It excludes expelled peers from the run (AllowList.expel).

    `hard_state` returns the hard state of the consensus, or None before the rounds have begun; until they begin, no
    further peer is expelled.

    `picked` returns whether evidence consists of verdicts of the auditors that the commit of its round picked. In a run
    without audits, it always returns False, so that verdicts are ignored.
    """

    def __init__(
        self,
        disk: Disk,
        trust: AccessControl,
        *,
        hard_state: Callable[[], HardState | None],
        now_s: Callable[[], float] = time.time,
    ) -> None:
        """Load the register. Raises UserError if the file is damaged."""
        self._disk, self._trust, self._hard_state, self._now_s = disk, trust, hard_state, now_s
        self.register = read_register(disk)
        self.picked: Callable[[Evidence], bool] = lambda evidence: False
        self._writing = asyncio.Lock()
        for peer in self.register.expelled:
            trust.allow.expel(peer)

    @property
    def evidence(self) -> list[Evidence]:
        """The evidence against all expelled peers."""
        return [expulsion.evidence for expulsion in self.register.expelled.values()]

    def wants(self, evidence: Evidence) -> bool:
        """Return whether the evidence is worth checking.

        The evidence must be new, not forgiven, and not about a round far ahead. The register must have room for another
        peer. Verdicts must be those of picked auditors.
        """
        peer, session, number = evidence.peer, evidence.session, evidence.number
        hard_state = self._hard_state()
        if hard_state is None or (session == hard_state.session and number > hard_state.number + ROUNDS_KEPT):
            return False
        if id_of(peer) in self.register.expelled or self.register.forgives(peer, session, number):
            return False
        if evidence.auditors and not self.picked(evidence):
            return False
        return len(self.register.expelled) < MAX_OUTSIDERS or _has_seat(hard_state, id_of(peer))

    async def convict(self, evidence: Evidence) -> bool:
        """Expel the accused if `wants` accepts the evidence and it is valid. Return whether the accused was expelled.

        Returns True only after the expulsion has been synced to disk.
        """
        if not self.wants(evidence) or not guilty(evidence, self._trust.signatures):
            return False
        await self._expel(evidence)
        return True

    async def _expel(self, evidence: Evidence) -> None:
        peer, why, known = evidence.peer, evidence.why, self.register.expelled
        expulsion = Expulsion(peer, evidence.session, evidence.number, why, self._now_s(), evidence)
        self.register = self.register.with_expulsion(expulsion)
        self._trust.allow.expel(id_of(peer))
        for forgotten in known.keys() - self.register.expelled.keys():
            self._trust.allow.readmit(forgotten)
        logger.warning("%s %s: it is expelled from the run", peer, why)
        async with self._writing:  # one write at a time, always of the newest register
            await write_register(self._disk, self.register)


def _has_seat(hard_state: HardState, peer_id: str) -> bool:
    """Return whether a peer is in one of the recent rosters."""
    return any(peer_id == id_of(peer) for decided in hard_state.log for peer in decided.commit.roster)


def _lift(value: Any) -> Lift:
    if type(value) is not list or list(map(type, value)) != [str, str, int]:
        raise MalformedMessage(f"a lifted expulsion must be [peer id, session, round]; got {quote(value)}")
    return value[0], value[1], checked_int(value[2], "the round of a lifted expulsion", maximum=MAX_NUMBER)
