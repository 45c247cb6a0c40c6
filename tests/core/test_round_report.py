"""A report of a round, printed."""

from dataclasses import replace

from outerloop.types import Round
from tests.support.toy_workers import report


def test_a_report_is_printed_as_one_short_line():
    landed = replace(report(2, ""), peers=("a", "b"), payload_bytes=6_120, wait_s=1.24, blob=b"x" * 6_120)
    assert str(landed) == "round 3: 2 peers, payload 6,120 bytes, waited 1.2 s"
    fragment = replace(landed, round=Round(2, 1), peers=("a",), payload_bytes=21_400_000, refused=("b: too large",))
    assert str(fragment) == "round 3 fragment 1: 1 peer, payload 21,400,000 bytes, waited 1.2 s, 1 refused"


def test_the_report_of_a_failed_round_is_printed_with_its_reason():
    assert str(report(3, "no quorum")) == "round 4 failed: no quorum"
