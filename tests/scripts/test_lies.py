"""The registry of lies, and how a process or a simulated peer is made to lie."""

from types import SimpleNamespace

import pytest
from faulty import lie, misbehave
from faulty.lie import Liar, lie_about_log, lies, machine_of

from outerloop.swarm.gather.ballot_rpc import BallotRpc
from outerloop.swarm.gather.log_rpc import LogRpc
from outerloop.swarm.state_transfer.manifest import Manifest


@pytest.mark.parametrize("trust", ["members", "nobody"])
def test_every_lie_of_the_registry_has_a_name_and_a_line_about_what_it_does(trust):
    found = lies(trust)
    assert len({one.name for one in found}) == len(found) and all(one.trust == trust for one in found)
    assert all(one.what.endswith(".") and len(one.what) > 20 for one in found)
    assert {one.name for one in found} == {*lie.FORGES[trust], "states"}


def test_lies_reach_the_classes_that_all_messages_pass(monkeypatch):
    for owner, name in ((BallotRpc, "send"), (LogRpc, "__init__"), (Manifest, "of")):
        monkeypatch.setattr(owner, name, owner.__dict__[name])
    counted, now = [], [""]
    monkeypatch.setattr(misbehave, "now", lambda: now[0])
    monkeypatch.setattr(misbehave, "note", counted.append)
    truth = Manifest.of(b"state", number=1, head=bytes(32))
    lie.install()
    assert Manifest.of(b"state", number=1, head=bytes(32)) == truth and not counted
    now[0] = "states"
    assert Manifest.of(b"state", number=1, head=bytes(32)).chunks != truth.chunks
    transport = SimpleNamespace()
    history = LogRpc(transport, run="r", allowed=bool, since=lambda after: ("told", after))
    assert history._since(3) == ("told", 3)  # noqa: SLF001
    for now[0] in ("histories", "hide"):
        assert history._since(3) == ()  # noqa: SLF001
    assert counted == ["states", "histories", "hide"]


def test_an_empty_log_is_no_lie():
    counted = []
    rpc = SimpleNamespace(_since=lambda after: ())
    lie_about_log(rpc, Liar(lambda: "histories", counted.append))
    assert rpc._since(3) == () and not counted  # noqa: SLF001


def test_before_the_rounds_begin_a_liar_has_no_state_and_sends_honest_messages():
    class Context:
        begun = False

        def receive(self) -> None:
            pass

    ballots = SimpleNamespace(_receive=Context().receive)
    message = object()
    assert machine_of(ballots) is None
    assert Liar(lambda: "silence", lambda lie: None).messages(None, "000-a", message) == [("000-a", message)]
