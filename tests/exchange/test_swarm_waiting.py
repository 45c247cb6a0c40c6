"""Waiting for a round of a swarm: what ends it, and what is reported meanwhile."""

from concurrent.futures import Future

import pytest

from outerloop.exchange.swarm_waiting import PatientPending


def test_a_round_that_itself_ends_with_a_timeout_is_no_longer_waited_for() -> None:
    said: list[str] = []
    future: Future[list[object]] = Future()
    future.set_exception(TimeoutError("a request took too long"))
    pending = PatientPending(future, waits_for=lambda: "no reason", on_status=said.append, recover=pytest.fail)
    with pytest.raises(TimeoutError, match="a request took too long"):
        pending.wait(0.1)
    assert said == []
