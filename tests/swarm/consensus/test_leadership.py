"""The order in which peers lead: all in turn, those whose views failed last."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outerloop.swarm.consensus.commit import Commit, genesis, leader, minority, next_demoted, turns
from tests.support.swarm.consensus_world import RUN

FOUR = ("000-a", "001-b", "002-c", "003-d")


def after(head: Commit, view: int, roster: tuple[str, ...] | None = None) -> Commit:
    """Return the commit after `head`, first proposed in `view`."""
    roster = head.roster if roster is None else roster
    return Commit(head.number + 1, head.digest, view, (), roster, (), next_demoted(RUN, head, view, roster))


def test_without_failed_views_every_peer_leads_about_equally_often() -> None:
    head, led = genesis(RUN, FOUR), []
    for _ in range(400):
        led.append(leader(RUN, head, 0))
        head = after(head, 0)
        assert head.demoted == ()
    assert all(60 < led.count(peer) < 140 for peer in FOUR)  # 100 expected, standard deviation 8.7


def test_the_views_of_one_round_are_led_by_all_peers_in_turn() -> None:
    head = genesis(RUN, FOUR)
    assert sorted(leader(RUN, head, view) for view in range(4)) == list(FOUR)
    assert [leader(RUN, head, view) for view in range(4, 8)] == [leader(RUN, head, view) for view in range(4)]


def test_a_leader_whose_view_failed_leads_last_in_every_later_round() -> None:
    head = genesis(RUN, FOUR)
    failed = leader(RUN, head, 0)
    head = after(head, 1)
    assert head.demoted == (failed,)
    for _ in range(50):
        assert [leader(RUN, head, view) for view in range(4)].index(failed) == 3
        head = after(head, 0)
        assert head.demoted == (failed,)


def test_the_latest_failure_takes_the_place_of_the_earliest() -> None:
    head = genesis(RUN, FOUR)
    first = leader(RUN, head, 0)
    head = after(head, 1)
    second = leader(RUN, head, 0)
    assert second != first and after(head, 1).demoted == (second,)  # (4 - 1) // 2 = 1 place


def test_a_demoted_peer_that_leads_a_later_view_well_is_demoted_no_more() -> None:
    head = after(genesis(RUN, FOUR), 1)
    (failed,) = head.demoted
    assert leader(RUN, head, 3) == failed
    assert failed not in after(head, 3).demoted and len(after(head, 3).demoted) == 1


def test_a_proposer_whose_earlier_view_failed_is_not_demoted() -> None:
    """In view 7 = 4 + 3 the fourth leads again; its view 3 failed, but the place goes to the third, of view 6."""
    head = genesis(RUN, FOUR)
    order = [leader(RUN, head, view) for view in range(4)]
    assert leader(RUN, head, 7) == order[3] and next_demoted(RUN, head, 7, FOUR) == (order[2],)


def test_a_peer_that_leaves_the_roster_leaves_the_list() -> None:
    head = after(genesis(RUN, FOUR), 1)
    (failed,) = head.demoted
    assert after(head, 0, tuple(peer for peer in FOUR if peer != failed)).demoted == ()


@pytest.mark.parametrize("peers", [1, 2])
def test_one_or_two_peers_demote_nobody(peers: int) -> None:
    assert after(genesis(RUN, FOUR[:peers]), 1).demoted == ()


@given(st.integers(1, 9), st.lists(st.integers(0, 40), max_size=20))
def test_more_than_half_always_lead_in_turn(peers: int, views: list[int]) -> None:
    head = genesis(RUN, [f"{index:03}-{index}" for index in range(peers)])
    for view in views:
        proposer, head = leader(RUN, head, view), after(head, view)
        assert proposer not in head.demoted
        assert len(head.demoted) == len(set(head.demoted)) <= minority(head.roster)
        order = turns(RUN, head.number + 1, head.roster, head.demoted)
        assert sorted(order) == list(head.roster)
        assert order[len(order) - len(head.demoted) :] == list(head.demoted)
