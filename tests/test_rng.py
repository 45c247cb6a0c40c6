"""The random state that travels with a worker, and with its checkpoint."""

import pytest
import torch

from outerloop import rng


def test_the_state_is_that_of_all_devices(monkeypatch):
    """Two accelerators, as generators of the CPU: what both draw next is what they drew after the state was taken."""
    devices = [torch.Generator().manual_seed(seed) for seed in (1, 2)]
    for name in ("is_available", "is_initialized"):
        monkeypatch.setattr(torch.cuda, name, lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(devices))
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: [device.get_state() for device in devices])
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: devices[device].set_state(state.clone()))

    def drawn():
        return [torch.rand(3), *(torch.rand(3, generator=device) for device in devices)]

    state = rng.get_state()
    first, second = drawn(), drawn()
    rng.set_state(state)
    assert all(torch.equal(a, b) for a, b in zip(drawn(), first, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    devices.pop()
    rng.set_state(state)  # a machine with fewer of them
    assert torch.equal(torch.rand(3, generator=None), first[0]) and torch.equal(drawn()[1], first[1])


@pytest.mark.parametrize("has_mps", [False, True])
def test_the_state_of_a_mac_is_restored_on_any_machine(monkeypatch, has_mps):
    restored = []
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: has_mps)
    monkeypatch.setattr(torch.mps, "set_rng_state", restored.append)
    state = {"cpu": torch.get_rng_state(), "mps": torch.zeros(44, dtype=torch.uint8)}
    first = torch.rand(3)
    rng.set_state(state)
    assert torch.equal(torch.rand(3), first) and len(restored) == has_mps
