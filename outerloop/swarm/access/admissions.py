"""Signed statements of listed peers about invited peers. Any peer can check them without asking another one.

    admission    a listed peer has received a binding (invites.py), which admits the peer that the binding names
    removal      an invited peer may no longer take part or, if the removal is lifted, may take part again
    withdrawal   an invite may no longer be used; signed by its issuer, and final

Each is valid in one run only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from outerloop.swarm.access.invites import Binding, Invite, run_id
from outerloop.swarm.access.signatures import Signatures
from outerloop.swarm.validation import (
    MAX_AMOUNT,
    MAX_NUMBER,
    MalformedMessage,
    checked_int,
    digest,
    peer_id,
    quote,
    row,
    signature,
)


@dataclass(frozen=True)
class Admission:
    """The statement of a listed peer that it has received a binding.

    receiver   id of the listed peer
    at_s       Unix time of the receipt, by the clock of the receiver
    number     the receiver's AllowList.current_number at that time; 0 if it was not known
    """

    binding: Binding
    receiver: str
    at_s: int
    number: int
    signature: bytes

    @staticmethod
    def new(binding: Binding, receiver: Signatures, *, at_s: int, number: int) -> Admission:
        """Return the admission that a listed peer signs. `number`: its AllowList.current_number."""
        statement = binding.invite.digest, binding.peer, at_s, number
        signed = receiver.sign("invite_admission", binding.invite.run, *statement)
        return Admission(binding, receiver.peer_id, at_s, number, signed)

    @property
    def peer(self) -> str:
        return self.binding.peer

    @property
    def invite(self) -> Invite:
        return self.binding.invite

    @property
    def last(self) -> int | None:
        """Number of the last commit in which the peer may take part, or None if there is no limit."""
        return self.number + self.invite.rounds - 1 if self.invite.rounds else None

    @property
    def order(self) -> tuple[int, str, str, int, bytes]:
        """The sort key of admissions, by time of receipt. Of several with the same invite, the first one counts."""
        return self.at_s, self.peer, self.receiver, self.number, self.signature

    def is_signed(self, signatures: Signatures) -> bool:
        """Return whether the signatures of the invite, of the binding and of this admission are valid."""
        invite, statement = self.invite, (self.invite.digest, self.peer, self.at_s, self.number)
        signed = signatures.verify(self.signature, "invite_admission", invite.run, *statement, by=self.receiver)
        return signed and self.binding.is_signed(signatures)

    def to_list(self) -> list[Any]:
        return [self.binding.to_list(), self.receiver, self.at_s, self.number, self.signature]

    @staticmethod
    def from_list(value: Any) -> Admission:
        """Parse the result of `to_list`. Raises MalformedMessage if it is invalid. No signature is checked."""
        binding, receiver, at_s, number, signed = row(value, 5, "an admission must have 5 values")
        return Admission(
            Binding.from_list(binding),
            peer_id(receiver, "the receiver of a binding"),
            checked_int(at_s, "the time of an admission", maximum=MAX_AMOUNT),
            checked_int(number, "the round of an admission", maximum=MAX_NUMBER),
            signature(signed, "the signature of an admission"),
        )


@dataclass(frozen=True)
class Removal:
    """The statement of the peer `by` that `peer` may no longer take part or, if `lifted`, that it may again."""

    run: str
    by: str
    peer: str
    lifted: bool
    at_s: int
    signature: bytes

    @staticmethod
    def new(by: Signatures, *, run: str, peer: str, lifted: bool, at_s: int) -> Removal:
        return Removal(run, by.peer_id, peer, lifted, at_s, by.sign("removal", run, peer, int(lifted), at_s))

    @property
    def order(self) -> tuple[int, bool, str, bytes]:
        """The sort key of removals, by date. Of several for the same peer, the last one counts.

        It contains all values that can differ, so that all peers keep the same one of two that were signed twice.
        """
        return self.at_s, not self.lifted, self.by, self.signature

    def is_signed(self, signatures: Signatures) -> bool:
        statement = self.peer, int(self.lifted), self.at_s
        return signatures.verify(self.signature, "removal", self.run, *statement, by=self.by)

    def to_list(self) -> list[Any]:
        return [self.run, self.by, self.peer, self.lifted, self.at_s, self.signature]

    @staticmethod
    def from_list(value: Any) -> Removal:
        """Parse the result of `to_list`. Raises MalformedMessage if it is invalid. The signature is not checked."""
        run, by, peer, lifted, at_s, signed = row(value, 6, "a removal must have 6 values")
        if type(lifted) is not bool:
            raise MalformedMessage(f"a removal must say whether it is lifted; got {quote(lifted)}")
        return Removal(
            run_id(run),
            peer_id(by, "the peer that removes another"),
            peer_id(peer, "the removed peer"),
            lifted,
            checked_int(at_s, "the time of a removal", maximum=MAX_AMOUNT),
            signature(signed, "the signature of a removal"),
        )


@dataclass(frozen=True)
class Withdrawal:
    """The statement of the listed peer `issuer` that one of its invites may no longer be used.

    digest     digest of the invite
    expires_s  Unix time at which the invite expires. It decides how long peers keep the withdrawal
    at_s       Unix time of the withdrawal
    """

    run: str
    issuer: str
    digest: bytes
    expires_s: int
    at_s: int
    signature: bytes

    @staticmethod
    def new(issuer: Signatures, *, run: str, digest: bytes, expires_s: int, at_s: int) -> Withdrawal:
        signed = issuer.sign("invite_withdrawal", run, digest, expires_s, at_s)
        return Withdrawal(run, issuer.peer_id, digest, expires_s, at_s, signed)

    @property
    def subject(self) -> tuple[str, bytes]:
        """The issuer and the digest. So if another peer signs a withdrawal of the same invite, it has no effect."""
        return self.issuer, self.digest

    @property
    def order(self) -> tuple[int, bytes, int, bytes]:
        """The sort key of withdrawals, by date. Of several with the same subject, the first one counts."""
        return self.at_s, self.digest, self.expires_s, self.signature

    def is_signed(self, signatures: Signatures) -> bool:
        statement = self.digest, self.expires_s, self.at_s
        return signatures.verify(self.signature, "invite_withdrawal", self.run, *statement, by=self.issuer)

    def to_list(self) -> list[Any]:
        return [self.run, self.issuer, self.digest, self.expires_s, self.at_s, self.signature]

    @staticmethod
    def from_list(value: Any) -> Withdrawal:
        """Parse the result of `to_list`. Raises MalformedMessage if it is invalid. The signature is not checked."""
        run, issuer, invite, expires_s, at_s, signed = row(value, 6, "a withdrawal must have 6 values")
        return Withdrawal(
            run_id(run),
            peer_id(issuer, "the issuer of a withdrawn invite"),
            digest(invite, "a withdrawn invite"),
            checked_int(expires_s, "the expiry of a withdrawn invite", maximum=MAX_AMOUNT),
            checked_int(at_s, "the time of a withdrawal", maximum=MAX_AMOUNT),
            signature(signed, "the signature of a withdrawal"),
        )


Statement = Admission | Removal | Withdrawal
