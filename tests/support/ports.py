"""Ports of this machine."""

import socket


def free_port() -> int:
    """A port on which no program listens: the kernel gives it to a socket, which is closed again."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])
