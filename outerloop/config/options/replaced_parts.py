"""Drop a recipe's options for a part that the user has replaced, unless the new part takes these options."""

from __future__ import annotations

from collections.abc import Sequence

from omegaconf import DictConfig, OmegaConf, open_dict

from outerloop.config.added_options import takes
from outerloop.config.options.compose import SEARCH_PATH, compose_config, groups, parse_overrides
from outerloop.config.options.search_path import config_dir
from outerloop.types import UserError


def drop_unused(config: DictConfig, overrides: Sequence[str]) -> None:
    """Delete the recipe's options of replaced parts from `config`, in place, unless the new part takes them.

    For example, recipe=outerloop_v1 sets feedback.beta, which feedback=none does not take. Options in the new part's
    own yaml file are kept. Parts with the user's own code are left as they are, because their code is not imported to
    load a configuration. Raises UserError if an override sets an option that would be deleted.
    """
    parsed, choices = parse_overrides(overrides), groups(overrides)
    typed = [override.key_or_group for override in parsed if not (override.is_add() or override.is_force_add())]
    for text, override in zip(overrides, parsed, strict=True):
        group = override.key_or_group
        node = OmegaConf.select(config, group) if group in choices else None
        if not isinstance(node, DictConfig) or not isinstance(target := node.get("_target_"), str):
            continue
        if f"{group}._target_" in typed or not (config_dir() / group / f"{override.value()}.yaml").exists():
            continue
        unused = [str(name) for name in node if not takes(target, str(name))]
        if not unused:
            continue
        path = [text for text, o in zip(overrides, parsed, strict=True) if o.key_or_group == SEARCH_PATH]
        own = compose_config(["~recipe", text, *path])[group]
        for name in (name for name in unused if name not in own):
            key = f"{group}.{name}"
            if any(option == key or option.startswith(f"{key}.") for option in typed):
                raise UserError(f"{key} is not an option of {group}={override.value()}: leave it out")
            with open_dict(node):
                del node[name]
