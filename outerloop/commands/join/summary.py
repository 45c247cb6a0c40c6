"""Describe a run in about ten lines, before a machine joins it."""

from __future__ import annotations

from collections.abc import Iterator

from omegaconf import DictConfig

from outerloop.commands.join.offer import Offer
from outerloop.commands.status import headline
from outerloop.config.build import initial_peers
from outerloop.config.profile import plan_method
from outerloop.inner.trainer import pick_device
from outerloop.sinks.console import format_bytes
from outerloop.types import printable

WIDTH = 12
SIZE_LIMIT = "exchange.max_blob_bytes"


def summary(offer: Offer, config: DictConfig, params: int) -> list[str]:
    """Return the lines that describe the run and this machine's part in it. `params`: parameters of the model."""
    return [printable(f"{name:<{WIDTH}} {text}") for name, text in rows(offer, config, params)]


def rows(offer: Offer, config: DictConfig, params: int) -> Iterator[tuple[str, str]]:
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
    yield "payload", f"{format_bytes(method.payload_bytes)}, {bits:.3g} bits per parameter and round"
    yield "data", f"{options.get('data', 'stdlib')}{', ' + str(config.data.path) if 'path' in config.data else ''}"
    yield "other values", changed(offer)
    yield "signed by", f"…{offer.peer_id[-8:]}, the peer at {initial_peers(config)[0].partition('/p2p/')[0]}"
    device = pick_device(inner.device, 0)
    yield (
        "this machine",
        f"{config.workers} worker{'s' * (config.workers > 1)} on {device}, results in {config.run_dir},"
        f" listens on {config.exchange.host}",
    )


def training(config: DictConfig) -> str:
    """Return how long the run trains."""
    every = f"of {config.schedule.sync_every} inner steps" if "sync_every" in config.schedule else ""
    return f"{config.rounds:,} rounds {every}"


def changed(offer: Offer) -> str:
    """Return the values that differ from those of outerloop's own files, except the size limit, which follows."""
    options = offer.manifest.options
    shown = [f"{key}={value}" for key, value in options.items() if "." in key and key != SIZE_LIMIT]
    return " ".join(shown) or "none"
