"""Load initial weights from an earlier run or a Hugging Face model (option init_from)."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch.nn import Module

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
        UserError: if the folder contains no weights, or if a parameter of the model is missing there or has a different
            shape. Parameters that share a tensor need only one entry.
    """
    folder = next((path for path in (Path(source) / "hf", Path(source)) if path.is_dir()), Path(source))
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise UserError(f"init_from={source} contains no safetensors files: set it to a finished run or a model folder")
    try:
        weights = {name: x for file in files for name, x in load_file(file).items()}
    except (OSError, SafetensorError) as error:
        raise UserError(f"init_from={source} cannot be read ({error}): set another folder") from error
    params = dict(model.named_parameters(remove_duplicate=False))
    found = {id(p) for name, p in params.items() if name in weights}
    for name, p in params.items():
        if id(p) not in found:
            raise UserError(
                f"init_from={source} has no parameter {name}: set the model options that match these weights"
            )
        if name in weights and weights[name].shape != p.shape:
            there, here = list(weights[name].shape), list(p.shape)
            raise UserError(
                f"init_from={source}: {name} has shape {there} in this folder but {here} in the model: set the model"
                " options that match these weights"
            )
    return weights
