"""Export the global model to a folder that other tools can read.

The folder contains weights (safetensors), config and tokenizer. It appears atomically: everything is written to a
hidden sibling folder, which is then renamed (replaced_folder.py).

`exported_shapes` reads names and shapes without the weights, in the order that parameters have in payloads. If there is
a config.json, transformers builds the model on the meta device, which allocates no memory. Otherwise the order is read
from the metadata of the safetensors file, where `export_hf` stores it. For files from other tools, which lack this
entry, the order in the file is used.
"""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Size, Tensor, nn

from outerloop.replica.island import trainable_parameters
from outerloop.replica.sharding import plain_name
from outerloop.state.replaced_folder import partial_path, replace_folder
from outerloop.types import Tensors, UserError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

ORDER = "parameters"
"""Metadata key of model.safetensors that stores the order of the parameters in payloads.

The file sorts parameters by name, so this order would be lost otherwise.
"""


def export_hf(model: nn.Module, slow: Tensors, tokenizer: PreTrainedTokenizerBase | None, folder: Path) -> None:
    """Write the slow weights of `model` to `folder`. The weights of the model itself do not change.

    A transformers model loads with AutoModelForCausalLM.from_pretrained(folder), the tokenizer with AutoTokenizer.
    For any other module the folder contains `model.safetensors` (parameters and persistent buffers by name) and the
    tokenizer. Raises UserError if the folder exists and is neither empty nor an exported model.

    Args:
        model: the trained model; provides the architecture, the buffers and the frozen parameters.
        slow: the weights to write; the keys are the names in `trainable_parameters(model)`.
        tokenizer: the tokenizer to write next to the weights, or None.
        folder: the folder to create. If it contains an earlier export, this is replaced.
    """
    folder = Path(folder)
    if folder.exists() and not is_replaceable(folder):
        raise UserError(f"{folder} exists and does not contain an exported model; choose another folder for the export")
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = partial_path(folder)
    try:
        write(model, weights(model, slow), tokenizer, partial)
        replace_folder(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def weights(model: nn.Module, slow: Tensors) -> dict[str, Tensor]:
    """Return the tensors to export by name, on the CPU: slow weights, frozen parameters and persistent buffers."""
    names = {plain_name(name): p for name, p in model.named_parameters()}
    assert slow.keys() <= names.keys(), f"slow weights missing from the model: {slow.keys() - names.keys()}"
    tied = {plain_name(name) for name, _ in model.named_parameters(remove_duplicate=False)}
    saved = {plain_name(name): tensor for name, tensor in model.state_dict().items()}
    buffers = {name: tensor for name, tensor in saved.items() if name not in tied}
    exported = {name: tensor.detach().cpu().contiguous() for name, tensor in {**buffers, **names, **slow}.items()}
    seen: set[int] = set()
    for name in buffers:  # safetensors refuses tensors that share memory, such as one mask in all layers
        memory = exported[name].untyped_storage().data_ptr()
        exported[name] = exported[name].clone() if memory in seen else exported[name]
        seen.add(memory)
    return exported


def write(model: nn.Module, state: dict[str, Tensor], tokenizer: PreTrainedTokenizerBase | None, folder: Path) -> None:
    """Write weights, config and tokenizer to a new folder."""
    from transformers import PreTrainedModel
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    folder.mkdir()
    if isinstance(model, PreTrainedModel):
        dtype = max((x.dtype for x in state.values() if x.is_floating_point()), key=lambda dtype: dtype.itemsize)
        model.save_pretrained(folder, state_dict=state)  # removes the tensors from `state`
        write_config(model, dtype, tokenizer, folder)
    else:
        order = json.dumps(list(trainable_parameters(model)))
        save_file(state, folder / "model.safetensors", metadata={ORDER: order})
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)


def write_config(
    model: PreTrainedModel, dtype: torch.dtype, tokenizer: PreTrainedTokenizerBase | None, folder: Path
) -> None:
    """Write the model's config with the dtype of the exported weights, and its generation config.

    Both get the tokenizer's special token ids, so that generation stops at the end of a text.
    """
    config = copy.deepcopy(model.config)
    config.dtype = dtype
    add_special_ids(config, tokenizer)
    config.save_pretrained(folder)
    if model.can_generate():
        generation = copy.deepcopy(model.generation_config)
        add_special_ids(generation, tokenizer)
        # not save_pretrained, which refuses a changed config with a contradiction, such as top_p without sampling
        generation.to_json_file(str(folder / "generation_config.json"), keys_to_pop=["compile_config"])


def add_special_ids(config: Any, tokenizer: PreTrainedTokenizerBase | None) -> None:
    """Set each special token id of the tokenizer in a config, unless the config has it, alone or in a list."""
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        own, given = getattr(config, name, None), getattr(tokenizer, name, None)
        if given is not None and given not in (own if isinstance(own, list) else [own]):
            setattr(config, name, given)


def is_replaceable(folder: Path) -> bool:
    """Return whether the folder is empty or an earlier export, so replacing it deletes none of the user's files."""
    return folder.is_dir() and (not any(folder.iterdir()) or any(folder.glob("model*.safetensors")))


def exported_shapes(path: Path) -> dict[str, Size]:
    """Return the shape of each parameter of an exported model: a folder such as RUN_DIR/hf, or a .safetensors file.

    Raises UserError if the shapes cannot be read.
    """
    folder = path if path.is_dir() else path.parent
    file = folder / "model.safetensors" if path.is_dir() else path
    try:
        return (
            shapes_from_config(folder)
            if (folder / "config.json").exists() and path.exists()
            else shapes_from_file(file)
        )
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(f"--model {path} is not an exported model ({reason}): pass --model RUN_DIR/hf") from error


def shapes_from_config(folder: Path) -> dict[str, Size]:
    """Return a map from parameter name to shape for the model that the config in a Hugging Face folder describes."""
    from transformers import AutoConfig, AutoModelForCausalLM  # imported late, because the import takes 3 s

    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    return {name: p.shape for name, p in model.named_parameters()}


def shapes_from_file(file: Path) -> dict[str, Size]:
    """Return a mapping from parameter name to shape for a .safetensors file."""
    with safe_open(file, framework="pt") as tensors:
        names = json.loads((tensors.metadata() or {}).get(ORDER, "null")) or tensors.keys()
        return {name: Size(tensors.get_slice(name).get_shape()) for name in names}
