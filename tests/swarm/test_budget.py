"""Token buckets: nobody gets more than a burst and its rate, and strangers spend nothing of members'."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outerloop.swarm.budget import MAX_REMOTES, Budget, Rate

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
    assert [own.take("m", 4) for _ in range(3)] == [True, True, False], "2 of 10 are left"
    assert own.take("m", 2) and not own.take("m", 0.5)
    clock.now_s = 3.0
    assert not own.take("m", 6.5) and own.take("m", 6), "3 s at 2 a second, and a refusal costs nothing"
    clock.now_s = 1000.0
    assert not own.take("m", 10.5) and own.take("m", 10), "never more than a burst"


def test_strangers_share_one_bucket_and_members_have_no_part_in_it() -> None:
    own = budget(Clock())
    assert own.take("s1", 10) and not own.take("s2", 6) and own.take("s2", 5) and not own.take("s3", 1)
    assert own.take("m1", 10) and own.take("m2", 10)


def test_however_many_remotes_ask_what_is_remembered_is_bounded() -> None:
    own = budget(Clock())
    for number in range(3 * MAX_REMOTES):
        own.take(f"s{number}", 1)
    assert len(own._of) == MAX_REMOTES


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["m1", "m2", "s1", "s2", "s3"]), st.floats(0, 12), st.floats(0, 2)), max_size=60)
)
def test_whoever_asks_for_whatever_gets_at_most_the_burst_and_the_rate(asked: list[tuple[str, float, float]]) -> None:
    clock = Clock()
    own, spent = budget(clock), dict.fromkeys(["m1", "m2", "s1", "s2", "s3"], 0.0)
    for remote, amount, pause_s in asked:
        clock.now_s += pause_s
        spent[remote] += amount if own.take(remote, amount) else 0.0
    most = EACH.burst + EACH.per_s * clock.now_s
    assert max(spent.values()) <= most + 1e-6
    strangers = sum(amount for remote, amount in spent.items() if remote.startswith("s"))
    assert strangers <= STRANGERS.burst + STRANGERS.per_s * clock.now_s + 1e-6


@pytest.mark.parametrize("remote", ["m", "s"])
def test_what_is_larger_than_a_burst_is_never_granted(remote: str) -> None:
    clock = Clock()
    own = budget(clock)
    for clock.now_s in (0.0, 100.0, 1e6):
        assert not own.take(remote, EACH.burst + 1)
