"""From where an address can be reached, judged by its form."""

import pytest

from outerloop.swarm.p2p.reachability import THIS_MACHINE, THIS_NETWORK, best_first, is_loopback, reachable_from

ID = "12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp"


@pytest.mark.parametrize(
    ("address", "place"),
    [
        ("/ip4/127.0.0.1/tcp/1", THIS_MACHINE),
        ("/ip6/::1/tcp/1", THIS_MACHINE),
        ("/ip4/10.1.2.3/tcp/1", THIS_NETWORK),
        ("/ip4/100.64.0.1/tcp/1", THIS_NETWORK),
        ("/ip6/fe80::1/tcp/1", THIS_NETWORK),
        ("/ip4/8.8.8.8/tcp/1", "public"),
        ("/dns4/example.org/tcp/1", "name"),
        (f"/ip4/8.8.8.8/tcp/1/p2p/{ID}/p2p-circuit", "relay"),
    ],
)
def test_reachability_of_an_address(address: str, place: str) -> None:
    assert reachable_from(address) == place


def test_addresses_that_most_machines_can_reach_come_first() -> None:
    loopback, second, first = "/ip4/127.0.0.1/tcp/1", "/ip4/192.168.1.5/tcp/1", "/ip4/10.0.0.2/tcp/1"
    relayed, named, public = f"/ip4/8.8.8.8/tcp/1/p2p/{ID}/p2p-circuit", "/dns4/example.org/tcp/1", "/ip4/8.8.8.8/tcp/1"
    expected = [public, named, relayed, first, second, loopback]
    assert best_first([loopback, first, second, relayed, named, public]) == expected
    assert best_first([loopback, second, first])[:2] == [second, first]


def test_loopback_addresses() -> None:
    assert is_loopback("127.0.0.1") and is_loopback("::1") and not is_loopback("0.0.0.0")
