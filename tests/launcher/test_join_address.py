"""How others join is told for every run that they can join."""

from pathlib import Path

import pytest
from omegaconf import DictConfig

from outerloop.config import load
from outerloop.config.manifest.describe_run import add_manifest
from outerloop.launcher.address_lines import address_lines

LOCAL, PUBLIC = "/ip4/127.0.0.1/tcp/4/p2p/x", "/ip4/198.51.100.7/tcp/4/p2p/x"
GOSSIP = ["recipe=noloco", "exchange=swarm_gossip"]


def told(address: str, *overrides: str, config: DictConfig | None = None) -> list[str]:
    return list(address_lines(config or load.load(list(overrides)), Path("runs/mine"), [address]))


@pytest.mark.parametrize("peers", ["exchange.peers=1", "exchange.peers=3", "workers=4"])
def test_a_run_that_takes_newcomers_tells_its_address_whatever_the_number_of_peers(peers: str) -> None:
    workers = [] if peers.startswith("workers") else ["workers=1"]
    said = told(PUBLIC, *workers, "exchange=swarm_gather", peers)
    number = peers.rpartition("=")[2]
    assert said == [
        f"others join with the same options and exchange.peers={number} exchange.host=0.0.0.0"
        f" 'exchange.initial_peers=[{PUBLIC}]'"
    ]


def test_a_peer_that_listens_on_this_machine_only_is_told_how_to_change_it() -> None:
    assert told(LOCAL, "exchange=swarm_gather", "workers=1", "exchange.peers=1") == [
        f"others on this machine join with the same options and exchange.peers=1 'exchange.initial_peers=[{LOCAL}]'",
        "start with exchange.host=0.0.0.0 to let other machines join",
    ]


def test_a_run_with_a_manifest_tells_the_line_that_joins_it() -> None:
    config = load.load(["exchange=swarm_gather", "workers=1", "exchange.peers=1"])
    add_manifest(config)
    assert told(PUBLIC, config=config)[0] == f"others join with: outerloop join {PUBLIC}"
    assert told(PUBLIC, config=config)[1].startswith("or with the same options and exchange.peers=1 ")
    assert told(LOCAL, config=config)[0] == f"others on this machine join with: outerloop join {LOCAL} --host 127.0.0.1"
    config.recipe = "mine"
    add_manifest(config)
    assert not told(PUBLIC, config=config)[0].startswith("others join with:")


def test_a_gossip_run_takes_no_newcomers_and_tells_while_it_forms_alone() -> None:
    assert told(PUBLIC, *GOSSIP, "workers=3") == []
    assert len(told(PUBLIC, *GOSSIP, "workers=1", "exchange.peers=3")) == 1


def test_a_listed_run_names_the_command_that_invites_and_not_the_line_that_is_refused() -> None:
    config = load.load(["exchange=swarm_gather", "workers=1", "exchange.peers=2", "exchange.allow=[x]"])
    add_manifest(config)
    line = "outerloop invite runs/mine prints the command for a new machine"
    assert told(PUBLIC, config=config)[0] == f"with exchange.invites=true, {line}"
    config.exchange.invites = True
    assert told(PUBLIC, config=config)[0] == line
