"""Save real compressor inputs, read one inner step before a launch, for bench_compress.py.

    .venv/bin/python scripts/save_buffers.py FILE.safetensors [--round 31] [option=value ...]

The script trains the workers as threads. It writes x = (slow − fast) + β · residual of the first worker in the given
round, by parameter name. Options are those of `outerloop train`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import bench_loop
import torch
from safetensors.torch import save_file

from outerloop.config import load
from outerloop.feedback.ef import ErrorFeedback
from outerloop.inner.trainer import Trainer


def buffers(trainer: Trainer) -> dict[str, torch.Tensor]:
    """Return the compressor's input by parameter name: (slow − fast) plus the decayed residual."""
    outer = trainer.outer
    assert isinstance(outer.feedback, ErrorFeedback)
    fast = outer.island.read(list(outer.slow), "weights")
    return {name: outer.feedback.add(name, x - fast[name]).detach() for name, x in outer.slow.items()}


def main() -> None:
    """Train, then write FILE."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--round", type=int, default=31)
    parser.add_argument("options", nargs="*")
    args = parser.parse_intermixed_args()
    settings = load.load(["exchange=inprocess", "rounds=60", *args.options])
    team, compute = bench_loop.trainers(settings)
    bench_loop.train(team, args.round * settings.schedule.sync_every - 1)
    save_file(compute(buffers, team[0]), args.file)
    print(f"{args.file}: {sum(x.numel() for x in team[0].outer.slow.values())} values of round {args.round}")


if __name__ == "__main__":
    main()
