"""Instantiate the object that a node of the configuration describes."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import get_object, instantiate
from omegaconf import DictConfig

from outerloop.config.user_code import names_in
from outerloop.types import UserError, missing_package


def make(node: DictConfig, **runtime: Any) -> Any:
    """Instantiate the object that a configuration node describes. `runtime`: additional arguments of its constructor.

    Raises UserError if this fails. If the constructor raised a UserError, its message is kept. If a package is missing,
    the message names the extra to install; if a module lacks the class, the classes that it has; if the constructor
    lacks an argument, the arguments that it has. For any other error, the message states the root cause.
    """
    try:
        return instantiate(node, **runtime, _convert_="all")
    except InstantiationException as error:
        causes = cause_chain(error)
        for cause in causes:
            mistake = missing_package(cause.name) if isinstance(cause, ModuleNotFoundError) else cause
            if isinstance(mistake, UserError):
                raise mistake from None
        advice = missing_class(causes[-1], node) or unknown_argument(causes[-1], node)
        reason = next(iter(str(causes[-1]).strip().splitlines()), type(causes[-1]).__name__)
        raise UserError(advice or f"{node.get('_target_', 'configuration')}: {reason}") from error


def cause_chain(error: BaseException) -> list[BaseException]:
    """Return an error followed by its chain of causes, with the root cause last."""
    return [error] if error.__cause__ is None else [error, *cause_chain(error.__cause__)]


def missing_class(cause: BaseException, node: DictConfig) -> str:
    """Return a message if a module lacks the class that the node names, or "" otherwise."""
    name = cause.name if isinstance(cause, ModuleNotFoundError) and cause.name in names_in(node) else ""
    parent, _, wanted = (name or "").rpartition(".")
    module = sys.modules.get(parent)
    if module is None:
        return ""
    classes = [key for key, value in vars(module).items() if isinstance(value, type) and value.__module__ == parent]
    return f"{file_name(module)} has no class {wanted}; it has {', '.join(classes) or 'no class'}"


def file_name(module: ModuleType) -> str:
    """Return the name of a module's file, or the dotted name of a package."""
    return module.__name__ if hasattr(module, "__path__") else Path(module.__file__ or module.__name__).name


def unknown_argument(cause: BaseException, node: DictConfig) -> str:
    """Return a message if the user's own class lacks an argument that the node sets, or "" otherwise."""
    target = str(node.get("_target_"))
    name = target.rpartition(".")[2]
    if target.startswith("outerloop.") or not str(cause).startswith(f"{name}.__init__() got an unexpected keyword"):
        return ""
    key, file = node._get_full_key("") or "GROUP", name.lower()
    allowed = ", ".join(inspect.signature(get_object(target)).parameters) or "none"
    return (
        f"{target}: {cause}; allowed: {allowed}. If only {key}._target_ was set, the arguments of the class that it"
        f" replaces remain: write conf/{key.replace('.', '/')}/{file}.yaml with _target_ and the arguments of {name},"
        f" and set {key}={file}"
    )
