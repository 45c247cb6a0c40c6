"""Check the network: start a daemon, dial its addresses from a second daemon, and probe the given peers."""

from __future__ import annotations

import ipaddress
import re
import socket
import time
from collections.abc import Generator, Iterator, Sequence

from outerloop.commands.doctor.finding import Finding
from outerloop.report.units import format_bandwidth
from outerloop.swarm.p2p.framing import BrokenStream, TurnedAway
from outerloop.swarm.p2p.observer import ObserverNode, visit
from outerloop.swarm.p2p.probe import Measured, measure
from outerloop.swarm.p2p.reachability import THIS_MACHINE, THIS_NETWORK, reachable_from
from outerloop.swarm.p2p.transport import Unreachable
from outerloop.swarm.timeouts import MEASURE_S, OPEN_S, STOP_S
from outerloop.types import UserError

MAX_CLOCK_DIFFERENCE_S = 3.0
"""Hivemind's limit on the clock difference of two peers. Peers whose clocks differ by more refuse each other."""
MAX_DIALLED = 3
"""Maximum number of addresses to dial.

Each address is dialed from a separate daemon, because libp2p tries all addresses that it knows for a peer."""
LISTEN_ON_ALL_HINT = "set exchange.host=0.0.0.0 to let other machines join"
PUBLIC_ADDRESS_HINT = (
    "for machines outside this network, open or forward a port and set exchange.port=4242 "
    "exchange.announce=[/ip4/<public address>/tcp/4242], or set exchange.open_internet=true"
)
LISTEN_HINT = "pass a free --port (0 for any) and a --host of this machine"
PEER_HINT = "pass --peer with the address of a running peer"


def findings(*, host: str, port: int, announce: Sequence[str], peers: Sequence[str]) -> Generator[Finding, None, None]:
    """Run all network checks. Yield each finding as soon as it is available."""
    start_s = time.monotonic()
    try:
        with visit(host=host, port=port, announce=announce, observer=False) as node:
            yield Finding("daemon", True, f"p2pd started in {time.monotonic() - start_s:.1f} s on {host}")
            yield address_finding(node.addresses)
            yield port_finding({address: dial_failure(address) for address in node.addresses[:MAX_DIALLED]}, announce)
            for peer in peers:
                yield from peer_findings(node, peer, announce)
            if not peers:
                yield Finding("nat", None, "routers, relays, hole punching: not tested without a peer", PEER_HINT)
    except UserError as error:
        yield Finding("daemon", False, str(error), LISTEN_HINT)


def address_finding(addresses: Sequence[str]) -> Finding:
    """Report the addresses that this machine would announce to other peers."""
    places = {without_peer_id(address): reachable_from(address) for address in addresses}
    result = ", ".join(f"{address} ({place})" for address, place in places.items())
    if set(places.values()) == {THIS_MACHINE}:
        return Finding("addresses", None, result, LISTEN_ON_ALL_HINT)
    if set(places.values()) <= {THIS_MACHINE, THIS_NETWORK}:
        return Finding("addresses", None, result, PUBLIC_ADDRESS_HINT)
    return Finding("addresses", True, result)


def dial_failure(address: str) -> str:
    """Dial an address from a second daemon. Return the reason if that fails, else ""."""
    try:
        with visit() as dialler:
            dialler.call(dialler.dial(address), timeout_s=2 * OPEN_S)
    except (Unreachable, UserError) as error:
        return last_line(error)
    return ""


def port_finding(failures: dict[str, str], announce: Sequence[str]) -> Finding:
    """Return the finding about the addresses that were dialed. `failures`: address -> reason, or "" on success.

    If addresses are announced, a failure leaves the finding undecided, because many routers do not forward
    connections that a machine behind the router makes to the router's public address.
    """
    failed = [f"{without_peer_id(address)} ({why})" for address, why in failures.items() if why]
    if not failed:
        result = f"a second daemon on this machine dialed {', '.join(map(without_peer_id, failures))}"
        return Finding("port", True, f"{result}; firewalls and routers between machines were not tested")
    advice = f"open TCP port {port_of(failed[0])}"
    if announce:
        return Finding(
            "port", None, f"cannot dial from here: {', '.join(failed)}; the router may not allow this", advice
        )
    return Finding("port", False, f"a second daemon on this machine cannot dial {', '.join(failed)}", advice)


def peer_findings(node: ObserverNode, peer: str, announce: Sequence[str]) -> Iterator[Finding]:
    """Dial and probe a peer. Yield the findings on the peer, the clock and NAT."""
    try:
        peer_id = node.call(node.dial(peer), timeout_s=2 * OPEN_S)
    except Unreachable as error:
        advice = "check that the peer is running, that its port is open, and that it printed this address"
        yield Finding("peer", False, f"{peer} cannot be dialed ({last_line(error)})", advice)
        return
    try:
        measured = node.call(measure(node, peer_id), timeout_s=2 * MEASURE_S)
    except TurnedAway:
        result = f"{peer_id} was dialed and its id is correct, but it answers only the peers in its exchange.allow"
        yield Finding(
            "peer",
            None,
            result,
            "pass --run-dir too, and ask the operator of that peer to allow the ids that it prints",
        )
        return
    except (Unreachable, BrokenStream, TimeoutError) as error:
        reason = (
            str(error) or f"not finished in {MEASURE_S:.0f} s: the link is slower than 1 Mbit/s, or the peer is frozen"
        )
        yield Finding("peer", None, f"{peer_id} was dialed and its id is correct, but a probe failed ({reason})")
        return
    yield Finding("peer", True, f"{peer_id}: {format_speed(measured)}")
    yield clock_finding(measured)
    remote_address = node.call(node.seen_at(peer_id), timeout_s=2 * STOP_S)
    yield nat_finding(measured.seen, local_ip(ip_of(remote_address)), announce, port_of(node.addresses[0]))


def format_speed(measured: Measured) -> str:
    """Format the round-trip time and both rates, which are lower bounds: 1 MB is too little to reach full speed."""
    text = f"round trip {1000 * measured.round_trip_s:.1f} ms"
    if measured.up is None or measured.down is None:
        return (
            f"{text}; bandwidth not measured, because other machines have just probed the peer: try again in a minute"
        )
    return f"{text}, at least {format_rate(measured.up)} to it and {format_rate(measured.down)} from it (1 MB each)"


def format_rate(bytes_per_s: float) -> str:
    """Format a rate with two significant digits, because a transfer of 1 MB is no more precise than that."""
    return format_bandwidth(float(f"{8 * bytes_per_s:.2g}"))


def clock_finding(measured: Measured) -> Finding:
    """Compare this machine's clock with the peer's clock."""
    ahead_s, uncertainty_s = measured.clock_ahead_s, measured.round_trip_s / 2
    direction = "behind" if ahead_s > 0 else "ahead of"
    result = f"this machine's clock is {abs(ahead_s):.3f} s {direction} the peer's, ± {uncertainty_s:.3f} s"
    passed = abs(ahead_s) <= MAX_CLOCK_DIFFERENCE_S
    advice = (
        "" if passed else f"set the clock (NTP): peers more than {MAX_CLOCK_DIFFERENCE_S:.0f} s apart refuse each other"
    )
    return Finding("clock", passed, result, advice)


def nat_finding(seen: str, local: str, announce: Sequence[str], port: str) -> Finding:
    """Check for NAT: compare this machine's local address with the address that the peer sees."""
    outside = ip_of(seen)
    if not outside or not local:
        return Finding("nat", None, "the peer did not report the address at which it sees this machine")
    if outside == local:
        return Finding("nat", True, f"no NAT on the way to the peer: it sees {outside}, an address of this machine")
    result = f"the peer sees {outside}, but this machine sends from {local}, so it is behind NAT"
    if any(ip_of(address) == outside for address in announce):
        return Finding(
            "nat", True, f"{result}, and {outside} is announced; whether the port is forwarded was not tested"
        )
    advice = f"forward TCP port {port} and set exchange.announce=[/ip4/{outside}/tcp/{port}] exchange.port={port}"
    return Finding("nat", False, result, f"{advice}, or exchange.open_internet=true for relays and hole punching")


def local_ip(towards: str) -> str:
    """Return the local IP address from which packets to `towards` are sent, or "" if unknown. Sends no packet."""
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
    """Return the IP address in a multiaddr, or "" if it contains a host name, or text that is not an IP address."""
    match = re.match(r"/ip[46]/([^/]+)", address)
    try:
        return str(ipaddress.ip_address(match[1])) if match else ""
    except ValueError:
        return ""


def port_of(address: str) -> str:
    """Return the TCP port in a multiaddr, or "" if it has none."""
    match = re.search(r"/tcp/(\d+)", address)
    return match[1] if match else ""


def without_peer_id(address: str) -> str:
    """Return an address without its peer id. Relay addresses are returned unchanged."""
    return address.partition("/p2p/")[0] if "/p2p-circuit" not in address else address


def last_line(error: Exception) -> str:
    """Return the last line of an error's message: libp2p reports each attempt to dial on a separate line.

    Return "no answer in time" if the message is empty.
    """
    lines = str(error).splitlines() or ["no answer in time"]
    return lines[-1].lstrip(" *")
