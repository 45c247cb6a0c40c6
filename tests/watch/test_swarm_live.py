"""A peer that runs here, watched through its address."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import jsonschema
import pytest

from outerloop.commands.watch.sources import source_of
from outerloop.exchange.swarm_gather import SwarmGather
from outerloop.types import UserError
from outerloop.watch.model.schema import json_schema
from tests.support.swarm.loopback import eventually

pytestmark = pytest.mark.long


def test_a_running_peer_is_on_the_page(tmp_path: Path):
    """It has no manifest, so its settings are not known; and it is still there afterwards."""
    peer = SwarmGather(run="mine", peers=1, identity_path=str(tmp_path / "identity"))
    try:
        options = Namespace(what=peer.address[0], run="mine", run_dir=None)
        with source_of(options) as source:
            page = source.read()
            jsonschema.validate(page, json_schema())
            [seen] = page["peers"]
            assert (page["kind"], page["run"]["alive"], page["run"]["recipe"]) == ("swarm", 1, "")
            assert seen["name"] == peer.peer and seen["address"] == peer.address[0].partition("/p2p/")[0]
            assert seen["state"] == "starting"
            assert eventually(lambda: bool(source.read()["peers"][0]["round_trip_s"]), limit_s=60)
    finally:
        peer.abort()


def test_an_address_where_nothing_answers_is_a_mistake_of_the_user():
    nowhere = "/ip4/127.0.0.1/tcp/1/p2p/12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp"
    with (
        pytest.raises(UserError, match="no initial peer answers"),
        source_of(Namespace(what=nowhere, run="mine", run_dir=None)),
    ):
        pass
