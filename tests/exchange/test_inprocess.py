"""The exchange between threads, outside of rounds."""

from outerloop.types import Contribution, Round
from tests.support import toy


def test_an_all_gather_returns_its_number_with_every_message():
    def work(exchange):
        first = exchange.all_gather(f"first of {exchange.peer}".encode(), 1, 10.0)
        return first, exchange.all_gather(b"", 2, 10.0), exchange.bytes_sent

    for first, second, sent in toy.run_workers(3, work):
        names = ["000", "001", "002"]
        assert first == [Contribution(name, Round(1), f"first of {name}".encode()) for name in names]
        assert second == [Contribution(name, Round(2), b"") for name in names] and not sent
