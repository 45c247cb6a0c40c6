"""Work on several cores: whole tensors for each thread, or a share of one; the number of threads changes nothing."""

import threading

import pytest
import torch

from outerloop.kernels.threads import GRAIN, parallel_map, parallel_rows
from tests.support import toy_pipelines
from tests.support.tensors import same_tensors
from tests.support.toy_pipelines import FUSED

WAIT_S = 20.0


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def shares(values):
    """In how many shares the calling thread has a loop done."""
    found = []
    parallel_rows(lambda first, stop: found.append((first, stop)), 64, values=values)
    return len(found)


@pytest.mark.parametrize("count", [1, 2, 7])
def test_results_are_in_the_order_of_the_items(count):
    torch.set_num_threads(count)
    values = [GRAIN * (i % 5) for i in range(40)]
    assert parallel_map(lambda i: (i, i * i), range(40), values) == [(i, i * i) for i in range(40)]
    assert parallel_map(lambda i: i, [], []) == []


def test_two_threads_work_at_the_same_time_and_do_not_share_their_loops():
    torch.set_num_threads(2)
    both = threading.Barrier(2, timeout=WAIT_S)  # breaks unless two are in it at once

    def work(i):
        both.wait()
        return shares(8 * GRAIN)

    assert parallel_map(work, range(4), [8 * GRAIN] * 4) == [1, 1, 1, 1]
    assert shares(8 * GRAIN) == 2  # and afterwards they are shared again


def test_a_large_item_is_done_by_all_threads():
    torch.set_num_threads(2)
    values = [GRAIN, 8 * GRAIN, GRAIN]
    assert parallel_map(lambda i: shares(values[i]), range(3), values) == [1, 2, 1]


def test_little_work_stays_in_the_thread_that_has_it():
    torch.set_num_threads(2)
    assert set(parallel_map(lambda i: threading.get_ident(), range(9), [1] * 9)) == {threading.get_ident()}


@pytest.mark.parametrize("count", [1, 2, 7])
def test_the_first_item_that_fails_is_told_of(count):
    torch.set_num_threads(count)

    def work(i):
        if i in (3, 30):
            raise ValueError(f"item {i}")
        return i

    for _ in range(20):
        with pytest.raises(ValueError, match=r"item 3$"):
            parallel_map(work, range(40), [GRAIN + i for i in range(40)])  # the thirtieth is begun before the third
    assert shares(8 * GRAIN) == min(count, 8)


def test_threads_take_gradients_if_their_caller_does():
    torch.set_num_threads(2)
    for grad in (True, False):
        both = threading.Barrier(2, timeout=WAIT_S)
        with torch.set_grad_enabled(grad):
            asked = parallel_map(lambda i, both=both: (both.wait(), torch.is_grad_enabled())[1], range(4), [GRAIN] * 4)
            assert asked == [grad] * 4


@pytest.mark.parametrize("recipe", FUSED)
def test_rounds_are_the_same_with_any_number_of_threads(recipe, monkeypatch):
    monkeypatch.setattr("outerloop.kernels.threads.GRAIN", 8)  # so that a toy model is work for several
    trained = []
    for count in (1, 2, 7):
        torch.set_num_threads(count)
        trained.append(toy_pipelines.trained(recipe, torch.float32, fused=True))
    for other in trained[1:]:
        assert list(trained[0]) == list(other)
        assert same_tensors(trained[0], other)
