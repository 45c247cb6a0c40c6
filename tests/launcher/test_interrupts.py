"""Signals that a program such as `timeout` sends twice count as one interrupt."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from outerloop.launcher.interrupts import REPEAT_WINDOW_S, InterruptHandler, Terminated, handle_interrupts

RAISED = {signal.SIGTERM: Terminated, signal.SIGINT: KeyboardInterrupt}


@pytest.mark.parametrize("first", RAISED)
@pytest.mark.parametrize("second", RAISED)
def test_a_repeated_signal_counts_once_and_a_later_one_again(first: signal.Signals, second: signal.Signals) -> None:
    now_s = 100.0
    handler = InterruptHandler(clock=lambda: now_s)
    with pytest.raises(RAISED[first]):
        handler(first, None)
    now_s += 0.9 * REPEAT_WINDOW_S
    handler(second, None)
    now_s += 0.2 * REPEAT_WINDOW_S
    with pytest.raises(RAISED[second]) as raised:
        handler(second, None)
    assert raised.type is RAISED[second]


@pytest.fixture
def kept_handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in RAISED}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("kept_handlers")
def test_both_signals_have_one_handler_and_an_ignored_ctrl_c_stays_ignored() -> None:
    handle_interrupts()
    with pytest.raises(Terminated):
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGINT) is signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    handle_interrupts()
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
