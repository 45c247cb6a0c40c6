"""The class of a machine changes with everything that decides the bits of its inner steps."""

from __future__ import annotations

import pytest
import torch

from outerloop.inner.audit.machine import class_of
from outerloop.kernels import arithmetic_platform
from tests.support.small_trainer import AUDITED, AUDITED_STEPS, trainer_of


def test_machines_with_other_settings_or_data_are_of_another_class() -> None:
    trainer = trainer_of(*AUDITED)
    tokens = trainer.stream.stream.tokens  # type: ignore[attr-defined]
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
        return class_of(trainer, trainer.stream.stream.tokens, seq_len=16, batch=2, sync_every=AUDITED_STEPS)  # type: ignore[attr-defined]

    names = ["cuda:0", "cuda:1", "cpu"]
    assert len({class_on(name) for name in names}) == 3
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "A")
    assert class_on("cuda:0") == class_on("cuda:1")


XEON = "vendor_id\t: GenuineIntel\nmodel\t: 85\nstepping\t: 4\ncache size\t: 33792 KB\nflags\t: fma avx512f\n"
ARM = "CPU implementer\t: 0x41\nCPU variant\t: 0x3\nCPU part\t: 0xd0c\nCPU revision\t: 1\nFeatures\t: fp asimd\n"


@pytest.mark.parametrize(
    ("cpu_info", "changes"),
    [
        (XEON, [("stepping\t: 4", "stepping\t: 7"), ("33792", "36608"), ("avx512f", "avx512f avx512_bf16")]),
        (ARM, [("0x3", "0x4"), ("revision\t: 1", "revision\t: 2"), ("asimd", "asimd sve")]),
    ],
)
def test_processors_of_one_model_are_of_other_classes_if_they_may_round_differently(
    monkeypatch, tmp_path, cpu_info, changes
) -> None:
    monkeypatch.setattr(arithmetic_platform, "CPU_INFO", tmp_path / "cpuinfo")
    trainer = trainer_of(*AUDITED)
    classes, processors = set(), set()
    for old, new in [("", ""), *changes]:
        (tmp_path / "cpuinfo").write_text(cpu_info.replace(old, new, 1) + f"cpu MHz\t: 2{len(classes)}00\n")
        classes.add(class_of(trainer, trainer.stream.stream.tokens, seq_len=16, batch=2, sync_every=AUDITED_STEPS))  # type: ignore[attr-defined]
        processors.add(arithmetic_platform.described())
    assert len(classes) == 4 and len(processors) == 1


def test_the_order_of_instruction_sets_and_later_processors_do_not_matter(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(arithmetic_platform, "CPU_INFO", tmp_path / "cpuinfo")
    variants = set()
    for text in (XEON, XEON.replace("fma avx512f", "avx512f fma"), f"{XEON}\nstepping\t: 9\n"):
        (tmp_path / "cpuinfo").write_text(text)
        variants.add(arithmetic_platform.processor_variant())
    assert len(variants) == 1
    (tmp_path / "cpuinfo").unlink()
    assert arithmetic_platform.processor_variant() == ""
