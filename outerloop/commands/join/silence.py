"""Find out why no peer answers at an address: try a plain TCP connection to its host and port."""

from __future__ import annotations

import re
import socket

CONNECT_S = 3.0
"""Time limit for the connection to each IP address of the host: one lost packet is sent again after 1 s."""
HOST_AND_PORT = re.compile(r"/(?:ip4|ip6|dns|dns4|dns6)/([^/]+)/tcp/(\d+)")
ASK = "ask the operator of the run for the address of a running peer"


def why_silent(address: str) -> str:
    """Return why the peer at a full multiaddr probably does not answer, and what to do."""
    target = HOST_AND_PORT.match(address)
    if target is None:
        return f"no peer answers at {address}: {ASK}"
    host, port = target[1], target[2]
    match connection_error(address):
        case None:
            return (
                f"port {port} of {host} is open, but the peer …{address[-8:]} does not answer there (it has another key"
                f" now, is overloaded, or another program uses this port): {ASK}"
            )
        case ConnectionRefusedError():
            return (
                f"no program listens on port {port} of {host} (the run has ended, or this peer has stopped or has"
                f" another address now): {ASK}"
            )
        case TimeoutError():
            return (
                f"port {port} of {host} does not answer (the machine is off or has another address now, or a firewall"
                f" drops the packets): check the address and your internet connection, or {ASK}"
            )
        case error:
            return (
                f"port {port} of {host} cannot be reached ({error.strerror}): check the address and your internet"
                f" connection, or {ASK}"
            )


def connection_error(address: str) -> OSError | None:
    """Return the error of a TCP connection to the host and port of a multiaddr, or None if it succeeds.

    Also return None if the multiaddr contains no host or no port.
    """
    target = HOST_AND_PORT.match(address)
    if target is None:
        return None
    try:
        socket.create_connection((target[1], int(target[2])), timeout=CONNECT_S).close()
    except OSError as error:
        return error
    return None
