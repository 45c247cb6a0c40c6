"""Run those checks of `outerloop doctor` whose failure would end the training on this machine."""

from __future__ import annotations

import resource
from collections.abc import Iterable, Iterator
from contextlib import closing

from omegaconf import DictConfig

from outerloop.commands.doctor import machine, network
from outerloop.commands.doctor.finding import Finding
from outerloop.config.profile import memory_per_param
from outerloop.inner.trainer import pick_device
from outerloop.launcher.available_memory import available_bytes
from outerloop.types import UserError

NETWORK = ("daemon", "port")
"""Names of the network findings that can prevent joining. Whether other machines can dial this one is not tested."""
MORE_MEMORY = "close other programs, raise the memory limit of this container, or join from a machine with more memory"


def refuse_failed(findings: Iterable[Finding]) -> None:
    """Run checks. Raises UserError, with the result and what to do, if one fails."""
    for finding in findings:
        if finding.passed is False:
            raise UserError(f"{finding.name}: {finding.result}: {finding.advice}")


def of_machine() -> Iterator[Finding]:
    """Yield the findings on versions, open files, and the memory that every run needs."""
    yield from machine.versions()
    yield machine.open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    yield machine.memory(available_bytes(), advice=MORE_MEMORY)


def of_network(config: DictConfig) -> Iterator[Finding]:
    """Yield the findings on the daemon and the port."""
    host, port, announce = (config.exchange[name] for name in ("host", "port", "announce"))
    with closing(network.findings(host=host, port=port, announce=list(announce), peers=())) as found:
        yield from (finding for finding in found if finding.name in NETWORK)


def memory_of_model(config: DictConfig, params: int) -> Finding:
    """Check that there is enough free memory for the workers' libraries and, without a GPU, their weights and state.

    `params`: number of parameters of the model.
    """
    needed = machine.MIN_MEMORY_BYTES
    if pick_device(config.inner.device, 0).type == "cpu":
        needed += config.workers * params * sum(memory_per_param(config, peers=config.exchange.peers).values())
    return machine.memory(available_bytes(), needed=needed, advice=MORE_MEMORY)
