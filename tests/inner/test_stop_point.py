"""Workers that are interrupted stop after the same inner step, wherever each of them is."""

import threading

from outerloop.inner.stop_point import StopPoint


def train(point, done, at=None):
    """Take steps from `done` steps on until the stop point. At step `at` wait until another worker has begun it."""
    while point.begin_step(done):
        if at:
            at(done + 1)
        done += 1
    return done


def test_a_worker_inside_a_step_and_one_between_two_stop_after_the_same():
    """The first waits inside step 15, for a round that the second completes when it comes to the end of its step 15."""
    first, second = StopPoint(), StopPoint()
    round_complete, stopped = threading.Event(), {}

    def wait_inside(step):
        if step == 15:
            assert round_complete.wait(20)

    def complete(step):
        if step == 15:
            round_complete.set()

    threads = [threading.Thread(target=lambda: stopped.update(first=train(first, 14, wait_inside)))]
    threads[0].start()
    while first.begun < 15:
        pass
    begun = [first.request(), second.request()]
    threads.append(threading.Thread(target=lambda: stopped.update(second=train(second, 12, complete))))
    threads[1].start()
    assert begun == [15, 0]
    for point in (first, second):
        point.set_target(max(begun))
    for thread in threads:
        thread.join(20)
    assert stopped == {"first": 15, "second": 15}


def test_a_worker_that_waits_goes_on_if_the_stop_is_cancelled():
    point, done = StopPoint(), []
    assert point.begin_step(0)
    assert point.request() == 1
    thread = threading.Thread(target=lambda: done.append(point.begin_step(1)))
    thread.start()
    thread.join(0.05)
    assert thread.is_alive() and point.begun == 1
    point.cancel()
    thread.join(20)
    assert done == [True]
