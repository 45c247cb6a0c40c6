"""Build one part from its node of the configuration."""

from __future__ import annotations

from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig

from outerloop.types import UserError, missing_package


def make(node: DictConfig, **runtime: Any) -> Any:
    """Instantiate one node.

    A UserError from the constructor is raised unchanged. If a package is missing, raises a UserError that names the
    extra to install. For any other error, raises a UserError that states the root cause.
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
    """Return an error and its chain of causes, root cause last."""
    return [error] if error.__cause__ is None else [error, *cause_chain(error.__cause__)]
