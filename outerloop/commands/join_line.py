"""Show what volunteers need to join a run: the line to type, its QR code, and from where its address can be reached."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from importlib import import_module

from rich.console import Console

from outerloop.output import lenient_stdout
from outerloop.sinks.sink import print_line
from outerloop.swarm.p2p.reachability import THIS_MACHINE, THIS_NETWORK, best_first, reachable_from
from outerloop.types import missing_package

QR_PACKAGE = "segno"
HINTS = {
    THIS_MACHINE: "this address can be reached from this machine only: listen with --host 0.0.0.0",
    THIS_NETWORK: (
        "this address can be reached from this network only: for other machines, forward TCP port {port} to this"
        " machine, and announce the public address of the router with {announce}"
    ),
}


class JoinLine:
    """Prints how to join the run `run` by an address of this machine.

    qr          whether to draw the QR code even if the output is not a terminal
    announce    what the user types to announce another address; it contains {port}

    Raises ModuleNotFoundError if `qr` is set, but the package that draws QR codes is missing.
    """

    def __init__(self, run: str, *, qr: bool, announce: str) -> None:
        if qr:
            import_module(QR_PACKAGE)
        self._run, self._qr, self._announce, self._shown = run, qr, announce, ""

    def show(self, addresses: Sequence[str]) -> None:
        """Print the line that joins, a hint about its address and, on a terminal, the QR code.

        Print nothing if that line was the last one shown.
        """
        line, console = join_command(addresses), Console(file=lenient_stdout())
        if line == self._shown:
            return
        self._shown = line
        print_line(console, f"volunteers join run {self._run} with")
        print_line(console, f"    {line}")
        if hint := address_hint(addresses, announce=self._announce):
            print_line(console, hint)
        if self._qr or sys.stdout.isatty():
            print(qr_code(line), file=console.file, flush=True)


def join_command(addresses: Sequence[str]) -> str:
    """Return what volunteers type to join by the best of these addresses (full multiaddrs)."""
    address = best_first(addresses)[0]
    local = " --host 127.0.0.1" if reachable_from(address) == THIS_MACHINE else ""
    return f"outerloop join {address}{local}"


def address_hint(addresses: Sequence[str], *, announce: str) -> str:
    """Return from where the best address can be reached and what to do about it, or "" if it is a public address."""
    address = best_first(addresses)[0]
    port = address.partition("/tcp/")[2].partition("/")[0]
    return HINTS.get(reachable_from(address), "").format(port=port, announce=announce.format(port=port))


def qr_code(text: str) -> str:
    """Return a QR code of `text` as lines of block characters, or what to install to see one."""
    try:
        segno = import_module(QR_PACKAGE)
    except ModuleNotFoundError:
        return f"no QR code: {missing_package(QR_PACKAGE)}"
    out = io.StringIO()
    segno.make_qr(text).terminal(out, compact=True)
    return out.getvalue()
