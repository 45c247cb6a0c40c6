"""Check the number of ranks per island, and reject options that islands with several ranks do not support."""

from __future__ import annotations

from hydra.utils import get_object
from omegaconf import DictConfig

from outerloop.config.instantiate import make
from outerloop.protocols import AdaptiveSchedule, CostAware
from outerloop.types import UserError

SHARDED_KINDS = ("sharded", "gathered")


def ranks_per_island(settings: DictConfig, processes: int) -> int:
    """Return the number of ranks per island. Raises UserError if `processes` does not match the island options."""
    ranks = processes if settings.island.ranks is None else settings.island.ranks
    if not isinstance(ranks, int) or ranks < 1 or processes % ranks:
        raise UserError(
            f"island.ranks={ranks} must divide the {processes} processes that torchrun starts:"
            f" set island.ranks={processes}"
        )
    if settings.island.kind == "single" and ranks > 1:
        raise UserError(f"island.ranks={ranks} does not apply to island=single, which has one rank: set island=sharded")
    if settings.workers_as != "ranks" and processes != ranks:
        raise UserError(
            f"{processes} processes form {processes // ranks} islands, but in a swarm, torchrun starts one island: set"
            f" island.ranks={processes}, or exchange=distributed"
        )
    return ranks


def refuse_island(settings: DictConfig, ranks: int) -> None:
    """Raise UserError if a setting is not supported by islands of the configured kind with `ranks` ranks."""
    if settings.inner.get("micro_batch") == "auto":
        raise UserError(
            "inner.micro_batch=auto is not supported by processes that torchrun starts, whose micro-batches must be"
            " equal: set a number, or inner.micro_batch=null"
        )
    kind = settings.island.kind
    if kind == "single":
        return
    if settings.workers_as == "threads":
        raise UserError(
            f"island={kind} needs separate processes, but exchange=inprocess runs threads: set exchange=distributed"
        )
    for is_set, why, instead in unsupported_settings(settings, ranks):
        if is_set:
            raise UserError(f"{why}: set {instead}")


def single_process_options(settings: DictConfig) -> dict[str, tuple[bool, str]]:
    """Return the options that require one process per peer: option -> (whether it is set, what to set instead).

    Most of these options make each process decide from its own measurements. The ranks of one peer could then decide
    differently, and wait for each other in different rounds.
    """
    schedule, compress = make(settings.schedule), make(settings.compress)
    return {
        f"buffers={settings.buffers}": (settings.buffers != "local", "buffers=local"),
        "schedule=every_seconds": (schedule.step_s > 0, "schedule=every_h"),
        "schedule=adaptive": (isinstance(schedule, AdaptiveSchedule), "schedule=every_h"),
        "schedule.early=true": (schedule.early, "schedule.early=false"),
        "compress=auto": (isinstance(compress, CostAware), "compress=topk"),
    }


def refuse_single_process_options(settings: DictConfig, processes: int) -> None:
    """Raise UserError if several processes hold the model and an option requires a single process."""
    for option, (is_set, instead) in single_process_options(settings).items():
        if is_set and processes > 1:
            raise UserError(
                f"{option} requires a model held by one process, but {processes} processes hold this one: set {instead}"
            )


def unsupported_settings(settings: DictConfig, ranks: int) -> list[tuple[bool, str, str]]:
    """Return (whether it is set, why it is rejected, what to set instead) for each setting that islands cannot use."""
    inner, kind = settings.inner, settings.island.kind
    return [
        (
            kind in SHARDED_KINDS and needs_whole_matrices(inner.optimizer),
            f"Muon needs whole matrices, but island={kind} shards them",
            "island=replicated",
        ),
        (
            kind == "gathered" and settings.samples.every > 0,
            "samples.every is not supported by island=gathered",
            "samples.every=0",
        ),
        (inner.compile, "inner.compile=true requires island=single", "inner.compile=false"),
        *(
            (is_set, f"{option} requires island=single", instead)
            for option, (is_set, instead) in single_process_options(settings).items()
        ),
        (
            inner.batch % ranks > 0,
            f"inner.batch={inner.batch} cannot be split evenly over the {ranks} ranks of an island",
            f"inner.batch={ranks * -(-inner.batch // ranks)}",
        ),
        (
            kind == "sharded" and settings.eager,
            "with eager=true a round is always in flight, and the checkpoints of island=sharded do not contain it",
            "eager=false schedule.delay=0, or island=gathered",
        ),
        (
            kind == "sharded" and settings.keep_payload_rounds > 0,
            "keep_payload_rounds does not support island=sharded, where each rank sends a payload of its shards",
            "keep_payload_rounds=0",
        ),
    ]


def needs_whole_matrices(optimizer: DictConfig | None) -> bool:
    """Return whether an inner optimizer needs whole matrices, and therefore cannot update shards."""
    return optimizer is not None and getattr(get_object(optimizer._target_), "needs_whole_matrices", False)
