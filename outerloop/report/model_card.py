"""Write the model card of an exported model: a README.md with its training, its loss, and how to load it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

import outerloop
from outerloop.report.runs import flatten
from outerloop.state.checkpoint import write_atomically

CARD = """\
---
library_name: {library}
pipeline_tag: text-generation
tags:
- outerloop
- {recipe}
---

# {title}

Trained with outerloop {version}: workers took inner steps independently and exchanged {bits} bits per parameter in
each of {rounds} rounds (recipe `{recipe}`).

| | |
|---|---|
| parameters | {params} |
| tokens (all workers on the exporting machine) | {tokens} |
| validation loss (nats per token) | {val_loss} |
| workers | {workers} |
| bytes sent per worker | {bytes_sent} |

## Load it

{usage}

## Settings

{settings}
"""
TRANSFORMERS = """\
```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("FOLDER")
tokenizer = AutoTokenizer.from_pretrained("FOLDER")
```"""
SAFETENSORS = """\
The weights are in `model.safetensors`, under the names of the model's own parameters:

```python
from safetensors.torch import load_file

model.load_state_dict(load_file("FOLDER/model.safetensors"), strict=False)
```"""
GROUPS = ("model", "data", "method", "compress", "feedback", "aggregate", "schedule", "inner")
"""Groups of settings shown in the card, in addition to `seed`."""


def write_model_card(folder: Path, summary: dict[str, Any], settings: dict[str, Any], *, title: str) -> None:
    """Write README.md to the folder of an exported model.

    Args:
        folder: folder written by `export_hf`.
        summary: the content of summary.json.
        settings: the configuration of the run, nested.
        title: title of the card.
    """
    is_transformers = (folder / "config.json").exists()
    shown = {key: value for key, value in flatten(settings).items() if key == "seed" or key.split(".")[0] in GROUPS}
    card = CARD.format(
        recipe=summary["recipe"],
        rounds=summary["rounds"],
        workers=summary["workers"],
        params=f"{summary['params']:,}",
        tokens=f"{summary['tokens']:,}",
        val_loss=f"{summary['val_loss']:.4f}",
        bytes_sent=f"{summary['bytes_sent_per_worker']:,.0f}",
        bits=f"{summary['bits_per_param_per_round']:.3g}",
        library="transformers" if is_transformers else "safetensors",
        title=title,
        version=outerloop.__version__,
        usage=TRANSFORMERS if is_transformers else SAFETENSORS,
        settings=f"```yaml\n{yaml.safe_dump(shown, sort_keys=False, allow_unicode=True, width=float('inf'))}```",
    )
    write_atomically(folder / "README.md", card.encode())
