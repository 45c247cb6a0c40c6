"""Transfer states between peers outside of rounds: the initial weights of a run, and the state for late joiners."""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from outerloop.exchange.swarm_waiting import OnStatus, Result, progress_to, state_from_others
from outerloop.swarm.membership.rendezvous import Rendezvous
from outerloop.swarm.p2p.node import Node
from outerloop.swarm.state_transfer.join import StateTransfer
from outerloop.swarm.timeouts import CALL_S, STATE_S
from outerloop.types import QuorumLost, StateHandoff


@dataclass(frozen=True, kw_only=True)
class SwarmState:
    """Sends states to other peers, and receives states from them.

    Args:
        own: name of this peer.
        roster: returns the names of the peers that the next round expects.
        spawn: starts a coroutine in the network thread.
        on_status: called with each progress message.
        on_loading: called during a download of the run's state with the fraction received so far, 0 to 1, and with None
            at its end.
        patience_s: give up after this number of seconds without any message about the run.
    """

    node: Node
    transfer: StateTransfer
    meetings: Rendezvous
    own: str
    roster: Callable[[], Collection[str]]
    spawn: Callable[[Coroutine[Any, Any, Any]], Future[Any]]
    on_status: OnStatus
    on_loading: Callable[[float | None], None]
    patience_s: float

    def hand_over(self, way: StateHandoff, state: Callable[[], bytes]) -> bytes:
        """Transfer the initial state in chunks from all givers in parallel. All peers wait until the takers have it.

        Return the state if this peer is a taker, otherwise b"". Raises QuorumLost if the state does not arrive.
        """
        if not way.takers:
            return b""
        content = b""
        if self.own in way.takers:
            content = self._receive_initial(way)
        else:
            self.node.call(self.transfer.serve_initial_state(state()), timeout_s=STATE_S)
        self._until_all_have_it(way.number)
        return content

    def of_run(self, names: Callable[[], Collection[str]], *, session: str, max_bytes: int) -> tuple[int, bytes]:
        """Download the state of the run from the peers with these names.

        Return the number of the last commit that the state includes, and the state. The total time is not limited.
        Raises QuorumLost if no peer sends anything about the run for `patience_s` seconds.
        """
        self.on_status("out of step with the other peers: downloading the state of the run")
        report, shown = progress_to(self.on_status), 0

        def progress(received: int, size: int) -> None:
            nonlocal shown
            report(received, size)
            if (percent := 100 * received // max(1, size)) != shown:
                shown = percent
                self.on_loading(percent / 100)

        self.on_loading(0.0)
        try:
            return self._while_heard(
                self.transfer.install_state(names, session=session, at_most=max_bytes, progress=progress)
            )
        finally:
            self.on_loading(None)

    def _receive_initial(self, way: StateHandoff) -> bytes:
        progress = progress_to(self.on_status)
        try:
            return self._while_heard(
                self.transfer.fetch_initial_state(way.givers, at_most=way.max_bytes, progress=progress)
            )
        except QuorumLost as error:
            raise QuorumLost(
                f"no initial weights received from {', '.join(way.givers)} for {self.patience_s:g} s: restart all peers"
            ) from error

    def _until_all_have_it(self, number: int) -> None:
        """Wait until all takers have the state, except takers that are lost or receive no data for too long."""
        meeting = self.meetings.meet(number, b"", self.roster(), patience_s=STATE_S)
        try:
            self._while_heard(meeting)
        except QuorumLost:
            self.on_status(
                "starting without the peers that have not received the initial weights: no data arrived for too long"
            )
        self.node.call(self.transfer.drop_initial_state(), timeout_s=CALL_S)

    def _while_heard(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Return the result of `work`. Raises QuorumLost if no message about the run arrives for `patience_s`."""
        self.transfer.listen()
        return state_from_others(
            self.spawn(work),
            silent_s=self.transfer.silent_s,
            patience_s=self.patience_s,
            on_status=self.on_status,
        )
