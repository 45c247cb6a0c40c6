"""Compare the signed statements that this peer verifies, to detect liars and lost records of this peer's own votes.

another peer's statement contradicts an earlier one    accuse that peer with both statements; it is expelled
                                                       (accusations.py)
this peer's hard state lacks a vote that it cast       stop this peer: its disk was restored from a snapshot
                                                       (equivocation.py)
evidence against this peer's own key                   fail the rounds with an error: the key was copied
"""

from __future__ import annotations

from collections.abc import Callable

from outerloop.swarm.access.signatures import Field
from outerloop.swarm.accountability.accusations import Accusations
from outerloop.swarm.accountability.equivocation import EquivocationWatch, forgotten
from outerloop.swarm.accountability.evidence import Evidence
from outerloop.swarm.accountability.expulsion import ExpelledPeers
from outerloop.swarm.gather.round_context import RoundContext
from outerloop.swarm.p2p.network_thread import BackgroundTasks
from outerloop.swarm.p2p.transport import Transport
from outerloop.swarm.storage import Disk
from outerloop.types import UserError


class StatementWitness:
    """Compares the statements that one peer verifies. `fail` ends its rounds with an error; `stop` stops its voting."""

    def __init__(
        self,
        context: RoundContext,
        transport: Transport,
        disk: Disk,
        *,
        run: str,
        fail: Callable[[Exception], None],
        stop: Callable[[], None],
    ) -> None:
        self._context, self._fail, self._stop = context, fail, stop
        self._tasks = BackgroundTasks()
        self._watch = EquivocationWatch("")
        self.expelled = ExpelledPeers(
            disk, context.trust, hard_state=lambda: context.chain.hard_state if context.begun else None
        )
        self.accusations = Accusations(
            transport,
            self.expelled,
            run=run,
            names=context.names,
            on_own=self.accused,
            on_other=lambda: context.act(lambda chain: chain.reconsider()),
        )

    def begin(self, session: str) -> None:
        """Start comparing the statements that peers signed for this session."""
        self._watch = EquivocationWatch(session)
        self._context.trust.signatures.witness = self._compare

    def begin_round(self, number: int) -> None:
        """Set the current round. Only statements about rounds close to it are compared."""
        self._watch.begin(number)

    def accused(self, evidence: Evidence) -> None:
        """Fail the rounds, because of evidence against this peer."""
        if not evidence.auditors:
            self.own_key_accused(evidence.why)
            return
        self._fail(
            UserError(
                f"this peer {evidence.why}, so the other peers expel it. If it is honest, its hardware or its data"
                " differ from theirs: check the memory and the data of this machine, remove the identity file, and"
                " join as a new peer"
            )
        )

    def own_key_accused(self, offence: str) -> None:
        """Fail the rounds, because two contradictory statements were signed with this peer's own key."""
        self._fail(
            UserError(
                f"a process with this peer's key {offence}, so the other peers expel this peer. A copy of the key is in"
                " use, or this peer lost the record of what it had signed. Stop the copy, remove the identity file, and"
                " join as a new peer"
            )
        )

    def _compare(self, context: str, session: str | bytes, fields: tuple[Field, ...], signature: bytes) -> None:
        """Accuse the signer of this statement if it signed a contradictory statement before.

        Raises UserError if the statement is a vote of this peer that is missing from its saved state.
        """
        if vote := forgotten(self._context.chain.hard_state, context, session, fields):
            self._stop_voting(vote)
        if evidence := self._watch.heard(context, session, fields, signature):
            self._tasks.start(self.accusations.accuse(evidence))

    def _stop_voting(self, vote: str) -> None:
        error = UserError(
            f"this peer {vote}: its disk was restored from a snapshot or a backup. It stops, because it might vote"
            " twice. Remove the identity file and join as a new peer; if the run sets exchange.allow, replace this"
            " peer's old id in the exchange.allow of every peer"
        )
        self._fail(error)
        self._stop()
        raise error
