"""Strikes: who fails often is excluded for long, who fails once misses a round or two."""

from outerloop.swarm.strikes import LOSS, MAX_ROUNDS, UNUSABLE, Strikes


def test_each_strike_doubles_the_exclusion_up_to_a_bound() -> None:
    strikes = Strikes()
    for k in range(1, 10):
        strikes.add("a", LOSS, number=100)
        assert strikes.end("a") == 100 + min(2**k, MAX_ROUNDS)
    assert strikes.excludes("a", number=163) and not strikes.excludes("a", number=164)
    assert not strikes.excludes("b", number=0) and strikes.end("b") == 0


def test_a_good_payload_removes_one_strike_and_ends_no_exclusion() -> None:
    strikes = Strikes()
    strikes.remove_one("a")
    strikes.add("a", UNUSABLE, number=0)
    strikes.remove_one("a")
    assert strikes.end("a") == 4
    strikes.add("a", LOSS, number=1)
    assert strikes.end("a") == 5, "two strikes again"


def test_a_new_strike_never_shortens_an_exclusion() -> None:
    strikes = Strikes()
    strikes.add("a", UNUSABLE, number=10)
    strikes.add("a", LOSS, number=0)
    assert strikes.end("a") == 14, "three strikes in round 0 would end in round 8"
    for _ in range(3):
        strikes.remove_one("a")
    strikes.add("a", LOSS, number=11)
    assert strikes.end("a") == 14, "one strike in round 11 would end in round 13"
