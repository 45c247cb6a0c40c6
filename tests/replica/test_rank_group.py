"""What the processes of an island say to each other from two threads at once does not mix."""

import threading

from torch import distributed as dist

from outerloop.replica.rank_group import RankGroup
from tests.support import process_group

TURNS = 50


def said(words, number):
    """One of all kinds of words; lengths differ between turns and threads."""
    data = bytes([words.tag, words.rank, number]) * (1 + (17 * number + words.tag) % 40)
    spread = words.broadcast(data)
    gathered = words.gather(data)
    dealt = words.scatter([bytes([words.tag, rank, number]) * (rank + 2) for rank in range(words.size)])
    return [spread[:3], *(one[:3] for one in gathered), dealt[:3]]


def expected(words, number):
    """What each of them must hear."""
    of = [bytes([words.tag, rank, number]) for rank in range(words.size)]
    return [of[0], *(of if words.is_leader else ()), of[words.rank]]


def two_threads(rank):
    words, apart, errors = RankGroup(dist.group.WORLD), RankGroup(dist.group.WORLD).with_tag(), []

    def aside():
        for number in range(TURNS):
            if said(apart, number) != expected(apart, number):
                errors.append(number)

    thread = threading.Thread(target=aside)
    thread.start()
    for number in range(TURNS):
        assert said(words, number) == expected(words, number)
        assert words.all_reduce([1.0, rank]) == [3.0, 3.0]
    thread.join()
    return not errors and words.supports_tags


def test_words_apart_do_not_mix_with_others(tmp_path):
    assert process_group.together(3, two_threads, tmp_path) == [True] * 3


def test_a_process_alone_speaks_to_itself():
    apart = RankGroup(None).with_tag()
    assert said(apart, 3) == expected(apart, 3)
