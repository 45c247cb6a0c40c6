"""Train once with liars among the workers, which are threads of one process (scripts/bench_attacks.py)."""

from __future__ import annotations

import copy
import threading
import time
from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from payload_attacks import ATTACKS, DELAY, Payloads, Scene

from outerloop.config import build, instantiate, load
from outerloop.exchange.inprocess import Hub, InProcess, name_of
from outerloop.types import Round, Stopped

FROM = 3
RECIPES = {
    "diloco": ("recipe=diloco", "schedule.sync_every=15", "method.optimizer.momentum=0.6"),
    "sparseloco": ("recipe=sparseloco",),
    "outerloop": ("recipe=outerloop",),
}
AVERAGING = ("median", "trimmed_mean", "centered_clip", "geometric_median", "trust")
"""Rules that average over all peers, not over the senders of each value."""
SMALL = ("model=nano", "model.layers=1", "inner.seq_len=32", "inner.batch=4", "threads=1", "eval.sequences=256")


@dataclass(frozen=True)
class Case:
    """One run of the benchmark. Its fields are the first fields of its record."""

    recipe: str
    rule: str
    attack: str
    liars: int
    workers: int
    rounds: int
    seed: int

    @property
    def file(self) -> str:
        """Name of the file with the record of this run."""
        return f"{self.recipe}-{self.rule}-{self.attack}-{self.liars}-{self.seed}.json"

    def options(self, more: Sequence[str]) -> list[str]:
        """Return the options of `outerloop train` for this run; `more` come last."""
        rule = [] if self.rule == "plain" else [f"aggregate={self.rule}"]
        if self.recipe != "diloco" and self.rule in AVERAGING:
            rule.append(f"method.optimizer.lr={self.workers}")
        size = [f"workers={self.workers}", f"rounds={self.rounds}", f"seed={self.seed}"]
        return [*RECIPES[self.recipe], *rule, *SMALL, *size, "exchange=inprocess", "clip=none", *more]


class HostileHub(Hub):
    """The hub of a run, which replaces the messages of liars as soon as all messages of a round have arrived.

    The attribute `outer` is the outer loop of any worker, whose codec reads and writes payloads.
    """

    def __init__(self, case: Case) -> None:
        super().__init__(case.workers)
        self.case, self.outer, self.recent = case, None, deque(maxlen=DELAY + 1)  # type: ignore[var-annotated]
        self.honest = range(case.workers - case.liars)
        self.liars = range(case.workers - case.liars, case.workers)

    def put(self, round: Hashable, rank: int, blob: bytes) -> None:
        """Store one worker's message; the last one completes the round, and the liars' messages are replaced."""
        with self.changed:
            super().put(round, rank, blob)
            if isinstance(round, Round) and len(self.messages[round]) == self.size and self.liars:
                self.replace_messages(round)

    @torch.no_grad()
    def replace_messages(self, round: Round) -> None:
        """Replace the messages of all liars, from round FROM on."""
        outer: Any = self.outer
        self.recent.append(Payloads(outer.codec, outer.slow, round, dict(self.messages[round])))
        if round.number >= FROM and self.case.attack != "labels":
            self.messages[round] |= {liar: self.lie(liar) for liar in self.liars}

    def lie(self, liar: int) -> bytes:
        """Return the message that a liar sends, or no bytes if it sends none."""
        now, attack = self.recent[-1], self.case.attack
        if attack == "absent":
            return b""
        if attack == "samples":
            return now.packed(liar, now.values(liar), samples=2**63)
        return now.packed(liar, ATTACKS[attack](Scene(liar, self.honest, self.recent, self.case.seed)))

    def fetch(self, round: Hashable, rank: int, ranks: Sequence[int]) -> dict[int, bytes]:
        """Return the messages of a round, without those of absent liars."""
        return {partner: blob for partner, blob in super().fetch(round, rank, ranks).items() if blob}


class ScreenedInProcess(InProcess):
    """The in-process exchange, with rounds that may complete without a peer, so that payloads can be refused."""

    info = replace(InProcess.info, waits_for_all=False)


class PermutedText:
    """A stream of batches whose tokens are permuted, with the same permutation in every batch."""

    def __init__(self, stream: Any, vocabulary: int) -> None:
        self.stream = stream
        self.token = torch.randperm(vocabulary, generator=torch.Generator().manual_seed(0))

    def next(self) -> torch.Tensor:
        """Return the next windows, (batch, seq_len + 1) int64."""
        return self.token[self.stream.next()]


class Run:
    """One run: a thread per worker, and the results of the workers."""

    def __init__(self, case: Case, more: Sequence[str]) -> None:
        self.case, self.options = case, case.options(more)
        self.settings = load.load(self.options)
        self.corpus, self.hub = instantiate.make(self.settings.data), HostileHub(case)
        self.hashes: set[int] = set()
        self.refused: list[str] = []
        self.errors: list[str] = []
        self.landed = 0
        self.nats: float | None = None

    def record(self) -> dict[str, Any]:
        """Train, and return the record of the run."""
        began_s = time.perf_counter()
        threads = [threading.Thread(target=self.live, args=(rank,)) for rank in range(self.case.workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        liars = tuple(f"{name_of(rank)}: " for rank in self.hub.liars)
        return asdict(self.case) | {
            "val_nats": self.nats,
            "rounds_landed": self.landed,
            "slow_hashes": len(self.hashes),
            "refused": len(self.refused),
            "refused_others": sum(not why.startswith(liars) for why in self.refused),
            "first_reason": next(iter(self.refused), ""),
            "error": next(iter(self.errors), "")[:200],
            "wall_s": round(time.perf_counter() - began_s, 1),
            "options": self.options,
        }

    def live(self, rank: int) -> None:
        """Train one worker. If it fails, end the run."""
        exchange = ScreenedInProcess(hub=self.hub, rank=rank)
        try:
            exchange.join()
            trainer: Any = build.make_trainer(self.settings, self.corpus, exchange, rank)
            self.train(rank, trainer)
            self.hashes.add(trainer.outer.slow_hash)
            if rank == 0:
                self.nats = self.loss_of(trainer)
        except (Exception, Stopped) as error:
            self.errors.append(f"{type(error).__name__}: {error}")
            self.hub.stop("a worker failed")
        finally:
            exchange.close()

    def train(self, rank: int, trainer: Any) -> None:
        """Take all inner steps of one worker."""
        outer = self.hub.outer = trainer.outer
        forgets = rank in self.hub.liars and self.case.attack != "labels"
        if rank in self.hub.liars and not forgets:
            trainer.stream = PermutedText(trainer.stream, self.corpus.vocab_size)
        unused = copy.deepcopy(outer.feedback.state_dict())
        while outer.inner_step < outer.schedule.inner_steps(self.case.rounds):
            reports = trainer.step().rounds
            if rank == 0:
                self.landed += sum(not report.failed for report in reports)
                self.refused += [why for report in reports for why in report.refused]
            if reports and forgets and outer.inner_step >= FROM * outer.schedule.sync_every:
                outer.feedback.load_state_dict(copy.deepcopy(unused))
                outer.island.write(outer.slow, merge_local=0.0)

    def loss_of(self, trainer: Any) -> float:
        """Return the validation loss of the slow weights in nats per token."""
        windows = self.corpus.validation(seq_len=self.settings.inner.seq_len, sequences=self.settings.eval.sequences)
        return float(trainer.evaluate(windows, trainer.outer.slow, batch=32) / windows[:, 1:].numel())
