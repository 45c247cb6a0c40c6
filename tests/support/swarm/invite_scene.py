"""Peers of a listed run that invite others: their keys, tokens and admissions."""

from __future__ import annotations

from outerloop.swarm.access.admissions import Admission, Removal, Withdrawal
from outerloop.swarm.access.invites import Token
from outerloop.swarm.invites.access_updates import AccessUpdates
from tests.support.swarm.dht_scene import id_of, trust
from tests.support.swarm.gather_scene import MemoryDisk
from tests.support.swarm.memory_network import MemoryNetwork, MemoryTransport

A, B, C, X, Y = 1, 2, 3, 7, 8
"""Three listed peers, and two that are not."""
LISTED = [id_of(number) for number in (A, B, C)]
RUN = "summer"
NOW_S = 1_000_000


def token(
    issuer: int = A, *, expires_s: int = NOW_S + 100, rounds: int = 0, run: str = RUN, name: str = "lab"
) -> Token:
    signatures = trust(issuer).signatures
    return Token.new(signatures, run=run, listed=LISTED, name=name, expires_s=expires_s, rounds=rounds)


def admission(of: Token, peer: int = X, *, receiver: int = B, at_s: int = NOW_S, number: int = 0) -> Admission:
    return Admission.new(of.binding(id_of(peer)), trust(receiver).signatures, at_s=at_s, number=number)


def removal(peer: int = X, *, by: int = B, lifted: bool = False, at_s: int = NOW_S, run: str = RUN) -> Removal:
    return Removal.new(trust(by).signatures, run=run, peer=id_of(peer), lifted=lifted, at_s=at_s)


def withdrawal(of: Token, *, by: int = A, at_s: int = NOW_S, expires_s: int = 0, run: str = RUN) -> Withdrawal:
    """Signed by the peer `by`, which should be the issuer; it expires with the token, or at `expires_s`."""
    until_s = expires_s or of.invite.expires_s
    return Withdrawal.new(trust(by).signatures, run=run, digest=of.invite.digest, expires_s=until_s, at_s=at_s)


class Peer:
    """A peer with its register and service. `number`: of its key. `disk` outlives it."""

    def __init__(
        self, network: MemoryNetwork, number: int, *, disk: MemoryDisk | None = None, invites: bool = True
    ) -> None:
        self.id, self.disk, self.now_s, self.removed = id_of(number), MemoryDisk() if disk is None else disk, NOW_S, ""
        self.transport = MemoryTransport(network, self.id)
        self.trust = self.transport.trust = trust(number, allow=LISTED)
        self.trust.allow.current_number = lambda: 0
        self.transport.gate = type(self.transport.gate)(self.trust, member=self.trust.allow.__contains__)
        self.updates = AccessUpdates(
            self.transport, self.disk, run=RUN, invites=invites, on_removed=self.stop, now_s=lambda: float(self.now_s)
        )
        self.register = self.updates.register

    def stop(self, why: str) -> None:
        self.removed = why
