"""Two processes with one key: the younger one stops, all others refuse it, and a restart is none.

Every peer has an identity file; its processes speak over the network in memory, each by a transport of its own. Who is
dialled by an id gets the process that has served last, as libp2p may go to either.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from outerloop.swarm.access.identity import Life, ensure_identity
from outerloop.swarm.consensus.commit import genesis
from outerloop.swarm.consensus.votes import CommitCertificate
from outerloop.swarm.gather.ballot_rpc import BallotRpc
from outerloop.swarm.membership.accepted_processes import MAX_KNOWN, MAX_REFUSED
from outerloop.swarm.membership.incarnation_record import Incarnation, IncarnationStatements
from outerloop.swarm.membership.incarnations import MAX_INTRODUCED, Incarnations
from outerloop.swarm.p2p.framing import BrokenStream
from outerloop.swarm.timeouts import ROSTER_REFRESH_S, VIEW_S
from outerloop.types import UserError
from tests.support.swarm.memory_network import MemoryNetwork, MemoryTransport
from tests.support.swarm.virtual_clock import now_s, run

NAMES = {peer: f"00{index}-{peer}" for index, peer in enumerate("abcp")}
PROTOCOL = "outerloop/1/r/incarnation"
SAID = CommitCertificate(genesis("r", NAMES.values(), first=1), 0, ())


@dataclass
class Process:
    """One process of a peer. `heard`: whose ballots it took; `said`: what it told its user."""

    link: MemoryTransport
    own: Incarnations
    post: BallotRpc
    heard: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    async def serve(self) -> None:
        await self.own.serve()
        await self.post.serve()


@dataclass
class Machines:
    """`files`: identity files by machine."""

    folder: Path
    network: MemoryNetwork = field(default_factory=lambda: MemoryNetwork(seed=1, delay_s=(0.01, 0.05)))

    def file(self, machine: str) -> Path:
        return ensure_identity(self.folder / machine / "identity.key")

    def copy(self, machine: str, to: str) -> None:
        """The folder, as it is now."""
        shutil.copytree(self.folder / machine, self.folder / to)

    async def start(self, machine: str, peer: str = "") -> Process:
        """A process of this peer on a machine; it introduces itself to the others."""
        said: list[str] = []
        heard: list[str] = []
        link = MemoryTransport(self.network, peer or machine)
        own = Incarnations(link, run="r", life=Life.begin(self.file(machine)), on_status=said.append)
        post = BallotRpc(
            link, run="r", names=lambda: NAMES, receive=lambda name, *_: heard.append(name), incarnations=own
        )
        process = Process(link, own, post, heard, said)
        await process.serve()
        there = {remote for remote, _ in self.network.handlers} - self.network.cut
        await own.introduce(sorted(there))
        return process

    async def kill(self, peer: str) -> None:
        """As a power cut or kill -9: the id is nobody's until a process serves again."""
        self.network.kill(peer)
        for protocol in (PROTOCOL, "outerloop/1/r/ballot"):
            self.network.handlers.pop((peer, protocol), None)

    async def back(self, machine: str, peer: str) -> Process:
        self.network.cut.discard(peer)
        return await self.start(machine, peer)

    async def speak(self, process: Process) -> None:
        """A ballot to each of the others."""
        for name in ("a", "b", "c"):
            process.post.send(NAMES[name], SAID)
        await asyncio.sleep(2 * VIEW_S)


def scene(play: Callable[[Machines], Coroutine[Any, Any, None]], tmp_path: Path) -> None:
    run(play(Machines(tmp_path)))


async def three(machines: Machines) -> list[Process]:
    return [await machines.start(one) for one in "abc"]


def signed_objection(process: Process, other: Incarnation) -> bytes:
    """What this process says against another one of its peer."""
    me = Incarnation.read(process.own.own)
    assert me
    return IncarnationStatements(process.link.trust.signatures, run="r").objection(me, other)


def stops(process: Process, why: str) -> bool:
    error = process.own.stopped
    assert error is None or ("run rm " in str(error) and "\n" not in str(error))
    return error is not None and why in str(error)


def heard(others: list[Process]) -> int:
    """How many of them took p's ballots since the last look."""
    found = sum("003-p" in one.heard for one in others)
    for one in others:
        one.heard.clear()
    return found


def test_a_process_that_was_killed_is_back_at_once(tmp_path: Path) -> None:
    async def play(machines: Machines) -> None:
        others = await three(machines)
        await machines.start("p")
        for _ in range(3):
            await machines.kill("p")
            began_s = now_s()
            back = await machines.back("p", "p")
            assert now_s() < began_s + VIEW_S, "nobody waits for the one that has gone"
            await machines.speak(back)
            assert heard(others) == 3 and back.own.stopped is None and back.said == []
        assert not any(one.link.trust.rejections.of_kind["outsiders"] for one in others)

    scene(play, tmp_path)


def test_it_is_back_as_well_where_the_streams_to_the_dead_one_still_hang(tmp_path: Path) -> None:
    """The machine lost its power: nothing ends its connections, and a stream to it is never answered."""

    async def play(machines: Machines) -> None:
        others = await three(machines)
        await machines.start("p")
        for one in others:
            one.link.open_stream = stalled  # type: ignore[method-assign, assignment]
        back = await machines.start("p")
        await machines.speak(back)
        assert heard(others) == 3 and back.own.stopped is None

    def stalled(*of: Any) -> Any:
        class Stalled:
            async def __aenter__(self) -> None:
                await asyncio.sleep(10 * VIEW_S)

            async def __aexit__(self, *of: Any) -> None: ...

        return Stalled()

    scene(play, tmp_path)


@pytest.mark.parametrize("route", ["to the elder", "to the copy"])
def test_a_copy_that_is_started_while_the_peer_lives_stops_and_is_refused_by_all(tmp_path: Path, route: str) -> None:
    """Its count is higher, as after a restart: who asks learns that the elder lives, or hears so when that speaks."""

    async def play(machines: Machines) -> None:
        others = await three(machines)
        elder = await machines.start("p")
        machines.copy("p", to="q")
        answers = dict(machines.network.handlers)
        if route == "to the elder":
            copy = await started_behind(machines, answers)
        else:
            copy = await machines.start("q", "p")
            assert copy.own.stopped is None, "it is taken for a restart"
            await machines.speak(elder)
            assert heard(others) == 3, "the elder is the one, once it has spoken"
            await machines.speak(copy)
        assert stops(copy, "started earlier and is still running") and elder.own.stopped is None
        assert len(elder.said) == 1 and "another machine has started with a copy" in elder.said[0]
        copy.own.stopped = None  # were it to go on, nobody would hear it
        heard(others)
        await machines.speak(copy)
        assert heard(others) == 0
        await machines.speak(elder)
        assert heard(others) == 3 and len(elder.said) == 1

    async def started_behind(machines: Machines, answers: dict[Any, Any]) -> Process:
        """Dialled by its id, the elder goes on to answer."""
        machines.network.handlers.update(answers)
        serve, MemoryTransport.serve = MemoryTransport.serve, nothing
        try:
            return await machines.start("q", "p")
        finally:
            MemoryTransport.serve = serve

    async def nothing(*of: Any, **named: Any) -> None: ...

    scene(play, tmp_path)


def test_one_file_that_is_started_twice_has_one_peer(tmp_path: Path) -> None:
    """It was copied while nothing ran: the counts are equal. The first one goes on."""

    async def play(machines: Machines) -> None:
        others = await three(machines)
        machines.file("p")
        machines.copy("p", to="q")
        first, second = await machines.start("p"), await machines.start("q", "p")
        assert stops(second, "was started from the same key file") and first.own.stopped is None
        await machines.speak(first)
        assert heard(others) == 3
        second.own.stopped = None
        await machines.speak(second)
        assert heard(others) == 0

    scene(play, tmp_path)


@pytest.mark.parametrize("alive", [True, False], ids=["both alive", "the other one gone for good"])
def test_a_snapshot_that_is_started_later_is_refused(tmp_path: Path, alive: bool) -> None:
    """Its memory is of then; what the peer has voted since, it has forgotten."""

    async def play(machines: Machines) -> None:
        others = await three(machines)
        await machines.start("p")
        machines.copy("p", to="snapshot")
        for _ in range(2):
            await machines.kill("p")
            elder = await machines.back("p", "p")
        if not alive:
            await machines.kill("p")
            machines.network.cut.discard("p")
        late = await machines.start("snapshot", "p")
        assert stops(late, "its start count is 3, but 2 here, so this key is an older copy")
        late.own.stopped = None
        await machines.speak(late)
        assert heard(others) == 0
        if alive:
            await machines.speak(elder)
            assert heard(others) == 3 and elder.own.stopped is None

    scene(play, tmp_path)


def test_the_elder_is_no_copy_after_a_restart_that_some_hear_of_before_they_hear_of_its_objection(
    tmp_path: Path,
) -> None:
    """a and c have taken the copy for a restart; only b has heard the elder object when its machine crashes."""

    async def play(machines: Machines) -> None:
        others = await three(machines)
        elder = await machines.start("p")
        machines.copy("p", to="q")
        copy = await machines.start("q", "p")
        elder.post.send(NAMES["b"], SAID)
        await asyncio.sleep(2 * VIEW_S)
        assert len(elder.said) == 1 and copy.own.life.count == 2
        await machines.kill("p")
        heard(others)
        back = await machines.back("p", "p")
        await machines.speak(back)
        assert back.own.stopped is None and back.own.life.count == 3 and heard(others) == 3

    scene(play, tmp_path)


def test_two_that_different_peers_have_met_first_both_stop(tmp_path: Path) -> None:
    """A partition heals: nobody can tell which of the two it was."""

    async def play(machines: Machines) -> None:
        await three(machines)
        machines.file("p")
        machines.copy("p", to="q")
        machines.network.part("p", "b")
        machines.network.part("p", "c")
        one = await machines.start("p")
        machines.network.heal()
        machines.network.part("p", "a")
        other = await machines.start("q", "p")
        machines.network.heal()
        assert one.own.stopped is other.own.stopped is None
        await machines.speak(one)
        await machines.speak(other)
        assert stops(one, "same key file") and stops(other, "same key file")

    scene(play, tmp_path)


def test_a_copy_that_never_votes_is_noticed_within_two_refreshes(tmp_path: Path) -> None:
    """Gossip has no ballots: each process goes on to introduce itself to one member after the other."""

    async def play(machines: Machines) -> None:
        await three(machines)
        elder = await machines.start("p")
        machines.copy("p", to="q")
        copy = await machines.start("q", "p")
        assert copy.own.stopped is None and elder.said == []
        going = [asyncio.create_task(one.own.keep_introducing(lambda: "abcp")) for one in (elder, copy)]
        await asyncio.sleep(2 * ROSTER_REFRESH_S + VIEW_S)
        assert stops(copy, "started earlier") and elder.own.stopped is None and len(elder.said) == 1
        assert going[1].done() and not going[0].done()

    scene(play, tmp_path)


def test_work_under_way_ends_with_the_reason(tmp_path: Path) -> None:
    async def play(machines: Machines) -> None:
        await three(machines)
        machines.file("p")
        machines.copy("p", to="q")
        await machines.start("p")
        copy = await machines.start("q", "p")
        for work in (asyncio.sleep(1000), asyncio.sleep(0)):
            with pytest.raises(UserError, match="another machine runs with the identity of p"):
                await copy.own.unless_stopped(work)
        assert now_s() < 100
        fine = await machines.start("c")
        assert await fine.own.unless_stopped(asyncio.sleep(1, "done")) == "done"
        with pytest.raises(ZeroDivisionError):
            await fine.own.unless_stopped(failing())

    async def failing() -> None:
        raise ZeroDivisionError

    scene(play, tmp_path)


# liars


async def answering(machines: Machines, liar: str, answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    async def lie(remote: str, request: dict[str, Any], stream: Any) -> None:
        await stream.send_object(answer(request))
        await stream.ended()

    link = MemoryTransport(machines.network, liar)
    await link.serve(PROTOCOL, allowed=lambda peer: True, handler=lie)


@pytest.mark.parametrize(
    "lie", ["another's", "a higher count", "an earlier one", "an objection to another one", "nonsense"]
)
def test_a_liar_stops_nobody_whose_key_was_not_copied(tmp_path: Path, lie: str) -> None:
    async def play(machines: Machines) -> None:
        before = await machines.start("p")
        liar = await machines.start("a")
        packed = {
            "another's": liar.own.own,
            "a higher count": (99).to_bytes(8, "big") + before.own.own[8:],
            "an earlier one": before.own.own,
            "an objection to another one": before.own.own,
            "nonsense": b"x" * len(before.own.own),
        }[lie]
        other = Incarnation(2, b"n" * 16, b"")
        objects = lie == "an objection to another one"
        objection = signed_objection(before, other) if objects else b""
        await answering(machines, "a", lambda request: {"known": packed, "objection": objection, "taken": True})
        back = await machines.start("p")
        assert back.own.life.count == 2 and back.own.stopped is None and back.said == []

    scene(play, tmp_path)


def test_nobody_is_displaced_by_what_its_peer_did_not_sign(tmp_path: Path) -> None:
    async def play(machines: Machines) -> None:
        others = await three(machines)
        peer = await machines.start("p")
        forged = (9).to_bytes(8, "big") + bytes(16)
        bad: list[Any] = [forged + others[1].own.own[24:], others[1].own.own, b"", b"x", 7, [], forged]
        for told in bad:
            async with MemoryTransport(machines.network, "p").open_stream("a", PROTOCOL) as stream:
                await stream.send_object({"incarnation": told})
                with pytest.raises(BrokenStream):
                    await stream.receive_object()
        assert others[0].link.trust.rejections.of_kind["requests"] == 7
        async with MemoryTransport(machines.network, "b").open_stream("p", PROTOCOL) as stream:
            await stream.send_object({"incarnation": others[1].own.own, "other": forged + bytes(64)})
            assert (await stream.receive_object())["objection"] == b"" and peer.said == []
        await machines.speak(peer)
        assert heard(others) == 3

    scene(play, tmp_path)


def test_memory_for_other_processes_is_bounded(tmp_path: Path) -> None:
    async def play(machines: Machines) -> None:
        [a, *_] = await three(machines)
        own = a.own
        template = Incarnation.read(own.own)
        assert template
        for number in range(MAX_KNOWN + 10):
            await own.others._look_up(f"peer {number}", template)  # noqa: SLF001
        assert len(own.others._known) == MAX_KNOWN and "peer 9" not in own.others._known  # noqa: SLF001
        for number in range(2 * MAX_REFUSED):
            await own.others._look_up("peer 99", Incarnation(template.count, bytes([number]) * 16, template.packed))  # noqa: SLF001
        assert len(own.others._known["peer 99"].refused) == MAX_REFUSED  # noqa: SLF001
        asked: list[str] = []
        own._introduce = lambda peer: note(asked, peer)  # type: ignore[method-assign]  # noqa: SLF001
        await own.introduce([f"peer {number}" for number in range(2 * MAX_INTRODUCED)])
        assert len(asked) == MAX_INTRODUCED

    async def note(asked: list[str], peer: str) -> bool:
        asked.append(peer)
        return True

    scene(play, tmp_path)


def test_a_record_of_another_process_is_told_and_one_of_before_is_not(tmp_path: Path) -> None:
    async def play(machines: Machines) -> None:
        before, machine = await machines.start("p"), await machines.start("a")
        machines.copy("p", to="q")
        now, later = await machines.start("p"), await machines.start("q", "p")
        for packed in (before.own.own, now.own.own, machine.own.own, b"", None):
            now.own.seen(packed)
        assert now.said == []
        for _ in range(2):
            now.own.seen(later.own.own)
        assert len(now.said) == 1 and now.own.stopped is None

    scene(play, tmp_path)
