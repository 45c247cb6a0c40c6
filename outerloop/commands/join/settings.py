"""Complete the settings of a run with those of this machine, and compare their fingerprint with the run's."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

import outerloop
from outerloop.commands.join.run_folder import default_folder
from outerloop.config import load
from outerloop.config.manifest.allowed_options import checked_overrides
from outerloop.config.manifest.content import RunManifest
from outerloop.config.option_mapping import to_overrides
from outerloop.config.options.resumed_settings import is_in
from outerloop.config.shared_settings import CORPUS, fingerprint, shared_settings
from outerloop.swarm.validation import quote
from outerloop.types import UserError

DATA, SCORES = "data", "scores"
OF_CORPUS = ("data.folder", "data.tokenizer")
"""Options of data=shared that each machine may set."""
PRECISION = "inner.precision"


def typed_values(typed: Sequence[str]) -> dict[str, Any]:
    """Return the options that the user typed, as key -> value. Raises UserError if one is not of the form key=value."""
    return {override.key_or_group: override.value() for override in load.parse_overrides(typed)}


def uses_open_internet(typed: Mapping[str, Any]) -> bool:
    """Return whether the typed options (key -> value) contain exchange.open_internet=true."""
    return typed.get("exchange.open_internet") is True


def chosen_overrides(
    manifest: RunManifest,
    typed: Sequence[str],
    *,
    addresses: Sequence[str],
    peers: Collection[str],
    host: str,
    port: int,
    run_dir: Path | None = None,
) -> list[str]:
    """Return the overrides with which this machine trains: the run's, this machine's defaults, and the user's.

    Args:
        manifest: the settings of the run.
        typed: options that the user typed. They replace those with the same key.
        addresses: peers of the run that this machine contacts when it starts.
        peers: ids of peers of the run.
        host: IP address to listen on.
        port: TCP port to listen on; 0: any free port.
        run_dir: run directory of this machine; None: `default_folder`.

    If the user chose other data (data=...), the run's options for data and scores are left out. Unless the user sets
    inner.micro_batch and inner.precision, this machine measures its micro-batch size, and computes in bfloat16 only on
    a GPU that supports it.

    Raises UserError if the manifest contains an option that it may not contain, or if the user must set an option of
    this machine.
    """
    keys = list(typed_values(typed))
    shared = {**manifest.options, "exchange.run": manifest.run}
    if CORPUS in shared and (other := [key for key in keys if is_in(key, (DATA,)) and key not in OF_CORPUS]):
        raise UserError(f"all machines of this run train on the corpus that its peers share: leave {other[0]}= out")
    if DATA in keys:  # on text other than the senders', scores would accuse honest peers
        shared = {key: value for key, value in shared.items() if key.split(".")[0] not in (DATA, SCORES)}
    elif missing := [key for key in manifest.needs if key not in keys]:
        raise UserError(
            f"the run needs {missing[0]}, a path that each machine sets itself: add {missing[0]}=... after the address"
        )
    refuse_own_text(shared, keys)
    checked = checked_overrides(shared)  # before the id of the run becomes part of a path
    own = {
        "workers": 1,
        "run_dir": str(run_dir or default_folder(str(manifest.run), peers)),
        "exchange.initial_peers": list(addresses),
        "exchange.host": host,
        "exchange.port": port,
        "inner.micro_batch": "auto",
    }
    if manifest.options.get(PRECISION) == "bfloat16":
        own[PRECISION] = "auto"
    return [*checked, *to_overrides({k: v for k, v in own.items() if k not in keys}), *typed]


def refuse_own_text(shared: Mapping[str, Any], typed: Collection[str]) -> None:
    """Raise UserError if this machine would train on files in its current folder that the user did not name.

    The library `datasets` reads them if data.path is the name of a file format, such as "text", and no files are given.
    Any name without an account may be one, because its formats differ between versions.

    Args:
        shared: option -> value, from the run.
        typed: the options that the user typed.
    """
    path = shared.get("data.path")
    if path is None or "/" in str(path):
        return
    for key in ("data.data_files", *(["data.val_files"] if shared.get("data.val_split") is not None else [])):
        if key not in typed:
            raise UserError(
                f"the run's dataset {quote(path)} has no account in its name, so it may be a file format, with which"
                f" files of this machine would be read: add {key}=[FILE,...] after the address, or ask the operator of"
                " the run"
            )


def load_settings(manifest: RunManifest, overrides: Sequence[str]) -> DictConfig:
    """Load the settings of this machine and return them.

    Raises UserError if an option is invalid, or if the settings that all machines share differ from the run's.
    """
    try:
        config = load.load(overrides)
    except UserError as error:
        if manifest.version == outerloop.__version__:
            raise
        raise UserError(f"{error}; {advice(manifest)}") from error
    if fingerprint(config) != manifest.fingerprint:
        raise UserError(describe_difference(manifest, config))
    return config


def mark_newcomer(config: DictConfig) -> list[str]:
    """Set that this machine, which has no checkpoint, must not start the run alone. Return the override.

    Otherwise it would start the run from the beginning if the last peer left after it had sent the settings.
    """
    config.exchange.newcomer = True
    return ["exchange.newcomer=true"]


def describe_difference(manifest: RunManifest, config: DictConfig) -> str:
    """Return why the settings that this machine derives from the manifest differ from the run's, and what to do."""
    hardware = shared_settings(config).get("hardware")
    if manifest.version == outerloop.__version__ and hardware:
        return (
            f"the outer method of this run needs equal hardware on all machines, and this machine has {hardware}: join"
            " from a machine like those of the run, with the same commit of outerloop"
        )
    return f"this machine derives other settings than the peers of this run, because {advice(manifest)}"


def advice(manifest: RunManifest) -> str:
    """Return a text that states the versions of the run and of this machine, and what to install."""
    own = outerloop.__version__
    if manifest.version == own:
        return (
            f"it has another commit of outerloop {own}: ask the operator of the run for its commit, and install that on"
            " this machine"
        )
    return (
        f"the run has outerloop {manifest.version} and this machine {own}: install outerloop {manifest.version} on this"
        " machine"
    )
