"""Fleets and methods whose rounds can be worked out by hand."""

from outerloop.plan.forecast import forecast
from outerloop.plan.links import Links
from outerloop.plan.scenario import Fleet, Method

MB = 1e6
EVEN = Links(MB, MB)
"""1 MB/s both ways, no latency: a payload of 2 MB takes 2 s."""


def method(exchange="gather", *, size=2 * MB, sync_every=30, delay=0, fragments=1, name="m", state_bytes=0.0):
    return Method(name, exchange, sync_every, delay, fragments, size, 1e6, {}, state_bytes)


def fleet(peers, links=EVEN, *, step_s=1.0, **rest):
    return Fleet(peers, links, step_s, **rest)


def round_s(fleet, method):
    return forecast(fleet, method).round_s
