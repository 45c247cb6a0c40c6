"""Train once with liars among the workers, which are threads of one process (scripts/bench_attacks.py)."""

from __future__ import annotations

import copy
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from data_attacks import FALSE_DATA, success_rate
from payload_attacks import ATTACKS, DELAY, Payloads, Scene

from outerloop.config import build, instantiate, load
from outerloop.core.round import RoundReport
from outerloop.exchange.inprocess import Hub, InProcess, name_of
from outerloop.exchange.inprocess_gossip import InProcessGossip
from outerloop.scores.build import make_scorer
from outerloop.scores.scorer import PayloadScorer
from outerloop.types import Round, Stopped

FROM = 3
RECIPES = {
    "diloco": ("recipe=diloco", "schedule.sync_every=15", "method.optimizer.momentum=0.6"),
    "sparseloco": ("recipe=sparseloco",),
    "outerloop": ("recipe=outerloop",),
    "noloco": ("recipe=noloco", "schedule.sync_every=15"),
}
GOSSIP = ("noloco",)
"""Recipes in which a worker combines only its own message and that of one random partner per round."""
SCREENED = "+clip"
"""Suffix of a rule's name: payloads are first screened by their norm, as in a swarm (clip=auto)."""
SCORED = "+scores"
"""Suffix of a rule's name: honest workers score payloads, and vote for leaving out those of harmful peers."""
SCORES = ("scores.payloads=2", "scores.windows=16", "exclude_accused=true")
"""Options of such runs, which are those of `outerloop host`."""
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
        """Return the name of the file with the record of this run."""
        return f"{self.recipe}-{self.rule}-{self.attack}-{self.liars}-{self.seed}.json"

    def options(self, more: Sequence[str]) -> list[str]:
        """Return the options of `outerloop train` for this run, followed by `more`."""
        name, *suffixes = self.rule.split("+")
        rule = [] if name == "plain" else [f"aggregate={name}"]
        if self.recipe != "diloco" and name in AVERAGING:
            rule.append(f"method.optimizer.lr={self.workers}")
        size = [f"workers={self.workers}", f"rounds={self.rounds}", f"seed={self.seed}"]
        exchange = f"exchange={'inprocess_gossip' if self.recipe in GOSSIP else 'inprocess'}"
        screen = [f"clip={'auto' if SCREENED[1:] in suffixes else 'none'}"]
        screen += SCORES if SCORED[1:] in suffixes else []
        return [*RECIPES[self.recipe], *rule, *SMALL, *size, exchange, *screen, *more]


class HostileHub(Hub):
    """The hub of a run, which replaces the messages of liars as soon as all messages of a round have arrived.

    `outers`: rank -> outer loop of this worker. The codec of any of them can decode and encode payloads.
    """

    def __init__(self, case: Case) -> None:
        super().__init__(case.workers)
        self.case, self.recent = case, deque(maxlen=DELAY + 1)  # type: ignore[var-annotated]
        self.outers: dict[int, Any] = {}
        self.honest = range(case.workers - case.liars)
        self.liars = range(case.workers - case.liars, case.workers)

    def put(self, round: Hashable, rank: int, blob: bytes) -> None:
        """Store one worker's message. If it is the last one of a round, replace the liars' messages."""
        with self.changed:
            super().put(round, rank, blob)
            if isinstance(round, Round) and len(self.messages[round]) == self.size and self.liars:
                self.replace_messages(round)

    def wait_for(self, round: Hashable, ranks: Sequence[int]) -> None:
        """Wait for the messages of all workers, not only of `ranks`.

        Liars' messages are replaced only when the last message arrives. The caller must hold `changed`.
        """
        super().wait_for(round, range(self.size))

    @torch.no_grad()
    def replace_messages(self, round: Round) -> None:
        """Replace the liars' messages, from round FROM on, unless the attack is one on their training data."""
        outer = self.outers[self.liars[0]]
        base = outer.slow if outer.method.sends == "weights" else None
        self.recent.append(Payloads(outer.codec, outer.slow, round, dict(self.messages[round]), base=base))
        if round.number >= FROM and self.case.attack not in FALSE_DATA:
            self.messages[round] |= {liar: self.lie(liar) for liar in self.liars}

    def lie(self, liar: int) -> bytes:
        """Return the message that a liar sends, or b"" if it sends none."""
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
    """The in-process exchange, in which a round may complete without a peer, so that payloads can be refused."""

    info = replace(InProcess.info, waits_for_all=False)


class ScreenedGossip(InProcessGossip):
    """The in-process gossip in pairs, in which a round may complete without a peer, so that payloads can be refused."""

    info = replace(InProcessGossip.info, waits_for_all=False)


class Run:
    """One run: a thread per worker, and the results of the workers."""

    def __init__(self, case: Case, more: Sequence[str]) -> None:
        self.case, self.options = case, case.options(more)
        self.settings = load.load(self.options)
        self.corpus, self.hub = instantiate.make(self.settings.data), HostileHub(case)
        self.hashes: set[int] = set()
        self.refused: list[str] = []
        self.excluded: dict[str, int] = {}
        self.accused: list[str] = []
        self.errors: list[str] = []
        self.landed = 0
        self.nats: float | None = None
        self.backdoor: float | None = None

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
            "backdoor": self.backdoor,
            "rounds_landed": self.landed,
            "slow_hashes": len(self.hashes),
            "refused": len(self.refused),
            "refused_others": sum(not why.startswith(liars) for why in self.refused),
            "first_reason": next(iter(self.refused), ""),
            "excluded": self.excluded,
            "liars_accused": sum(f"{peer}: " in liars for peer in self.accused),
            "honest_accused": sum(f"{peer}: " not in liars for peer in self.accused),
            "error": next(iter(self.errors), "")[:200],
            "wall_s": round(time.perf_counter() - began_s, 1),
            "options": self.options,
        }

    def live(self, rank: int) -> None:
        """Train one worker. If it fails, end the run."""
        exchange = self.exchange(rank)
        try:
            exchange.join()
            trainer: Any = build.make_trainer(self.settings, self.corpus, exchange, rank)
            self.train(rank, trainer)
            self.hashes.add(trainer.outer.slow_hash)
            if rank == 0:
                self.evaluate(trainer)
        except (Exception, Stopped) as error:
            self.errors.append(f"{type(error).__name__}: {error}")
            self.hub.stop("a worker failed")
        finally:
            exchange.close()

    def exchange(self, rank: int) -> InProcess:
        """Return the exchange of one worker."""
        if self.case.recipe in GOSSIP:
            return ScreenedGossip(hub=self.hub, rank=rank, group=2, seed=self.case.seed)
        return ScreenedInProcess(hub=self.hub, rank=rank)

    def train(self, rank: int, trainer: Any) -> None:
        """Take all inner steps of one worker."""
        outer = self.hub.outers[rank] = trainer.outer
        forgets = rank in self.hub.liars and self.case.attack not in FALSE_DATA
        if rank in self.hub.liars and not forgets:
            trainer.stream = FALSE_DATA[self.case.attack](trainer.stream, self.corpus.vocab_size)
        elif rank in self.hub.honest and self.settings.scores.payloads and self.settings.exclude_accused:
            outer.observe_landings(self.scorer(rank, trainer, self.record_accusation))
        unused = copy.deepcopy(outer.feedback.state_dict())
        while outer.inner_step < outer.schedule.inner_steps(self.case.rounds):
            reports = trainer.step().rounds
            if rank == 0:
                self.landed += sum(not report.failed for report in reports)
                self.record_refused(reports)
            if reports and forgets and outer.inner_step >= FROM * outer.schedule.sync_every:
                outer.feedback.load_state_dict(copy.deepcopy(unused))
                outer.island.write(outer.slow, merge_local=0.0)

    def record_accusation(self, event: str, **fields: Any) -> None:
        """Store the peer that a worker accuses, if the event is an accusation."""
        if event == "accusation":
            self.accused.append(fields["peer"])

    def record_refused(self, reports: Sequence[RoundReport]) -> None:
        """Store which payloads did not count, and from which round on a peer was left out because of accusations."""
        for report in reports:
            self.refused += report.refused
            for peer, _, why in (text.partition(": ") for text in report.refused):
                if "accuse" in why:
                    self.excluded.setdefault(peer, report.round.number)

    def scorer(self, rank: int, trainer: Any, emit: Callable[..., None]) -> PayloadScorer:
        """Return the scorer of a worker. The seed and the rank determine its random choices."""
        return make_scorer(
            self.corpus,
            trainer,
            payloads=self.settings.scores.payloads,
            windows=self.settings.scores.windows,
            seq_len=self.settings.inner.seq_len,
            seed=self.settings.seed,
            batch=64,
            assigned=self.settings.assignment == "by_round",
            emit=emit,
            random=random.Random(f"{self.case.seed} {rank}"),
        )

    def evaluate(self, trainer: Any) -> None:
        """Measure the loss of the slow weights in nats per token, and the success rate of the back door."""
        outer, size = trainer.outer, {"seq_len": self.settings.inner.seq_len, "sequences": self.settings.eval.sequences}
        windows = self.corpus.validation(**size)
        self.nats = float(trainer.evaluate(windows, outer.slow, batch=32) / windows[:, 1:].numel())
        with outer.island.temporary_weights(outer.slow):
            self.backdoor = success_rate(trainer.model, windows)
