"""Fuzz, guided by coverage, all code that decodes bytes from other peers: wire, codec, compress, kernels.

    .venv/bin/python -m pip install atheris
    nice .venv/bin/python scripts/fuzz_wire.py [--minutes 10] [--folder FOLDER]

An input is one byte that selects a codec from configs/compress, followed by one payload. Seeds are valid payloads. Two
kinds of mutations are used: those of tests/support/forged_payloads.py, which know the layout and correct the checksum,
and those of libFuzzer, after which the header and checksum are corrected. Each input must pass `payload_checks.check`:
the decoder either raises InvalidMessage or returns finite tensors of the right shapes; memory stays bounded; and
compiled kernels give the same results as their reference implementations. The script enables the kernels' bounds
checks. It stops at the first input that fails the check or takes ten seconds, and stores this input in FOLDER. The line
DONE reports the coverage: branches (cov), and branches counted by how often they were taken (ft).
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from pathlib import Path
from random import Random

ROOT = Path(__file__).resolve().parent.parent
LONGEST = 1 << 16
"""Maximum size of an input in bytes; the longest valid payload has 20,000 bytes."""


def targets() -> dict[str, Path]:
    """Return a map from module to file, for all modules that process bytes from other peers."""
    package = ROOT / "outerloop"
    files = [
        package / "wire.py",
        package / "core/codec.py",
        *package.glob("compress/**/*.py"),
        *package.glob("kernels/**/*.py"),
    ]
    return {".".join(file.relative_to(ROOT).with_suffix("").parts): file for file in files if file.stem != "__init__"}


def is_compiled(module: str) -> bool:
    """Return whether numba compiles functions in the module. numba reads bytecode, which must not be instrumented."""
    return any(mark in targets()[module].read_text() for mark in ("from numba", "\n@compiled\n"))


def import_instrumented(cache: Path) -> None:
    """Import the targets with libFuzzer's instrumentation, and enable bounds checks in the compiled loops."""
    os.environ |= {"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(cache.absolute())}
    sys.path.insert(0, str(ROOT))
    with atheris.instrument_imports(include=["outerloop"], exclude=[*filter(is_compiled, targets())]):
        for module in targets():
            importlib.import_module(module)


def write_seeds(folder: Path) -> None:
    """Write and check a valid payload of every codec, so that everything is compiled before the fuzzing starts."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, codec in enumerate(payload_checks.CODECS):
        payload_checks.check(codec, payload_checks.honest(codec))
        (folder / codec).write_bytes(bytes([number]) + payload_checks.honest(codec))


def one_input(data: bytes) -> None:
    """Check one input; libFuzzer calls this."""
    if data:
        payload_checks.check(payload_checks.CODECS[data[0] % len(payload_checks.CODECS)], data[1:])


def changed(data: bytes, max_size: int, seed: int) -> bytes:
    """Return a new input: mutated according to its layout, mutated by libFuzzer, or passed to another codec."""
    draw = Random(seed)
    codec, blob = data[:1] or b"\0", data[1:]
    other = payload_checks.honest(draw.choice(payload_checks.CODECS), seed=1)
    way = draw.random()
    if way < 0.6:
        blob = forged_payloads.mutated(blob, other, draw)
    elif way < 0.95:
        blob = forged_payloads.repaired(atheris.Mutate(blob, max_size - 1))
    else:
        codec = bytes([draw.randrange(len(payload_checks.CODECS))])
    return (codec + blob)[:max_size]


def options() -> argparse.Namespace:
    """Parse the command line."""
    out = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    out.add_argument("--minutes", type=float, default=10.0, help="duration in minutes (default: 10)")
    out.add_argument("--folder", type=Path, default=Path("runs/fuzz-wire"), help="for inputs (default: runs/fuzz-wire)")
    return out.parse_args()


def main() -> None:
    """Fuzz for --minutes, or until an input fails."""
    write_seeds(chosen.folder / "inputs")
    settings = {
        "max_total_time": int(60 * chosen.minutes),
        "max_len": LONGEST,
        "timeout": 10,
        "rss_limit_mb": 4096,
        "print_final_stats": 1,
        "artifact_prefix": f"{chosen.folder}/",
    }
    arguments = [f"-{name}={value}" for name, value in settings.items()]
    atheris.Setup([sys.argv[0], *arguments, str(chosen.folder / "inputs")], one_input, custom_mutator=changed)
    atheris.Fuzz()


if __name__ == "__main__":
    chosen = options()
    try:
        import atheris
    except ImportError:
        sys.exit("atheris is not installed: run .venv/bin/python -m pip install atheris (Linux, Python 3.11 .. 3.13)")
    import_instrumented(chosen.folder / "numba")
    import torch

    from tests.support import forged_payloads, payload_checks

    torch.set_num_threads(1)
    main()
