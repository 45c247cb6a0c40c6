"""A peer that has voted and lost its memory votes no more: whatever history it is told, no round is decided twice."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from outerloop.swarm.access.hard_state_file import GENERATION, NAME, HardStateFile, ensure_votable_identity, folder_of
from outerloop.swarm.access.identity import Identity, Life, ensure_identity
from outerloop.swarm.access.signatures import Signatures
from outerloop.swarm.consensus.proposer import GatherPolicy
from outerloop.swarm.consensus.state import HardState
from outerloop.swarm.consensus.votes import CommitCertificate
from outerloop.swarm.storage import Folder
from outerloop.types import UserError
from tests.support.swarm.consensus_world import RUN, World, payload
from tests.support.swarm.virtual_clock import run

FIVE = "abcde"
VOTER = "e"


def play(world: World) -> None:
    """One round of those that are up, through as many views as it takes."""
    number = world[world.up[0]].number
    while any(world[peer].number == number for peer in world.up):
        for peer in world.up:
            if not world[peer].votes:
                world.event(peer, lambda machine: machine.request_join())
        world.deliver_all()
        for owner in world.up:
            for peer in world.up:
                world.give(peer, world[peer].number, payload(owner, world[peer].number))
        world.deliver_all()
        for act in ("grace", "deadline"):
            for peer in world.up:
                world.event(peer, lambda machine, act=act: getattr(machine, act)(number))
            world.deliver_all()
        time_out(world, number)


def time_out(world: World, number: int) -> None:
    for peer in world.up:
        if world[peer].number == number:
            world.event(peer, lambda machine: machine.timeout(machine.number, machine.view))
    world.deliver_all()


def scene(seed: int) -> tuple[World, CommitCertificate, list[str]]:
    """e was dropped, came back and was readmitted; then it, c' and the leader chose a commit that nobody knows of yet.

    Return the world, the last commit without e in its roster, and the two that are left, with e as powerful as three.
    """
    world = World(
        FIVE, gather_policy=GatherPolicy(min_peers=2, min_fraction=0.4), absent_rounds=2, rng=random.Random(seed)
    )
    world.crash(VOTER)
    while VOTER in world["a"].hard_state.roster:
        play(world)
    old = world["a"].hard_state.log[-1]
    world.start(VOTER)
    world.fetch(VOTER, "a")
    while not (VOTER in world["a"].hard_state.roster and world["a"].hard_state.leader(0) != VOTER):
        play(world)
    leader = world["a"].hard_state.leader(0)
    ally, *rest = [peer for peer in FIVE if peer not in (leader, VOTER)]
    number = world["a"].number
    for peer in (leader, ally, VOTER):
        for owner in (leader, ally, VOTER):
            world.give(peer, number, payload(owner, number))
    world.event(leader, lambda machine: machine.grace(number))
    world.event(leader, lambda machine: machine.deadline(number))
    while any(to in (ally, VOTER) for _, to, _ in world.network):
        world.deliver(next(i for i, (_, to, _) in enumerate(world.network) if to in (ally, VOTER)))
    assert number in world.monitor.chosen, "three of five have accepted"
    for peer in (leader, ally, VOTER):
        world.crash(peer)
    world.network.clear()
    return world, old, rest


def come_back(world: World, old: CommitCertificate, name: str) -> None:
    """With a state as of long ago, from one that is behind, and the commits since then, all of them signed."""
    world.peers[name] = type(world.peers[VOTER])(HardState.joining(session=RUN, peer=name, head=old))
    world.start(name)
    source = next(peer for peer in world.up if peer != name)
    for decided in world[source].commits_since(old.commit.number) or ():
        world.event(name, lambda machine, decided=decided: machine.receive(source, decided))
    assert world[name].number == world[source].number


def decide_without(world: World) -> None:
    """What those that are up come to in the round at hand."""
    number = world[world.up[0]].number
    for _ in range(12):
        for owner in world.up:
            for peer in world.up:
                if world[peer].number == number:
                    world.give(peer, number, payload(owner, number))
        for act in ("grace", "deadline"):
            for peer in world.up:
                world.event(peer, lambda machine, act=act: getattr(machine, act)(number))
        world.deliver_all()
        time_out(world, number)


@pytest.mark.parametrize("seed", range(3))
def test_without_the_rule_a_round_is_decided_twice(seed: int) -> None:
    """Nothing that the voter is told is forged; only what it forgot is missing."""
    world, old, _ = scene(seed)
    come_back(world, old, VOTER)
    with pytest.raises(AssertionError, match="two commits"):
        decide_without(world)


@pytest.mark.parametrize("listed", [True, False], ids=["with a list", "open"])
@pytest.mark.parametrize("seed", range(3))
def test_a_peer_that_lost_its_hard_state_does_not_return_as_the_peer_that_voted(
    seed: int, listed: bool, tmp_path: Path
) -> None:
    world, old, rest = scene(seed)
    path = voter(tmp_path, world.peers[VOTER].disk)
    before = Signatures.of(path).peer_id
    (folder_of(path) / NAME).unlink()
    if listed:
        with pytest.raises(UserError, match="has voted, but the record of its votes is missing"):
            ensure_votable_identity(path, Folder, listed=True, on_status=print)
    else:
        assert Signatures.of(ensure_votable_identity(path, Folder, listed=False, on_status=print)).peer_id != before
        come_back(world, old, "f")
    chosen, number = world.monitor.chosen[world[rest[0]].number], world[rest[0]].number
    decide_without(world)
    assert all(world[peer].number == number for peer in rest), "two of five decide nothing, whoever is new beside them"
    for peer in FIVE:
        if peer not in (*rest, VOTER):
            world.start(peer)
    decide_without(world)
    assert all(world[peer].number > number for peer in rest) and world.monitor.chosen[number] == chosen


def voter(folder: Path, hard_state: HardState) -> Path:
    """The identity file of a peer that has written this memory."""
    path = ensure_identity(folder / "identity.key")
    asyncio.run(HardStateFile(Folder(folder_of(path)), own=hard_state.peer, life=Life.begin(path)).write(hard_state))
    return path


def of_before(folder: Path) -> None:
    """Put back the folder of the process before."""
    (folder / GENERATION).write_text("0")


DAMAGES: dict[str, Callable[[Path], object]] = {
    "memory removed": lambda folder: (folder / NAME).unlink(),
    "memory cut short": lambda folder: (folder / NAME).write_bytes((folder / NAME).read_bytes()[:-1]),
    "memory empty": lambda folder: (folder / NAME).write_bytes(b""),
    "memory of another kind": lambda folder: (folder / NAME).write_bytes(b"\x01"),
    "generation removed": lambda folder: (folder / GENERATION).unlink(),
    "generation no number": lambda folder: (folder / GENERATION).write_text("-1"),
    "an older folder": of_before,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_whatever_happened_to_the_memory_the_list_has_to_be_changed(damage: str, tmp_path: Path) -> None:
    path = voter(tmp_path, HardState.first(session=RUN, peer="000-a", roster=["000-a"]))
    assert ensure_votable_identity(path, Folder, listed=True, on_status=pytest.fail) == path, "nothing has happened yet"
    DAMAGES[damage](folder_of(path))
    with pytest.raises(UserError) as error:
        ensure_votable_identity(path, Folder, listed=True, on_status=print)
    said = str(error.value)
    assert f"Run rm {path}" in said and Signatures.of(path).peer_id in said and "exchange.allow of every" in said
    assert "\n" not in said


@pytest.mark.parametrize("damage", DAMAGES)
def test_in_an_open_run_it_gets_another_key_and_the_old_one_is_kept(damage: str, tmp_path: Path) -> None:
    path, said = voter(tmp_path, HardState.first(session=RUN, peer="000-a", roster=["000-a"])), list[str]()
    old = path.read_bytes()
    DAMAGES[damage](folder_of(path))
    assert ensure_votable_identity(path, Folder, listed=False, on_status=said.append) == path
    assert Identity.read(path) == Identity(path.read_bytes()[:68]), "it has not started and not voted"
    [aside] = tmp_path.glob("identity.key.of-*")
    assert aside.read_bytes() == old and path.read_bytes()[:68] != old[:68]
    assert len(said) == 1 and str(aside) in said[0] and "\n" not in said[0]
    assert HardStateFile(Folder(folder_of(path)), own="000-a").read(session=RUN) is None
    assert ensure_votable_identity(path, Folder, listed=False, on_status=pytest.fail) == path


def test_a_peer_that_never_voted_may_lose_its_hard_state(tmp_path: Path) -> None:
    path = ensure_identity(tmp_path / "identity.key")
    Life.begin(path)
    assert ensure_votable_identity(path, Folder, listed=True, on_status=pytest.fail) == path
    assert not folder_of(path).exists()


def test_a_file_of_an_earlier_version_is_refused(tmp_path: Path) -> None:
    path, said = ensure_identity(tmp_path / "identity.key"), list[str]()
    path.write_bytes(path.read_bytes()[:68])
    assert ensure_votable_identity(path, Folder, listed=True, on_status=said.append) == path
    assert len(said) == 1 and "was created by an earlier version and stays in use" in said[0]
    Life.begin(path)
    assert ensure_votable_identity(path, Folder, listed=True, on_status=pytest.fail) == path


def test_memory_is_noted_once_by_each_process(tmp_path: Path) -> None:
    hard_state = HardState.first(session=RUN, peer="000-a", roster=["000-a"])
    path = voter(tmp_path, hard_state)
    assert Identity.read(path).voted == 1
    life, disk = Life.begin(path), Folder(folder_of(path))
    file = HardStateFile(disk, own="000-a", life=life)
    assert Identity.read(path).voted == 1, "nothing was written yet"
    asyncio.run(file.write(hard_state))
    assert Identity.read(path).voted == 2 and disk.read(GENERATION)[:] == b"2"
    path.unlink()
    asyncio.run(file.write(hard_state))
    assert not path.exists(), "later writes leave the identity alone"


def test_a_hard_state_of_the_process_before_is_refused(tmp_path: Path) -> None:
    """Two processes voted; a backup of the folder after the first one is put back."""
    for _ in range(2):
        path = voter(tmp_path, HardState.first(session=RUN, peer="000-a", roster=["000-a"]))
    assert Identity.read(path).voted == 2
    (folder_of(path) / GENERATION).write_text("1")
    with pytest.raises(UserError, match="missing, damaged or older than its identity"):
        ensure_votable_identity(path, Folder, listed=True, on_status=print)


def test_a_peer_is_the_same_by_another_name(tmp_path: Path) -> None:
    first = HardState.first(session=RUN, peer="001-x", roster=["001-x", "002-y"])
    path = voter(tmp_path, first)
    again = HardState.first(session=RUN, peer="000-x", roster=["000-x", "002-y"])
    file = HardStateFile(Folder(folder_of(path)), own="000-x", life=Life.begin(path))
    with pytest.raises(UserError, match="has voted in the run as 001-x, but is 000-x now: restart it as worker 1"):
        asyncio.run(file.write(again))
    assert HardStateFile(Folder(folder_of(path)), own="001-x").read(session=RUN) == first, (
        "what it voted for is not forgotten"
    )


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EMFILE])
def test_the_first_vote_of_a_process_waits_for_space_for_its_note(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where no round is under way yet: a chain that begins writes its memory itself."""
    path, noted, left = (
        ensure_identity(tmp_path / "identity.key"),
        Life.record_vote_storage,
        [OSError(code, "injected")] * 2,
    )

    def full(life: Life) -> None:
        if left:
            raise left.pop()
        noted(life)

    monkeypatch.setattr(Life, "record_vote_storage", full)
    file = HardStateFile(Folder(folder_of(path)), own="000-a", life=Life.begin(path))
    run(file.write(HardState.first(session=RUN, peer="000-a", roster=["000-a"])))
    assert not left and Identity.read(path).voted == 1


def test_a_start_that_cannot_be_counted_is_told_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = ensure_identity(tmp_path / "identity.key")

    def full(*of: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("outerloop.swarm.access.identity._replace", full)
    with pytest.raises(UserError, match=r"cannot update the start count in .* \(No space left on device\): free some"):
        Life.begin(path)
