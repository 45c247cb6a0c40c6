"""Token buckets: nobody gets more than a burst and its rate, and strangers spend nothing of members'."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outerloop.swarm.access.rate_limits import EVERYBODY, MAX_REMOTES, Budget, Rate

EACH, STRANGERS = Rate(burst=10, per_s=2), Rate(burst=15, per_s=3)


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def budget(clock: Clock) -> Budget:
    return Budget(EACH, STRANGERS, is_member=lambda peer: peer.startswith("m"), now_s=clock)


def test_a_burst_then_the_rate_by_hand() -> None:
    clock = Clock()
    own = budget(clock)
    assert [own.spend("m", 4) for _ in range(3)] == ["", "", "m"], "2 of 10 are left"
    assert not own.spend("m", 2) and own.spend("m", 0.5)
    clock.now_s = 3.0
    assert own.spend("m", 6.5) and not own.spend("m", 6), "3 s at 2 a second, and a refusal costs nothing"
    clock.now_s = 1000.0
    assert own.spend("m", 10.5) and not own.spend("m", 10), "never more than a burst"


def test_strangers_share_one_bucket_and_members_have_no_part_in_it() -> None:
    own = budget(Clock())
    asked = [own.spend(remote, amount) for remote, amount in (("s1", 10), ("s2", 6), ("s2", 5), ("s3", 1))]
    assert asked == ["", EVERYBODY, "", EVERYBODY] and not own.spend("m1", 10) and not own.spend("m2", 10)


def test_it_tells_whose_bucket_lacks_and_its_rate() -> None:
    own = budget(Clock())
    assert own.lacking("s1", 10) == "" == own.spend("s1", 10), "looking spends nothing"
    assert own.lacking("s1", 1) == "s1" and own.lacking("s2", 6) == EVERYBODY and own.lacking("s2", 5) == ""
    assert own.per_s("s1") == EACH.per_s and own.per_s(EVERYBODY) == STRANGERS.per_s


def test_a_charge_is_refilled_before_anything_is_granted() -> None:
    clock = Clock()
    own = budget(clock)
    own.charge("s1", 25)
    assert own.lacking("s1", 0) == "s1" and own.lacking("s2", 0) == EVERYBODY and not own.lacking("m", 10)
    clock.now_s = 4.0
    assert own.lacking("s1", 0) == "s1" and own.spend("s2", 2) == "", "-15 + 8, and -10 + 12"
    clock.now_s = 8.0
    assert own.spend("s1", 1) == "", "-15 + 16"


def test_however_many_remotes_ask_what_is_remembered_is_bounded() -> None:
    """The bucket that was used longest ago is forgotten first; its owner would have a full one again."""
    own = budget(Clock())
    own.charge("s0", 25)
    for number in range(1, MAX_REMOTES):
        own.charge(f"s{number}", 25)
    assert own.lacking("s0") == "s0"
    for number in range(MAX_REMOTES):
        own.charge(f"t{number}", 25)
    assert own.lacking("s0") != "s0" and own.lacking("t1") == "t1"


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["m1", "m2", "s1", "s2", "s3"]), st.floats(0, 12), st.floats(0, 2)), max_size=60)
)
def test_whoever_asks_for_whatever_gets_at_most_the_burst_and_the_rate(asked: list[tuple[str, float, float]]) -> None:
    clock = Clock()
    own, spent = budget(clock), dict.fromkeys(["m1", "m2", "s1", "s2", "s3"], 0.0)
    for remote, amount, pause_s in asked:
        clock.now_s += pause_s
        spent[remote] += 0.0 if own.spend(remote, amount) else amount
    most = EACH.burst + EACH.per_s * clock.now_s
    assert max(spent.values()) <= most + 1e-6
    strangers = sum(amount for remote, amount in spent.items() if remote.startswith("s"))
    assert strangers <= STRANGERS.burst + STRANGERS.per_s * clock.now_s + 1e-6


@pytest.mark.parametrize("remote", ["m", "s"])
def test_an_amount_larger_than_the_burst_is_never_granted(remote: str) -> None:
    clock = Clock()
    own = budget(clock)
    for clock.now_s in (0.0, 100.0, 1e6):
        assert own.spend(remote, EACH.burst + 1) == remote
