"""Whose payloads a peer scores: accused ones first, unless the accuser has been wrong before."""

from collections import Counter
from random import Random
from types import SimpleNamespace

from outerloop.scores.selection import LASTING, Selection

PEERS = "abcdefgh"


def messages(peers=PEERS):
    return [SimpleNamespace(header=SimpleNamespace(peer=peer)) for peer in peers]


def chosen(selection, accusers=None, accused=()):
    return [message.header.peer for message in selection.choose(messages(), accusers or {}, accused)]


def selection(payloads=1.0):
    return Selection("a", payloads=payloads, random=Random(0))


def test_without_accusations_the_choice_is_random_and_never_the_own_payload():
    one = selection(payloads=1.5)
    rounds = [chosen(one) for _ in range(2000)]
    assert {len(peers) for peers in rounds} == {1, 2} and sum(map(len, rounds)) in range(2900, 3100)
    counts = Counter(peer for peers in rounds for peer in peers)
    assert counts.keys() == set(PEERS) - {"a"} and max(counts.values()) < 1.3 * min(counts.values())
    assert len(chosen(selection(payloads=20.0))) == 7


def first_of(one, accusers, *, rounds=400, accused=()):
    """How often each peer is chosen, if one payload is scored per round."""
    return Counter(chosen(one, accusers, accused)[0] for _ in range(rounds))


def test_half_of_the_choices_follow_accusations():
    counts = first_of(selection(), {"g": {"b"}})
    assert 180 < counts["g"] < 280  # half, and every seventh of the others
    assert all(chosen(selection(payloads=2.0), {"g": {"b"}})[0] == "g" for _ in range(20))
    two = [chosen(selection(payloads=2.0), {"g": {"b"}, "h": {"b"}}) for _ in range(50)]
    assert all(len(set(peers)) == 2 for peers in two)
    assert first_of(selection(), {"g": {"b"}}, accused={"g"})["g"] < 100  # this peer knows it already
    assert first_of(selection(), {"g": {"a"}})["g"] < 100  # its own accusation does not count


def test_a_wrong_accuser_is_ignored_for_some_rounds():
    one, accusers = selection(), {"g": {"b"}, "c": {"b", "d"}}
    one.learn(5, ["g"], accusers)
    assert one.wrong == {"b": 5}
    counts = first_of(one, accusers)
    assert counts["c"] > 180 and counts["g"] < 100  # c is accused by d, too
    one.learn(5 + LASTING - 1, [], accusers)
    assert one.wrong == {"b": 5}
    one.learn(5 + LASTING, [], accusers)
    assert one.wrong == {}


def test_own_accusations_are_never_wrong():
    one = selection()
    one.learn(0, ["g"], {"g": {"a", "b"}})
    assert one.wrong == {"b": 0}
