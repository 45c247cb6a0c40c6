"""Real daemons on loopback with exchange.trust=nobody: four peers, one of which lies in every vote and proposal."""

from dataclasses import replace
from typing import Any

import pytest

from outerloop.exchange.swarm_gather import SwarmGather
from outerloop.swarm.consensus.effects import Effect, Send
from outerloop.swarm.consensus.hotstuff.chain import HotStuffChain
from outerloop.swarm.consensus.hotstuff.messages import ProposalMessage, Vote
from outerloop.swarm.gather.runner import PROTOCOLS
from outerloop.types import Round, UserError
from tests.support.swarm.loopback import Make, together


class Lying(HotStuffChain):
    """The peer named `liar` votes for another commit as well, and proposes different commits to different peers."""

    liar = ""

    def receive(self, *given: Any) -> list[Effect]:
        return self._with_lies(super().receive(*given))

    def payload_stored(self, *given: Any) -> list[Effect]:
        return self._with_lies(super().payload_stored(*given))

    def grace(self, *given: Any) -> list[Effect]:
        return self._with_lies(super().grace(*given))

    def _with_lies(self, effects: list[Effect]) -> list[Effect]:
        if self.hard_state.peer != self.liar:
            return effects
        return [lie for effect in effects for lie in self._lies(effect)]

    def _lies(self, effect: Effect) -> list[Effect]:
        if isinstance(effect, Send) and isinstance(vote := effect.message, Vote):
            other = replace(vote, digest=bytes(32))
            return [effect, Send(effect.to, replace(other, signature=self.signer.sign(other.statement)))]
        if isinstance(effect, Send) and isinstance(message := effect.message, ProposalMessage):
            if effect.to != sorted(self.hard_state.roster)[0]:
                return [effect]
            commit = replace(message.proposal.commit, participants=message.proposal.commit.participants[1:])
            other_proposal = replace(message.proposal, commit=commit)
            signature = self.signer.sign(other_proposal.statement)
            return [Send(effect.to, ProposalMessage(replace(other_proposal, signature=signature), message.wishes))]
        return [effect]


def test_rounds_continue_beside_a_liar_which_is_expelled(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROTOCOLS, "nobody", Lying)
    peers = [make(peers=4, trust="nobody", grace_s=2.0) for _ in range(4)]
    monkeypatch.setattr(Lying, "liar", peers[3].peer)
    assert together(peers, SwarmGather.join) == [None] * 4
    honest, counted = peers[:3], []
    for number in range(8):
        pending = [peer.start(f"{peer.peer} {number}".encode(), Round(number)) for peer in peers]
        landed = [one.wait(60) for one in pending[:3]]
        assert landed[0] == landed[1] == landed[2]
        counted.append({contribution.peer for contribution in landed[0]})
    assert counted[-1] == {peer.peer for peer in honest}


def test_four_peers_that_trust_nobody_gather(make: Make) -> None:
    peers = [make(peers=4, trust="nobody", grace_s=30.0) for _ in range(4)]
    assert together(peers, SwarmGather.join) == [None] * 4
    for number in range(3):
        landed = together(peers, lambda peer, number=number: peer.start(b"x", Round(number)).wait(60))
        assert all(one == landed[0] for one in landed) and len(landed[0]) == 4


def test_fewer_than_four_peers_withstand_no_liar(make: Make) -> None:
    with pytest.raises(
        UserError,
        match=r"exchange\.trust=nobody needs at least 4 peers",
    ):
        make(peers=3, trust="nobody")
    with pytest.raises(UserError, match=r"exchange\.trust=friends must be one of members, nobody"):
        make(peers=4, trust="friends")
