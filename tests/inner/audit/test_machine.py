"""The class of a machine changes with everything that decides the bits of its inner steps."""

from __future__ import annotations

import pytest
import torch

from outerloop.inner.audit.machine import class_of
from tests.support.small_trainer import AUDITED, AUDITED_STEPS, trainer_of


def test_machines_with_other_settings_or_data_are_of_another_class() -> None:
    trainer = trainer_of(*AUDITED)
    tokens = trainer.stream.tokens  # type: ignore[attr-defined]
    settings = {"seq_len": 16, "batch": 2, "sync_every": AUDITED_STEPS}
    own = class_of(trainer, tokens, **settings)
    assert class_of(trainer, tokens.copy(), **settings) == own
    others = [class_of(trainer, tokens[:-1], **settings), class_of(trainer, tokens, **(settings | {"batch": 4}))]
    trainer.micro_batch = 1
    others.append(class_of(trainer, tokens, **settings))
    trainer.micro_batch = None
    torch.use_deterministic_algorithms(False)
    others.append(class_of(trainer, tokens, **settings))
    assert len({own, *others}) == 5


def test_the_class_of_a_machine_names_the_gpu_that_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "AB"[device.index if device else 0])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    trainer = trainer_of(*AUDITED, "inner.precision=float32")

    def class_on(device: str) -> bytes:
        trainer.device = torch.device(device)
        return class_of(trainer, trainer.stream.tokens, seq_len=16, batch=2, sync_every=AUDITED_STEPS)  # type: ignore[attr-defined]

    names = ["cuda:0", "cuda:1", "cpu"]
    assert len({class_on(name) for name in names}) == 3
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "A")
    assert class_on("cuda:0") == class_on("cuda:1")
