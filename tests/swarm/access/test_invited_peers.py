"""What peers conclude from admissions and removals, in whatever order they arrive."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import permutations

import pytest

from outerloop.swarm.access import invited_peers
from outerloop.swarm.access.admissions import Admission, Removal
from outerloop.swarm.access.invited_peers import InvitedPeers
from tests.support.swarm.dht_scene import id_of, trust
from tests.support.swarm.invite_scene import NOW_S, RUN, A, B, C, X, Y, admission, token


def merged(statements: list[Admission | Removal]) -> InvitedPeers:
    out = InvitedPeers()
    for one in statements:
        out = out.with_statement(one)
    return out


def removal(peer: int = X, *, by: int = A, lifted: bool = False, at_s: int = NOW_S) -> Removal:
    return Removal.new(trust(by).signatures, run=RUN, peer=id_of(peer), lifted=lifted, at_s=at_s)


def test_of_two_keys_with_one_token_the_first_one_counts_and_both_stay_known() -> None:
    one = token()
    statements = [admission(one, X, at_s=NOW_S + 1), admission(one, Y, at_s=NOW_S), admission(one, X, receiver=C)]
    for order in permutations(statements):
        peers = merged(list(order))
        assert peers.user_of(one.invite) == min((id_of(X), id_of(Y))), "two in the same second: the smaller id"
        assert peers.known == {id_of(X), id_of(Y)}
        assert len(peers.shared) == 2
    assert merged(statements[:2]).last == {id_of(Y): None}
    assert merged([]).user_of(one.invite) == ""


def test_a_second_invite_extends_the_first() -> None:
    short, longer, endless = token(rounds=3), token(rounds=9), token()
    assert merged([admission(longer), admission(short)]).last == {id_of(X): 8}
    assert merged([admission(short), admission(endless), admission(longer)]).last == {id_of(X): None}


def test_the_later_removal_counts() -> None:
    removed, lifted = removal(), removal(lifted=True, at_s=NOW_S + 1)
    for order in permutations([removed, lifted, removal(at_s=NOW_S - 5)]):
        assert not merged([admission(token()), *order]).removed
    assert merged([removed, removal(lifted=True)]).removed == {id_of(X)}, "in the same second: the removal"


def test_of_one_removal_with_two_signatures_all_peers_keep_the_same() -> None:
    """A signer can choose the nonce of a signature, so it can sign one statement twice."""
    pair = [removal(), replace(removal(), signature=bytes(64))]
    kept = {merged([admission(token()), *order]).shared[-1] for order in permutations(pair)}
    assert len(kept) == 1


def test_the_first_admissions_of_each_issuer_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invited_peers, "MAX_PER_ISSUER", 2)
    monkeypatch.setattr(invited_peers, "MAX_ADMISSIONS", 3)
    of_a = [admission(token(A), peer, at_s=NOW_S + peer) for peer in (11, 12, 13)]
    of_b = [admission(token(B), peer, at_s=NOW_S + peer) for peer in (14, 15)]
    for seed in range(5):
        statements = [*of_a, *of_b]
        random.Random(seed).shuffle(statements)
        peers = merged(list(statements))
        assert set(peers.last) == {id_of(11), id_of(12), id_of(14)}
        assert peers.number_by(id_of(A)) == 2 and peers.number_by(id_of(B)) == 1


def test_a_removal_is_shared_only_if_the_peer_was_invited() -> None:
    peers = merged([admission(token()), removal(), removal(Y)])
    assert peers.shared == [admission_of(peers), removal()] and peers.removed == {id_of(X), id_of(Y)}


def admission_of(peers: InvitedPeers) -> Admission:
    [one] = peers.used
    return one
