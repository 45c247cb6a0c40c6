"""Instantiate the object that a node of the configuration describes."""

from __future__ import annotations

from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig

from outerloop.types import UserError, missing_package


def make(node: DictConfig, **runtime: Any) -> Any:
    """Instantiate the object that a configuration node describes. `runtime`: additional arguments of its constructor.

    Raises UserError if this fails. If the constructor raised a UserError, its message is kept. If a package is missing,
    the message names the extra to install. For any other error, the message states the root cause.
    """
    try:
        return instantiate(node, **runtime, _convert_="all")
    except InstantiationException as error:
        causes = cause_chain(error)
        for cause in causes:
            mistake = missing_package(cause.name) if isinstance(cause, ModuleNotFoundError) else cause
            if isinstance(mistake, UserError):
                raise mistake from None
        reason = next(iter(str(causes[-1]).strip().splitlines()), type(causes[-1]).__name__)
        raise UserError(f"{node.get('_target_', 'configuration')}: {reason}") from error


def cause_chain(error: BaseException) -> list[BaseException]:
    """Return an error followed by its chain of causes, with the root cause last."""
    return [error] if error.__cause__ is None else [error, *cause_chain(error.__cause__)]
