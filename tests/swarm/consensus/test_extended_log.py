"""A log that another peer extends: what is kept of it can be verified, and is passed on only if it can."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outerloop.swarm.consensus.chain import Chain
from outerloop.swarm.consensus.effects import Persist
from outerloop.swarm.consensus.hotstuff.chain import HotStuffChain
from outerloop.swarm.consensus.paxos.chain import PaxosChain
from outerloop.swarm.consensus.state import HardState
from outerloop.swarm.consensus.votes import CommitCertificate
from tests.support.swarm.consensus_world import RUN
from tests.support.swarm.toy_signatures import ToySigner
from tests.swarm.consensus.test_resignation import LONE, play, world_of


@pytest.mark.parametrize("protocol", [PaxosChain, HotStuffChain])
@pytest.mark.parametrize("other_protocol", [False, True])
def test_the_certificate_of_the_oldest_commit_that_another_peer_adds_is_not_kept(
    protocol: type[Chain], other_protocol: bool
) -> None:
    """Its digest proves the commit; nothing proves the votes, without the roster before it."""
    world = world_of("abcd", protocol=protocol)
    for _ in range(4):
        play(world, *"abcd")
    *_, before, oldest, head = world["a"].hard_state.log
    machine = protocol(
        HardState.joining(session=RUN, peer="z", head=head), signer=ToySigner("z"), gather_policy=LONE, absent_rounds=8
    )
    forged = replace(oldest, accepts=(("d", bytes(64)),), byzantine=oldest.byzantine != other_protocol)
    saved = [one.hard_state for one in machine.compare_log("d", [forged, head]) if isinstance(one, Persist)][-1]
    state = HardState.from_bytes(saved.to_bytes(), session=RUN, peer="z")
    assert state.log == (CommitCertificate.unproven(oldest.commit), head)
    assert state.belongs_to(byzantine=protocol is HotStuffChain), "it can be resumed"
    assert machine.commits_since(before.commit.number) is None, "its log does not reach back to the commit before"
    assert machine.commits_since(oldest.commit.number) == (head,)
