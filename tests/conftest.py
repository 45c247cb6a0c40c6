"""What all tests share: no network, one seed, Ctrl-C for programs that they start, and short garbage collections."""

import gc
import os
import signal

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("WANDB_MODE", "offline")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as the command line: see outerloop/launcher/passive_threads.py

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # the tests run in the background of a shell
    signal.signal(signal.SIGINT, signal.default_int_handler)  # otherwise all programs that they start ignore it

import pytest
import torch


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Collect the tests without garbage collections. Later ones ignore all objects that exist after the collection.

    To examine these 1.5 million objects takes a second each time, and some libraries collect garbage on every call.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True)
def same_start():
    """Every test draws from the same seed and computes with one thread."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
