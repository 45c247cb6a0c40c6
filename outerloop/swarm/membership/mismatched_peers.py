"""Leave out peers that use this run's name with different settings, and ask them which settings differ.

    outerloop/1/<run>/setting    {key: hash of a key} ->   <- {key, value} | {}

If two peers have different settings, one of them is misconfigured or an attacker. Neither may stop a run from forming.
A peer stops, with a message that names the setting, if all of its initial peers run with different settings: it then
assumes that its own settings are wrong. It does not stop if its settings run on more machines than any other settings
(each machine is counted by its worker 0). Nor does it stop before one of these peers has reported the value of a
differing setting: a peer that reports nothing, or a setting that it was not asked for, proves nothing.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from outerloop.swarm.membership.roster import Record
from outerloop.swarm.membership.run_settings import HASH_BYTES, RunSettings, checked_setting, difference
from outerloop.swarm.p2p.framing import BrokenStream, Stream, Unreadable
from outerloop.swarm.p2p.transport import Request, RpcService, Transport, Unreachable
from outerloop.swarm.timeouts import VIEW_S

SHOWN = 4
"""Number of differing settings that are named per peer. The others are only counted."""
MAX_NAMED = 16
"""Maximum number of peers to ask and to name. It is limited because one machine can create many identities."""
FINGERPRINT_LETTERS = 16
"""Number of leading characters of a fingerprint that a message shows."""


class MismatchedPeer(NamedTuple):
    """The differing settings of one peer.

    differs     the settings and their values, as text for a message
    typed       options that the user must set on this machine to match that peer
    reported    whether the peer has reported any of the settings
    """

    differs: str
    typed: str
    reported: bool


class MismatchedPeers(RpcService):
    """Finds and names the peers with different settings. `joined`: ids of this peer's initial peers."""

    service = "setting"

    def __init__(
        self,
        transport: Transport,
        *,
        run: str,
        own: Record,
        settings: RunSettings,
        joined: Sequence[str],
        on_status: Callable[[str], None],
    ) -> None:
        super().__init__(transport, run=run)
        self._own, self._settings, self._on_status = own, settings, on_status
        self._joined = frozenset(joined)
        self._named: dict[str, MismatchedPeer] = {}
        self._mismatched: list[Record] = []

    async def leave_out(self, records: Iterable[Record]) -> list[Record]:
        """Return the records with this peer's settings. Report each peer with different settings to the user once."""
        alike = [record for record in records if record.fingerprint == self._own.fingerprint]
        self._mismatched = [record for record in records if record.fingerprint != self._own.fingerprint]
        new = [record for record in self._mismatched if record.name not in self._named][: MAX_NAMED - len(self._named)]
        for record, found in zip(new, await asyncio.gather(*map(self._differences, new)), strict=True):
            self._named[record.name] = found
            self._on_status(f"left out because of different settings: {found.differs}")
        return alike

    def odd(self, alike: Sequence[Record]) -> str:
        """Return why this peer's own settings are probably wrong and what to set, or "" if they are probably right.

        `alike`: the records of the peers with this peer's settings.
        """
        joined = [record.name for record in self._mismatched if record.peer_id in self._joined]
        found = [self._named[name] for name in joined if name in self._named]
        met = [peer for peer in found if peer.reported]
        if not met or any(record.peer_id in self._joined for record in alike):
            return ""
        machines = Counter(record.fingerprint for record in self._mismatched if _first_worker(record))
        if max(machines.values(), default=1) < max(1, sum(map(_first_worker, alike))):
            return ""
        return f"{met[0].differs}: {_advice(met[0])}"

    def line(self) -> str:
        """Return which peers are currently left out and what to set to match them, or "" if there are none."""
        named = [record.name for record in self._mismatched if record.name in self._named]
        if not named:
            return ""
        first, others = self._named[named[0]], f"; also {', '.join(named[1:])}" if named[1:] else ""
        return f"left out because of different settings: {first.differs}{others}; {_advice(first)}"

    async def _differences(self, other: Record) -> MismatchedPeer:
        """Ask a peer for up to SHOWN differing settings concurrently, so that a slow peer causes only one delay."""
        hashes = self._settings.differing(other.settings)
        asked = hashes[:SHOWN]
        theirs = await asyncio.gather(*(self._ask(other, hashed) for hashed in asked))
        if not asked:
            shown = [record.fingerprint[:FINGERPRINT_LETTERS] for record in (other, self._own)]
            return MismatchedPeer(f"{other.name} (fingerprint {shown[0]}, here {shown[1]})", "", reported=False)
        pairs = [
            difference(self._settings.answer(hashed), value, other.name)
            for hashed, value in zip(asked, theirs, strict=True)
        ]
        more = f" and {len(hashes) - SHOWN} more" if len(hashes) > SHOWN else ""
        differs, typed = ", ".join(text for text, _ in pairs) + more, " ".join(typed for _, typed in pairs if typed)
        return MismatchedPeer(differs, typed, reported=any(value is not None for value in theirs))

    async def _ask(self, other: Record, hashed: bytes) -> dict[str, str] | None:
        """Ask a peer for the setting whose key has this hash. Return the answer, or None if there is no valid one."""
        try:
            return checked_setting(await self._call(other.peer_id, {"key": hashed}, within_s=VIEW_S), hashed)
        except (BrokenStream, TimeoutError, Unreachable, ValueError):
            return None

    async def _answer(self, remote: str, request: Request, stream: Stream) -> None:
        hashed = request.get("key")
        if not isinstance(hashed, bytes) or len(hashed) != HASH_BYTES:
            raise Unreadable("a request without the hash of a setting's key")
        await stream.send_object(self._settings.answer(hashed))
        await stream.ended()


def _advice(found: MismatchedPeer) -> str:
    return f"set {found.typed or 'the same options on all peers,'} or another exchange.run"


def _first_worker(record: Record) -> bool:
    """Return whether the record is from a machine's first worker. Counting only these counts each machine once."""
    return record.name.startswith("000-")
