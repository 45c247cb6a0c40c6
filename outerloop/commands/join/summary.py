"""Describe a run in about ten lines, before a machine joins it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from omegaconf import DictConfig

from outerloop.commands.join.offer import Offer
from outerloop.commands.join.run_folder import note_on
from outerloop.commands.status import headline
from outerloop.config.build import initial_peers
from outerloop.config.profile import plan_method
from outerloop.inner.trainer import pick_device, pick_precision
from outerloop.sinks.console import format_bytes
from outerloop.types import printable

WIDTH = 12
SHOWN_ELSEWHERE = (
    *("recipe", "exchange", "model", "rounds", "schedule.sync_every", "exchange.run", "exchange.peers"),
    "exchange.max_blob_bytes",
)
"""Options that the line "other values" omits. Other lines show them, except for the size limit of payloads, which
follows from the model."""


def summary(offer: Offer, config: DictConfig, params: int, *, data: str) -> list[str]:
    """Return the lines that describe the run and this machine's part in it.

    params: number of parameters of the model. data: name of this machine's data.
    """
    return [printable(f"{name:<{WIDTH}} {text}") for name, text in rows(offer, config, params, data)]


def rows(offer: Offer, config: DictConfig, params: int, data: str) -> Iterator[tuple[str, str]]:
    """Yield (name, text) for each line."""
    options, inner = offer.manifest.options, config.inner
    method = plan_method(config, params=params, peers=config.exchange.peers)
    yield (
        "run",
        f"{headline(str(offer.manifest.run), offer.seen).removeprefix('run ')}; outerloop {offer.manifest.version}",
    )
    yield "recipe", f"{config.recipe}, exchange={options.get('exchange', 'swarm_gather')}"
    yield "model", f"{options.get('model', 'the default model')}, {params:,} parameters"
    yield "training", training(config)
    yield "batch", f"{inner.batch * inner.accumulate} sequences of {inner.seq_len} tokens, learning rate {inner.lr:g}"
    bits = 8 * method.payload_bytes * method.fragments / params
    yield "payload", f"about {format_bytes(method.payload_bytes)}, {bits:.2g} bits per parameter and round"
    yield "data", data
    yield "other values", changed(offer)
    yield "signed by", author(offer, initial_peers(config)[0])
    device = pick_device(inner.device, 0)
    yield (
        "this machine",
        f"{config.workers} worker{'s' * (config.workers > 1)} on {device}, inner steps in"
        f" {pick_precision(inner.precision, device)}, {resumes(config.run_dir)},"
        f" listens on {config.exchange.host}",
    )
    if note := note_on(Path(config.run_dir), str(offer.manifest.run)):
        yield "note", note


def author(offer: Offer, address: str) -> str:
    """Return a text that states which peer signed the manifest, and whether the peer at `address` forwarded it."""
    where, _, sender = address.rpartition("/p2p/")
    forwarded = f"forwarded by …{sender[-8:]}, " if sender != offer.peer_id else ""
    return f"…{offer.peer_id[-8:]}, {forwarded}the peer at {where}"


def training(config: DictConfig) -> str:
    """Return the length of the run as text: the number of rounds and, if it is fixed, H."""
    every = f"of {config.schedule.sync_every} inner steps" if "sync_every" in config.schedule else ""
    return f"{config.rounds:,} rounds {every}"


def changed(offer: Offer) -> str:
    """Return the options of the manifest that no other line shows, as "key=value ...", or "none"."""
    shown = [f"{key}={value}" for key, value in offer.manifest.options.items() if key not in SHOWN_ELSEWHERE]
    return " ".join(shown) or "none"


def resumes(run_dir: str) -> str:
    """Return a text that states whether this machine continues a run in the run directory, or begins one there."""
    return f"{'continues the run' if (Path(run_dir) / 'config.yaml').exists() else 'results'} in {run_dir}"
