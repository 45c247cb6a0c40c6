"""What all tests share: no network, and one seed."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("WANDB_MODE", "offline")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as the command line: see outerloop/launcher/passive_threads.py

import pytest
import torch


@pytest.fixture(autouse=True)
def same_start():
    """Every test draws from the same seed and computes with one thread."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
