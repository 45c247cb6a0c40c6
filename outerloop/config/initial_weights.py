"""Load initial weights from an earlier run or a Hugging Face model (option init_from)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import Module

from outerloop.state import checkpoint
from outerloop.types import Tensors, UserError


def load_initial_weights(model: Module, source: str | Path) -> None:
    """Load the weights in a folder into a model, in place. Raises UserError in the same cases as `read_weights`."""
    model.load_state_dict(read_weights(model, source), strict=False)


def read_weights(model: Module, source: str | Path) -> Tensors:
    """Read the weights for a model from a folder, and check that they fit. The model may be on the meta device.

    Args:
        source: folder of a run, whose subfolder hf/ is read, or a folder with safetensors files such as
            model.safetensors.

    Raises:
        UserError: if the folder does not exist or contains no weights, if a parameter of the model is missing there, if
            a parameter or buffer has a different shape there, if a parameter is not finite, if entries that share a
            tensor (only one is needed) have different values, or if the folder contains weights that the model does not
            have.
    """
    if not Path(source).exists():
        raise UserError(
            f"init_from={source}: this folder does not exist: set it to a local folder, not to a name on the Hub (save"
            " such a model first with save_pretrained)"
        )
    folder = next((path for path in (Path(source) / "hf", Path(source)) if path.is_dir()), Path(source))
    try:
        files = weight_files(folder)
        weights = {name: x for file in files for name, x in load_file(file).items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, SafetensorError) as error:
        raise UserError(f"init_from={source} cannot be read ({error}): set another folder") from error
    if not files and checkpoint.sealed(Path(source)):
        raise UserError(
            f"init_from={source} has checkpoints but no exported model (hf/): finish the run, or continue it with"
            " checkpoint.hf_every=1 for a round"
        )
    if not files:
        raise UserError(f"init_from={source} contains no safetensors files: set it to a finished run or a model folder")
    check_fit(model, weights, source)
    return weights


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files that transformers would load: those of the index, or model.safetensors.

    If there is neither, return all. Folders may also contain the same weights in another format.
    """
    index, whole = folder / "model.safetensors.index.json", folder / "model.safetensors"
    if index.exists():
        return sorted({folder / Path(name).name for name in json.loads(index.read_text())["weight_map"].values()})
    return [whole] if whole.exists() else sorted(folder.glob("*.safetensors"))


def check_fit(model: Module, weights: Tensors, source: str | Path) -> None:
    """Raise UserError if the weights in a folder are not those of a model. The cases are those of `read_weights`."""
    entries, params = model.state_dict(keep_vars=True), dict(model.named_parameters(remove_duplicate=False))
    found = {id(p) for name, p in params.items() if name in weights}
    for name, p in params.items():
        if id(p) not in found:
            raise UserError(
                f"init_from={source} has no parameter {name}: set the model options that match these weights"
            )
    check_shapes(entries, weights, source)
    check_finite({name: x for name, x in weights.items() if name in params}, source)
    check_shared(entries, weights, source)
    known = entries.keys() | dict(model.named_buffers(remove_duplicate=False)).keys()
    extra = sorted(name for name in weights.keys() - known if not ignored(model, name))
    if extra:
        raise UserError(
            f"init_from={source} contains {extra[0]}, which the model does not have: set the model options that match"
            " these weights"
        )


def check_shapes(entries: Mapping[str, Tensor], weights: Tensors, source: str | Path) -> None:
    """Raise UserError if a parameter or persistent buffer of the model has a different shape in the folder."""
    for name, x in entries.items():
        if name in weights and weights[name].shape != x.shape:
            there, here = list(weights[name].shape), list(x.shape)
            raise UserError(
                f"init_from={source}: {name} has shape {there} in this folder but {here} in the model: set the model"
                " options that match these weights"
            )


def check_finite(weights: Tensors, source: str | Path) -> None:
    """Raise UserError if a weight is NaN or infinite."""
    for name, x in weights.items():
        if not torch.isfinite(x.float()).all():  # isfinite does not take float8
            raise UserError(f"init_from={source}: {name} contains NaN or infinite values: set another folder")


def check_shared(entries: Mapping[str, Tensor], weights: Tensors, source: str | Path) -> None:
    """Raise UserError if entries that share one tensor of the model have different values in the folder."""
    first: dict[int, str] = {}
    for name in entries.keys() & weights.keys():
        other = first.setdefault(id(entries[name]), name)
        if other != name and not torch.equal(weights[name], weights[other]):
            raise UserError(
                f"init_from={source}: {min(name, other)} and {max(name, other)} have different values in this folder,"
                " but are one tensor in the model: set model options that separate them, such as"
                " model.tie_embeddings=false"
            )


def ignored(model: Module, name: str) -> bool:
    """Return whether a model loads without the entry `name` of a file, by the rules of transformers."""
    patterns = [
        r"rotary_emb\.inv_freq$",
        r"(^|\.)position_ids$",
        *(getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ()),
    ]
    return any(re.search(pattern, name) for pattern in patterns)
