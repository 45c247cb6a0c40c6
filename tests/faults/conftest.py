"""Workers in network namespaces, gone at the end whatever happens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from namespaces import lacking, network

from tests.support.network_hosts import Hosts


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Callable[[int, int], Hosts]]:
    """`hosts(3, 2)`: five workers that train together, three of them near and two far."""
    if reason := lacking():
        pytest.skip(reason)
    with ExitStack() as stack:

        def start(near: int, far: int) -> Hosts:
            made = Hosts(tmp_path, stack.enter_context(network(near + far, "--far", str(far))), near=near, far=far)
            stack.callback(made.stop)
            made.start()
            return made

        yield start
