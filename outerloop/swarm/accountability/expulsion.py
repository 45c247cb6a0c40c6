"""Who is expelled from a run: on disk beside the identity, refused by the allow-list, until an operator lifts it.

    expelled   peers, with what they did, in which round, when this peer found it, and the evidence
    lifted     [peer, sitting, round] of what an operator forgave: evidence about this peer up to ROUNDS_KEPT rounds
               after that one is ignored, since other peers may hold further evidence of the same lie

A peer stays expelled when the run is resumed in another sitting. The accused chooses the round that it signs for, so
that evidence about a round of this sitting that is not near yet is ignored: lifting it would forgive all until then.
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
from outerloop.swarm.consensus.hard_state import ROUNDS_KEPT, HardState
from outerloop.swarm.storage import Disk
from outerloop.swarm.validation import (
    MAX_NUMBER,
    MalformedMessage,
    fields,
    id_of,
    items,
    peer_id,
    quote,
    unpacked,
    whole,
)
from outerloop.types import UserError

logger = logging.getLogger(__name__)
NAME = "expelled"
VERSION = 1
MAX_EXPELLED = 1024
"""As many as a roster has seats, 4 MB on disk and in the answer to who asks. One more takes the place of the first."""
MAX_OUTSIDERS = 64
"""When as many are expelled, only who holds a seat in one of the last rosters is: a new key costs nothing in an open
run, and each one that lies costs this peer a write and a message to everybody."""
MAX_WHY = 256
Lift = tuple[str, str, int]


@dataclass(frozen=True)
class Expulsion:
    """`found_s`: seconds since 1970 by this machine's clock."""

    peer: str
    sitting: str
    number: int
    why: str
    found_s: float
    evidence: Evidence

    def line(self) -> str:
        """What people are shown."""
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.found_s))
        return f"{self.peer} {self.why}; expelled {when}"

    def to_list(self) -> list[Any]:
        return [self.peer, self.sitting, self.number, self.why, self.found_s, self.evidence.to_map()]

    @staticmethod
    def from_list(value: Any) -> Expulsion:
        """Raises MalformedMessage."""
        if type(value) is not list or list(map(type, value[:5])) != [str, str, int, str, float] or len(value) != 6:
            raise MalformedMessage(f"an expulsion is [peer, sitting, round, why, when, evidence]; came {quote(value)}")
        peer, sitting, number, why, found_s, evidence = value
        if not why.isprintable() or len(why) > MAX_WHY:
            raise MalformedMessage(f"why a peer is expelled has {MAX_WHY} printable letters at most; came {quote(why)}")
        return Expulsion(peer_id(peer, "who is expelled"), sitting, number, why, found_s, Evidence.from_map(evidence))


@dataclass(frozen=True)
class ExpulsionRegister:
    """What the file holds: an event makes a new one. `expelled` by peer id, in the order in which they were found."""

    expelled: Mapping[str, Expulsion] = field(default_factory=dict)
    lifted: tuple[Lift, ...] = ()

    def with_one(self, one: Expulsion) -> ExpulsionRegister:
        last = list(self.expelled.items())[1 - MAX_EXPELLED :]
        return replace(self, expelled={**dict(last), id_of(one.peer): one})

    def without(self, peer_id: str) -> ExpulsionRegister:
        """Lift the expulsion of this peer, which is expelled."""
        one = self.expelled[peer_id]
        others = {other: entry for other, entry in self.expelled.items() if other != peer_id}
        return ExpulsionRegister(others, (*self.lifted, (peer_id, one.sitting, one.number)))

    def forgives(self, peer: str, sitting: str, number: int) -> bool:
        """Whether an operator has lifted what this peer (its name) did then."""
        return any(
            (who, where) == (id_of(peer), sitting) and number <= upto + ROUNDS_KEPT for who, where, upto in self.lifted
        )

    def to_bytes(self) -> bytes:
        rows = [one.to_list() for one in self.expelled.values()]
        return msgpack.packb({"version": VERSION, "expelled": rows, "lifted": self.lifted})

    @staticmethod
    def from_bytes(content: bytes) -> ExpulsionRegister:
        """Raises MalformedMessage when it is damaged or of another version."""
        value = unpacked(content, "the list of expelled peers")
        found = fields(value, "the list of expelled peers", ("version", "expelled", "lifted"))
        whole(found["version"], "its version", least=VERSION, most=VERSION)
        entries = [Expulsion.from_list(row) for row in items(found["expelled"], "expelled peers")]
        lifted = tuple(_lift(row) for row in items(found["lifted"], "lifted expulsions"))
        return ExpulsionRegister({id_of(one.peer): one for one in entries}, lifted)


def read_register(disk: Disk) -> ExpulsionRegister:
    """Return what lies on disk, an empty one where nothing does. Raises UserError when it is damaged."""
    try:
        return ExpulsionRegister.from_bytes(bytes(disk.read(NAME))) if NAME in disk.names() else ExpulsionRegister()
    except MalformedMessage as error:
        raise UserError(
            f"{error}: remove the file {NAME} beside the payloads of this peer, and the others tell it again"
        ) from error


async def write_register(disk: Disk, register: ExpulsionRegister) -> None:
    """Return when it is safe."""
    await disk.write(NAME, register.to_bytes())


class ExpelledPeers:
    """One peer's register while it runs: whoever is in it is not in `trust.allow`.

    `memory`: of the agreement; None before the rounds have begun, when nobody is expelled.
    """

    def __init__(
        self,
        disk: Disk,
        trust: AccessControl,
        *,
        memory: Callable[[], HardState | None],
        now_s: Callable[[], float] = time.time,
    ) -> None:
        """Raises UserError when the file is damaged."""
        self._disk, self._trust, self._memory, self._now_s = disk, trust, memory, now_s
        self.register = read_register(disk)
        self._writing = asyncio.Lock()
        for peer in self.register.expelled:
            trust.allow.expel(peer)

    @property
    def evidence(self) -> list[Evidence]:
        """All that can be shown to others."""
        return [one.evidence for one in self.register.expelled.values()]

    def wants(self, evidence: Evidence) -> bool:
        """Whether evidence against this peer is worth a check."""
        peer, sitting, number = evidence.peer, evidence.sitting, evidence.number
        memory = self._memory()
        if memory is None or (sitting == memory.run and number > memory.number + ROUNDS_KEPT):
            return False
        if id_of(peer) in self.register.expelled or self.register.forgives(peer, sitting, number):
            return False
        return len(self.register.expelled) < MAX_OUTSIDERS or _has_seat(memory, id_of(peer))

    async def convict(self, evidence: Evidence) -> bool:
        """Expel the accused, if that is worth a check and the evidence holds. Returns whether it does, once safe."""
        if not self.wants(evidence) or not guilty(evidence, self._trust.signatures):
            return False
        await self._expel(evidence)
        return True

    async def _expel(self, evidence: Evidence) -> None:
        peer, why, known = evidence.peer, evidence.why, self.register.expelled
        one = Expulsion(peer, evidence.sitting, evidence.number, why, self._now_s(), evidence)
        self.register = self.register.with_one(one)
        self._trust.allow.expel(id_of(peer))
        for forgotten in known.keys() - self.register.expelled.keys():
            self._trust.allow.readmit(forgotten)
        logger.warning("%s %s: it is expelled from the run", peer, why)
        async with self._writing:  # one after the other, and each writes all that is known by then
            await write_register(self._disk, self.register)


def _has_seat(memory: HardState, peer_id: str) -> bool:
    """Whether a peer is in one of the last rosters."""
    return any(peer_id == id_of(peer) for one in memory.log for peer in one.commit.roster)


def _lift(value: Any) -> Lift:
    if type(value) is not list or list(map(type, value)) != [str, str, int]:
        raise MalformedMessage(f"a lifted expulsion is [peer id, sitting, round]; came {quote(value)}")
    return value[0], value[1], whole(value[2], "its round", most=MAX_NUMBER)
