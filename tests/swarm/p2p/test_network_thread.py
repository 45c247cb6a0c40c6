"""The network thread ends although a thread that works for one of its tasks does not."""

import asyncio
import threading

from outerloop.swarm.p2p.network_thread import NetworkThread


def test_stop_does_not_wait_longer_for_work_in_another_thread() -> None:
    network, begun, end = NetworkThread("this network"), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        end.wait()

    network.spawn(asyncio.to_thread(work))
    assert begun.wait(60)
    network.stop(timeout_s=0.1)
    end.set()
    assert "this network" not in {thread.name for thread in threading.enumerate()}
