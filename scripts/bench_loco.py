"""Compare LoCo's DDP hook with plain DDP and torch's own hooks over rate-limited links: bytes, seconds, loss.

    sudo .venv/bin/python scripts/bench_loco.py [--ranks 4] [--mbit 100] [--steps 200] [--seeds 0] [--json FILE]
        [--methods plain,fp16,powersgd_1,powersgd_4,loco] [--hidden 256] [--layers 4] [--batch 2] [--seq-len 64]
        [--lr 2e-3]

Every rank is a single-threaded process in its own network namespace, and uses gloo. The rate of its link is capped
(wan.sh), and bytes are read from the kernel's counter for the link. Use --mbit 0, which sets no cap, if only losses
matter. The model is a Llama trained on the bytes of Python's standard library with AdamW, whose learning rate decays to
0. Steps, batches and initial weights are the same for all methods. PowerSGD begins after a tenth of the steps, as its
documentation advises. Bytes and seconds per step are means over the second half of the steps. The script needs root,
iproute2 and about as many cores as ranks.

    mb_per_step       megabytes that a rank sends per step, including TCP headers
    step_s            seconds per step, including forward and backward pass
    train, val        loss of the last batches, and of held-out text at the end, in nats per token
    ..._over_plain    the value relative to plain DDP with the same seed
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
from benchmark_records import write_records
from namespaces import network, ready_or_exit
from result_rows import Row, show
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import outerloop
from outerloop.inner.data.stdlib import stdlib
from outerloop.inner.models import llama, next_token_loss

SENT = Path("/sys/class/net/eth0/statistics/tx_bytes")


def plain(model: nn.Module, steps: int) -> DistributedDataParallel:
    """Wrap the model in DDP that averages gradients in float32 with a ring all-reduce."""
    return DistributedDataParallel(model)


def fp16(model: nn.Module, steps: int) -> DistributedDataParallel:
    """Wrap the model in DDP that averages gradients in float16."""
    ddp = DistributedDataParallel(model)
    ddp.register_comm_hook(None, fp16_compress_hook)
    return ddp


def power_sgd(model: nn.Module, steps: int, *, rank: int) -> DistributedDataParallel:
    """Wrap the model in DDP that averages gradients with PowerSGD of this matrix rank.

    It uses a single bucket, because several buckets would block each other with gloo.
    """
    state = PowerSGDState(None, matrix_approximation_rank=rank, start_powerSGD_iter=max(2, steps // 10))
    ddp = DistributedDataParallel(model, bucket_cap_mb=1000)
    ddp.register_comm_hook(state, powerSGD_hook)
    return ddp


def loco(model: nn.Module, steps: int) -> DistributedDataParallel:
    """Wrap the model in DDP that averages gradients with this package's LoCo hook."""
    ddp = DistributedDataParallel(model)
    ddp.register_comm_hook(outerloop.loco.State(), outerloop.loco.ddp_hook)
    return ddp


METHODS: dict[str, Callable[[nn.Module, int], DistributedDataParallel]] = {
    "plain": plain,
    "fp16": fp16,
    "powersgd_1": partial(power_sgd, rank=1),
    "powersgd_4": partial(power_sgd, rank=4),
    "loco": loco,
}


def live(args: argparse.Namespace) -> Row:
    """Run one rank, and return its results."""
    torch.set_num_threads(1)
    meet, patience = f"tcp://{args.meet}", timedelta(minutes=5)
    dist.init_process_group("gloo", init_method=meet, rank=args.rank, world_size=args.ranks, timeout=patience)
    torch.manual_seed(args.seed)
    corpus = stdlib(non_iid=False)
    ddp = METHODS[args.method](model_of(args, corpus.vocab_size), args.steps)
    stream = corpus.stream(rank=args.rank, size=args.ranks, batch=args.batch, seq_len=args.seq_len, seed=args.seed)
    row = trained(ddp, stream.next, args)
    held_out = corpus.validation(seq_len=args.seq_len, sequences=512)
    with torch.no_grad():
        losses = [next_token_loss(ddp.module, window) for window in held_out.split(64)]
    params = sum(weight.numel() for weight in ddp.parameters())
    dist.destroy_process_group()
    return row | {"val": torch.stack(losses).mean().item(), "params": params}


def model_of(args: argparse.Namespace, vocab_size: int) -> nn.Module:
    """Return a Llama model of the size given on the command line."""
    return llama(
        vocab_size=vocab_size,
        hidden_size=args.hidden,
        intermediate_size=args.hidden * 8 // 3,
        layers=args.layers,
        heads=args.hidden // 32,
        kv_heads=args.hidden // 32,
        max_seq_len=args.seq_len,
        tie_embeddings=True,
        rope_theta=10000.0,
        norm_eps=1e-5,
        attention="sdpa",
    )


def trained(ddp: nn.Module, batch: Callable[[], Tensor], args: argparse.Namespace) -> Row:
    """Train the model. Return seconds and megabytes per step over the second half of the steps, and the last loss."""
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=args.lr, betas=(0.9, 0.95))
    warm_up = max(1, args.steps // 20)
    pace = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: min((t + 1) / warm_up, 1 - t / args.steps))
    half = args.steps // 2
    for step in range(args.steps):
        if step == half:
            dist.barrier()
            began, sent = time.perf_counter(), int(SENT.read_text())
        optimizer.zero_grad()
        loss = next_token_loss(ddp, batch())
        loss.backward()
        optimizer.step()
        pace.step()
    dist.barrier()
    steps = args.steps - half
    return {
        "step_s": (time.perf_counter() - began) / steps,
        "mb_per_step": (int(SENT.read_text()) - sent) * 1e-6 / steps,
        "train": loss.item(),
    }


def measured(args: argparse.Namespace, method: str, seed: int) -> Row:
    """Train with one method, each rank in its own namespace. Return the combined results as one row."""
    cap = ("--rate", f"{args.mbit:g}mbit") if args.mbit else ()
    with network(args.ranks, *cap) as hosts, tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, f"{rank}.json") for rank in range(args.ranks)]
        words = [f"--{name.replace('_', '-')}={getattr(args, name)}" for name in SHARED]
        words += [f"--method={method}", f"--seed={seed}", f"--meet={hosts.address(0)}:29500"]
        together([hosts.inside(rank, command(rank, file, words)) for rank, file in enumerate(files)])
        reports = [json.loads(file.read_text()) for file in files]
    return {
        "method": method,
        "seed": seed,
        "mbit": args.mbit,
        **{name: getattr(args, name) for name in SHARED},
        "params": reports[0]["params"],
        "mb_per_step": sum(row["mb_per_step"] for row in reports) / args.ranks,
        "step_s": max(row["step_s"] for row in reports),
        "train": sum(row["train"] for row in reports) / args.ranks,
        "val": reports[0]["val"],
    }


def command(rank: int, file: Path, words: Sequence[str]) -> list[str]:
    """Return the command line of one rank."""
    settings = ["GLOO_SOCKET_IFNAME=eth0", "TORCH_CPP_LOG_LEVEL=ERROR"]
    return ["env", *settings, sys.executable, __file__, f"--rank={rank}", f"--json={file}", *words]


def together(commands: Sequence[Sequence[str]]) -> None:
    """Run the commands of all ranks until they end. If a rank fails, end all of them."""
    processes: list[subprocess.Popen] = []
    try:
        processes += (subprocess.Popen(words) for words in commands)
        if failed := [rank for rank, process in enumerate(processes) if process.wait()]:
            raise SystemExit(f"ranks {failed} failed")
    finally:
        for process in processes:
            process.kill()
            process.wait()


SHARED = ("ranks", "steps", "hidden", "layers", "batch", "seq_len", "lr")


def beside_plain(row: Row, rows: list[Row]) -> Row:
    """Return a row's values relative to plain DDP with the same seed, or an empty row if plain DDP is missing."""
    for other in rows:
        if (other["method"], other["seed"]) == ("plain", row["seed"]):
            return {
                "bytes_over_plain": row["mb_per_step"] / other["mb_per_step"],
                "steps_per_s_over_plain": other["step_s"] / row["step_s"],
                "val_over_plain": row["val"] / other["val"],
            }
    return {}


def main() -> None:
    """Measure every method and seed, and print each row as soon as it is measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--mbit", type=float, default=100.0)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seeds", type=lambda text: [int(word) for word in text.split(",")], default=[0])
    parser.add_argument("--methods", type=lambda text: text.split(","), default=list(METHODS))
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--seq-len", type=int, default=64)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--json", type=Path, metavar="FILE")
    for name in ("--rank", "--seed"):
        parser.add_argument(name, type=int, help=argparse.SUPPRESS)
    for name in ("--method", "--meet"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank is not None:
        args.json.write_text(json.dumps(live(args)))
        return
    ready_or_exit()
    rows: list[Row] = []
    for seed in args.seeds:
        for method in args.methods:
            row = measured(args, method, seed)
            rows.append(row | beside_plain(row, [*rows, row]))
            show(rows[-1], but=SHARED)
            if args.json:
                write_records(args.json, rows)


if __name__ == "__main__":
    main()
