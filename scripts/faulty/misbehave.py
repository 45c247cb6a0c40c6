"""Make a worker of bench_faults.py misbehave while a file names one of the following misbehaviours.

The environment variable named by FILE contains the path of that file. Each time that the worker misbehaves, a line with
the name of the misbehaviour is appended to the file next to it whose name ends in COUNTED.

corrupt     it serves bytes that do not match its payload's sha256
garbled     its payload matches its sha256, but is not a message that can be landed
huge        its payload is a valid message in which every bfloat16 is the largest finite value
oversized   its payload has more bytes than the others accept
slow        it sends its payloads at SLOW_BYTES_S bytes per second
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

FILE = "OUTERLOOP_BENCH_MISBEHAVE"
COUNTED = ".counted"
PAYLOADS = ("garbled", "huge", "oversized")
"""The misbehaviours that change the liar's payload."""
SLOW_BYTES_S = 4000.0  # bytes/s per download: a payload of model=nano takes 10 s


def now() -> str:
    """Return the current misbehaviour, or an empty string if there is none."""
    try:
        return Path(os.environ[FILE]).read_text()
    except FileNotFoundError:
        return ""


def note(how: str) -> None:
    """Record that the worker has misbehaved in this way."""
    with counted(Path(os.environ[FILE])).open("a") as lines:
        lines.write(f"{how}\n")


def counted(path: Path) -> Path:
    """Return the file with the recorded misbehaviours. `path`: the file that names the current one."""
    return path.with_name(path.name + COUNTED)


def install() -> None:
    """Replace the methods through which every payload passes."""
    from outerloop.swarm.gather.round_store import RoundStore
    from outerloop.swarm.gather.runner import GatherRunner
    from outerloop.swarm.transfer.uploads import RateLimiter

    give, offer, take = RoundStore.get, GatherRunner.offer, RateLimiter.take

    def bad_give(self, sha):
        content = give(self, sha)
        if content is None or now() != "corrupt":
            return content
        note("corrupt")
        return bytes(len(content))

    async def bad_offer(self, number, blob):
        how = now()
        if how in PAYLOADS:
            note(how)
        return await offer(self, number, bad(blob, how, most=self._max_bytes))

    async def bad_take(self, count):
        await take(self, count)
        if now() == "slow":
            note("slow")
            await asyncio.sleep(count / SLOW_BYTES_S)

    for owner, name, how in (
        (RoundStore, "get", bad_give),
        (GatherRunner, "offer", bad_offer),
        (RateLimiter, "take", bad_take),
    ):
        setattr(owner, name, how)


def bad(blob: bytes, how: str, *, most: int) -> bytes:
    """Return the payload to send in place of `blob`. `most` is the maximum size that peers accept."""
    if how == "garbled":
        return blob[:8] + bytes(byte ^ 0xFF for byte in blob[8:])
    if how == "huge":
        return largest(blob)
    return blob.ljust(most + 1, b"\0") if how == "oversized" else blob


def largest(blob: bytes) -> bytes:
    """Return the message with every bfloat16 (all scales and levels) replaced by the largest finite value."""
    import torch

    from outerloop import wire

    header, tensors = wire.read(blob)
    most = torch.finfo(torch.bfloat16).max
    parts = {
        str(i): {name: torch.full_like(x, most) if x.dtype == torch.bfloat16 else x for name, x in one.items()}
        for i, one in enumerate(tensors)
    }
    return wire.pack(header, parts)
