"""What tests of Trainers share: garbage collections that leave out what was imported before them."""

import gc

import pytest


@pytest.fixture(scope="module", autouse=True)
def short_collections():
    """The Trainer collects garbage after each training, which takes a second beside all that other tests have left."""
    gc.collect()
    gc.freeze()
