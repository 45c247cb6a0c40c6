"""Serve the run's state to late joiners: all donors copy their states at the same commit, and continue training.

    {number} ->   <- {manifest: [sha256, bytes, signature]} once this peer has landed that commit and copied its state
                  <- {} if this peer has landed that commit and has no copy of its state, or if that commit does not
                  land within POLL_S: the joiner has to ask again

A joiner requests the state as of a commit that is about to land. Donors with equal states have equal manifests
(manifest.py). The joiner then downloads the chunks by their hashes (bulk.py).

A copy costs this peer time and memory, so the number of copies does not depend on how many peers request one. Each peer
can request one commit at a time, from the next FURTHEST_AHEAD commits to land; requests for later commits have to wait.
The state as of a requested commit is copied if one of these holds:

    - another peer has requested the same commit
    - no other commit was requested or copied in the COPY_EVERY - 1 commits before it
    - its number is a multiple of COPY_EVERY. Every donor copies at these multiples if requested, so that no peer can
      make the donors copy at different commits

A new copy replaces earlier ones, except for the oldest one that a peer uses (held_states.py).
"""

from __future__ import annotations

from collections.abc import Callable

from outerloop.swarm.notifier import Notifier
from outerloop.swarm.p2p.framing import Stream, Unreadable
from outerloop.swarm.p2p.transport import Request, RpcService, Transport, protocol_name
from outerloop.swarm.state_transfer.held_states import HeldStates
from outerloop.swarm.state_transfer.manifest import CONTEXT, Manifest
from outerloop.swarm.timeouts import POLL_S, limit
from outerloop.swarm.transfer.bulk import Bulk
from outerloop.swarm.transfer.uploads import RateLimiter

FURTHEST_AHEAD = 2
"""Maximum number of commits by which a requested commit may be ahead of the last commit landed at this donor."""
COPY_EVERY = 4
"""Among this many consecutive commits, the state is copied at most at two: at the multiple of COPY_EVERY, and at one
other commit."""


def next_common(number: int) -> int:
    """Return the first commit, not before `number`, at which every donor copies its state if any peer requests it."""
    return -(-number // COPY_EVERY) * COPY_EVERY


class Donor(RpcService):
    """The serving side of state transfer. The training thread may call only `wants`.

    `session`: returns the session id that manifest signatures cover.
    """

    service = "snapshot"

    def __init__(
        self,
        transport: Transport,
        *,
        run: str,
        session: Callable[[], str],
        allowed: Callable[[str], bool],
        limiter: RateLimiter | None = None,
    ) -> None:
        super().__init__(transport, run=run, allowed=allowed)
        self._session = session
        self._held = HeldStates()
        self.bulk = Bulk(transport, self._held, run=content_of(run), allowed=allowed, limiter=limiter)
        self._demands: dict[str, int] = {}
        self._landed = -1
        self._copied = -COPY_EVERY  # the last commit whose state was copied
        self._hashing: set[int] = set()  # commits whose states have been copied but are not served yet
        self._changed = Notifier()

    async def serve(self) -> None:
        await self.bulk.serve()
        await super().serve()

    def wants(self, number: int) -> bool:
        """Return whether a peer has requested the state as of commit `number`."""
        return number in list(self._demands.values())

    def landed(self, number: int, *, copied: bool) -> None:
        """Record that commit `number` has landed.

        `copied`: whether the state as of this commit was copied. If not, requests for that state are declined.
        """
        self._landed = number
        if copied:
            self._copied = number
            self._hashing.add(number)
        else:
            self._held.drop(number)  # there is no copy: forget which peers requested it
        self._demands = {peer: wanted for peer, wanted in self._demands.items() if wanted > number}
        self._changed.notify()

    def hold(self, content: bytes, manifest: Manifest) -> None:
        """Serve the state `content`. It is dropped once no peer has requested it for STATE_KEPT_S (held_states.py)."""
        self._held.put(content, manifest)
        self._hashing.discard(manifest.number)
        self._changed.notify()

    def holds(self, number: int) -> bool:
        """Return whether the state as of commit `number` is being served."""
        return number in self._held

    def release(self, number: int) -> None:
        """Stop serving the state as of commit `number`."""
        self._held.drop(number)

    async def _answer(self, remote: str, request: Request, stream: Stream) -> None:
        number = request.get("number")
        if type(number) is not int or number < 0:
            raise Unreadable("the request does not contain a valid commit number")
        try:
            async with limit(POLL_S):
                while not self.holds(number) and (number > self._landed or number in self._hashing):
                    self._demand(remote, number)
                    await self._changed.wait()
        except TimeoutError:
            pass
        if self.holds(number):
            self._held.use(remote, number)
            await stream.send_object({"manifest": self._signed_manifest(number)})
        else:
            await stream.send_object({})
        await stream.ended()

    def _demand(self, peer: str, number: int) -> None:
        """Record that `peer` requests the state as of commit `number`, if that state may be copied."""
        others = {other: wanted for other, wanted in self._demands.items() if other != peer}
        last = max([self._copied, *others.values()])
        rested = number - last >= COPY_EVERY or number in others.values() or number % COPY_EVERY == 0
        if self._landed < number <= self._landed + FURTHEST_AHEAD and rested:
            self._demands = {**others, peer: number}
            self._held.use(peer, number)

    def _signed_manifest(self, number: int) -> list[object]:
        """Return the sha256 and the size of a held manifest, and this peer's signature over them and `number`."""
        named = self._held.named(number)
        return [*named, self._transport.trust.signatures.sign(CONTEXT, self._session(), number, *named)]


def protocol_of(run: str) -> str:
    """Return the name of the protocol for requesting a manifest from a donor."""
    return protocol_name(run, Donor.service)


def content_of(run: str) -> str:
    """Return the run name to use for bulk transfers (bulk.py) of manifests and chunks."""
    return f"{run}/state"
