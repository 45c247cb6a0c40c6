"""Checks of the network: a daemon of our own, its addresses dialled by a second one, and the peers that were named."""

from __future__ import annotations

import ipaddress
import re
import socket
import time
from collections.abc import Generator, Iterator, Sequence

from outerloop.commands.doctor.finding import Finding
from outerloop.report.units import show_bandwidth
from outerloop.swarm.p2p.framing import BrokenStream, TurnedAway
from outerloop.swarm.p2p.observer import ObserverNode, visit
from outerloop.swarm.p2p.probe import Measured, measure
from outerloop.swarm.p2p.transport import Unreachable
from outerloop.swarm.timeouts import MEASURE_S, OPEN_S, STOP_S
from outerloop.types import UserError

CLOCK_S = 3.0
"""hivemind's: peers whose clocks differ by more refuse each other."""
DIALLED = 3
"""Addresses that are tried; each takes a daemon of its own, since libp2p dials a peer that it knows by any of them."""
THIS_MACHINE, THIS_NETWORK = "this machine only", "this network only"
ALL_INTERFACES = "type exchange.host=0.0.0.0 when other machines shall join"
OUTSIDE = (
    "for those outside type exchange.port=4242, open or forwarded, and "
    "exchange.announce=[/ip4/<public address>/tcp/4242], or exchange.open_internet=true"
)
WHERE = "type a free --port (0 takes any) and a --host of this machine"
ASK = "type --peer and a running peer's address"


def findings(*, host: str, port: int, announce: Sequence[str], peers: Sequence[str]) -> Generator[Finding, None, None]:
    """All of them, as they come."""
    began = time.monotonic()
    try:
        with visit(host=host, port=port, announce=announce, observer=False) as own:
            yield Finding("daemon", True, f"p2pd started in {time.monotonic() - began:.1f} s on {host}")
            yield announced(own.addresses)
            yield reached({address: dialled(address) for address in own.addresses[:DIALLED]}, announce)
            for peer in peers:
                yield from asked(own, peer, announce)
            if not peers:
                yield Finding("nat", None, "routers, relays, hole punching: nobody outside was asked", ASK)
    except UserError as error:
        yield Finding("daemon", False, str(error), WHERE)


def place_of(address: str) -> str:
    """Who can reach a multiaddr, by the look of it."""
    found = re.match(r"/ip[46]/([^/]+)", address)
    if "/p2p-circuit" in address:
        return "relay"
    if found is None:
        return "name"
    ip = ipaddress.ip_address(found[1])
    return THIS_MACHINE if ip.is_loopback else "public" if ip.is_global else THIS_NETWORK


def announced(addresses: Sequence[str]) -> Finding:
    """What others would be told to dial."""
    places = {short(address): place_of(address) for address in addresses}
    said = ", ".join(f"{address} ({place})" for address, place in places.items())
    if set(places.values()) == {THIS_MACHINE}:
        return Finding("addresses", None, said, ALL_INTERFACES)
    if set(places.values()) <= {THIS_MACHINE, THIS_NETWORK}:
        return Finding("addresses", None, said, OUTSIDE)
    return Finding("addresses", True, said)


def dialled(address: str) -> str:
    """Why a second daemon cannot dial an address of the first; empty when it can."""
    try:
        with visit() as other:
            other.call(other.dial(address), timeout_s=2 * OPEN_S)
    except (Unreachable, UserError) as error:
        return last_line(error)
    return ""


def reached(failures: dict[str, str], announce: Sequence[str]) -> Finding:
    """What came of dialling: address -> why not. Many routers do not let their own inside dial their outside."""
    failed = [f"{short(address)} ({why})" for address, why in failures.items() if why]
    if not failed:
        said = f"a second daemon on this machine dialled {', '.join(map(short, failures))}"
        return Finding("port", True, f"{said}; firewalls and routers on the way of others were not tested")
    todo = f"open TCP port {port_of(failed[0])}"
    if announce:
        return Finding("port", None, f"not dialled from here: {', '.join(failed)}; that may be the router's way", todo)
    return Finding("port", False, f"a second daemon on this machine cannot dial {', '.join(failed)}", todo)


def asked(own: ObserverNode, peer: str, announce: Sequence[str]) -> Iterator[Finding]:
    """Dial a peer and probe it."""
    try:
        peer_id = own.call(own.dial(peer), timeout_s=2 * OPEN_S)
    except Unreachable as error:
        todo = "is it running, is its port open, is this the address that it printed?"
        yield Finding("peer", False, f"{peer} cannot be dialled ({last_line(error)})", todo)
        return
    try:
        found = own.call(measure(own, peer_id), timeout_s=2 * MEASURE_S)
    except TurnedAway:
        said = f"{peer_id} was dialled and its id is right; it answers nobody but the peers in its exchange.allow"
        yield Finding("peer", None, said, "type --run-dir too, and let them add the ids that it shows")
        return
    except (Unreachable, BrokenStream, TimeoutError) as error:
        why = str(error) or f"not done in {MEASURE_S:.0f} s: slower than 1 Mbit/s, or frozen"
        yield Finding("peer", None, f"{peer_id} was dialled and its id is right, but a probe failed ({why})")
        return
    yield Finding("peer", True, f"{peer_id}: {speed(found)}")
    yield clock(found)
    there = own.call(own.seen_at(peer_id), timeout_s=2 * STOP_S)
    yield nat(found.seen, local_ip(ip_of(there)), announce, port_of(own.addresses[0]))


def speed(found: Measured) -> str:
    """Round trip and rates. A megabyte is too short for a connection to come to its full speed."""
    said = f"round trip {1000 * found.round_trip_s:.1f} ms"
    if found.up is None or found.down is None:
        return f"{said}; bandwidth not measured, others have just asked it: try again in a minute"
    return f"{said}, at least {rate(found.up)} to it and {rate(found.down)} from it (1 MB each)"


def rate(bytes_per_s: float) -> str:
    """Two digits are more than a megabyte can tell."""
    return show_bandwidth(float(f"{8 * bytes_per_s:.2g}"))


def clock(found: Measured) -> Finding:
    """Theirs against ours."""
    ahead_s, sure_s = found.clock_ahead_s, found.round_trip_s / 2
    where = "behind" if ahead_s > 0 else "ahead of"
    said = f"this machine's is {abs(ahead_s):.3f} s {where} the peer's, give or take {sure_s:.3f} s"
    good = abs(ahead_s) <= CLOCK_S
    todo = "" if good else f"set the clock (NTP): peers more than {CLOCK_S:.0f} s apart refuse each other"
    return Finding("clock", good, said, todo)


def nat(seen: str, local: str, announce: Sequence[str], port: str) -> Finding:
    """Where the peer sees this machine, against the address that its packets leave from."""
    outside = ip_of(seen)
    if not outside or not local:
        return Finding("nat", None, "the peer did not say where it sees this machine")
    if outside == local:
        return Finding("nat", True, f"none on the way to this peer: it sees {outside}, an address of this machine")
    said = f"the peer sees {outside}, this machine sends from {local}: a router translates"
    if any(ip_of(address) == outside for address in announce):
        return Finding("nat", True, f"{said}, and {outside} is announced; whether the port is forwarded was not tested")
    todo = f"forward TCP port {port} and type exchange.announce=[/ip4/{outside}/tcp/{port}] exchange.port={port}"
    return Finding("nat", False, said, f"{todo}, or exchange.open_internet=true for relays and hole punching")


def local_ip(towards: str) -> str:
    """The address that packets to an IP address leave from; none is sent."""
    if not towards:
        return ""
    family = socket.AF_INET6 if ":" in towards else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((towards, 9))
        except OSError:
            return ""
        return str(probe.getsockname()[0])


def ip_of(address: str) -> str:
    """The IP address in a multiaddr; empty for a name."""
    found = re.match(r"/ip[46]/([^/]+)", address)
    return found[1] if found else ""


def port_of(address: str) -> str:
    """The TCP port in a multiaddr."""
    found = re.search(r"/tcp/(\d+)", address)
    return found[1] if found else ""


def short(address: str) -> str:
    """Without the peer id, which is the same for all."""
    return address.partition("/p2p/")[0] if "/p2p-circuit" not in address else address


def last_line(error: Exception) -> str:
    """libp2p lists what it tried; the last is what it ended with."""
    return str(error).splitlines()[-1].lstrip(" *")
