"""Whose payloads a peer scores: accused ones first, unless the accuser has been wrong before."""

from collections import Counter
from random import Random
from types import SimpleNamespace

from outerloop.scores.selection import Selection

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


def test_accused_peers_come_first():
    one = selection()
    assert {chosen(one, {"g": {"b"}})[0] for _ in range(50)} == {"g"}
    assert len({chosen(one, {"g": {"b"}}, accused={"g"})[0] for _ in range(200)}) == 7  # this peer knows it already
    assert len({chosen(one, {"g": {"a"}})[0] for _ in range(200)}) == 7  # nor does its own accusation count


def test_a_wrong_accuser_is_ignored_from_then_on():
    one, accusers = selection(), {"g": {"b"}, "c": {"b", "d"}}
    one.learn(["g"], accusers)
    assert one.wrong == {"b"}
    assert {chosen(one, accusers)[0] for _ in range(50)} == {"c"}  # accused by d, too
    one.learn(["c"], accusers)
    assert len({chosen(one, accusers)[0] for _ in range(200)}) == 7


def test_own_accusations_are_never_wrong():
    one = selection()
    one.learn(["g"], {"g": {"a", "b"}})
    assert one.wrong == {"b"}
