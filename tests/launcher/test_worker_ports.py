"""Each worker of a machine listens on a port of its own."""

import io
from types import SimpleNamespace
from typing import Any, cast

import pytest

from outerloop.config import load
from outerloop.inner.stop_point import StopPoint
from outerloop.launcher import worker_process


@pytest.mark.parametrize(("port", "index", "expected"), [(4242, 0, 4242), (4242, 2, 4244), (0, 2, 0)])
def test_worker_i_listens_on_the_port_plus_i(
    port: int, index: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ports: list[int] = []
    monkeypatch.setattr(worker_process, "swarm_exchange", lambda config, *_: ports.append(config.exchange.port))
    monkeypatch.setattr(worker_process, "threading", SimpleNamespace(Thread=lambda **_: SimpleNamespace(start=int)))
    monkeypatch.setattr("sys.stdin", io.StringIO('{"initial_peers": []}\n'))
    config = load.load(["workers=3", f"exchange.port={port}"])
    worker_process.make_exchange(config, cast(Any, None), index, cast(Any, None), cast(StopPoint, None))
    assert ports == [expected]
