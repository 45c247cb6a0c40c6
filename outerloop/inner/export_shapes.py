"""Read names and shapes of an exported model without reading its weights.

The names are in the order in which messages carry the parameters. For a folder with a config.json, transformers builds
the model on the meta device, which allocates no memory. Any other safetensors file was written either by `export`, with
the order in its metadata, or by another tool. In the latter case the order in the file is used.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Size

from outerloop.inner.export import ORDER
from outerloop.types import UserError


def shapes_of(path: Path) -> dict[str, Size]:
    """Return the shapes for a folder such as a run's hf/, or for a .safetensors file. Raises UserError."""
    folder = path if path.is_dir() else path.parent
    file = folder / "model.safetensors" if path.is_dir() else path
    try:
        return from_config(folder) if (folder / "config.json").exists() and path.exists() else from_file(file)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(f"--model {path} is not an exported model, {reason}: pass --model RUN_DIR/hf") from error


def from_config(folder: Path) -> dict[str, Size]:
    """Return the shapes of the model that the config of a Hugging Face folder describes."""
    from transformers import AutoConfig, AutoModelForCausalLM  # here: the import takes 3 s

    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    return {name: p.shape for name, p in model.named_parameters()}


def from_file(file: Path) -> dict[str, Size]:
    """Return the shapes in a .safetensors file."""
    with safe_open(file, framework="pt") as tensors:
        names = json.loads((tensors.metadata() or {}).get(ORDER, "null")) or tensors.keys()
        return {name: Size(tensors.get_slice(name).get_shape()) for name in names}
