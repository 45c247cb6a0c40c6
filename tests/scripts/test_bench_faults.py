"""The benchmark under fire: faults hit whom they are meant for, and its report counts right."""

import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass

import faults_report
import pytest
from faults_deck import KINDS, LASTS_S, Deck
from faults_machine import Machine, folders_of_sockets, left_behind
from faults_swarm import Swarm


@dataclass
class Sleeper(Machine):
    """A machine that does nothing, until it is hit."""

    def command(self, initial_peers):
        code = f"import pathlib, time; pathlib.Path({str(self.folder)!r}).touch(); time.sleep(60)"
        return [sys.executable, "-c", code, f"run_dir={self.folder}"]


@pytest.fixture
def sleepers(tmp_path):
    """Start machines of these numbers, in a folder with the benchmark's own name."""
    folder, made = tmp_path / "bench_faults", []
    folder.mkdir()

    def start(*numbers):
        made.extend(Sleeper(number, folder / f"m{number}", []) for number in numbers)
        for machine in made:
            machine.start([])
        while not all(machine.folder.exists() for machine in made):
            time.sleep(0.05)
        return made

    yield start
    for machine in made:
        machine.process.kill()
        machine.process.wait()


def test_a_fault_hits_one_machine_and_no_other(sleepers):
    first, eleventh = sleepers(1, 10)
    assert first.signal(signal.SIGKILL) == {first.process.pid}
    assert first.process.wait(timeout=30) == -signal.SIGKILL
    assert eleventh.processes() == {eleventh.process.pid}
    assert left_behind(first.folder.parent)["processes"] == 1


def test_sockets_of_who_is_killed_are_looked_for_at_the_end(tmp_path):
    sockets = tmp_path / "outerloop-swarm-x"
    sockets.mkdir()
    words = [sys.executable, "-c", "print(flush=True); input()", f"-listen=/unix{sockets}/p2pd.sock", "-id=x"]
    daemon = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    daemon.stdout.readline()
    try:
        assert folders_of_sockets([daemon.pid]) == {sockets}
    finally:
        daemon.kill()
        daemon.communicate()
    assert left_behind(tmp_path / "m", [sockets, tmp_path / "gone"])["socket_folders"] == 1


def test_ctrl_c_is_heeded_where_the_benchmark_runs_in_the_background(sleepers):
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell does for what ends with &
    try:
        [machine] = sleepers(0)
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
        machine.interrupt()
        assert machine.process.wait(timeout=30) == -signal.SIGINT
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_machine_that_outlives_a_fault_or_ends_without_one_is_reported(tmp_path, monkeypatch):
    swarm = Swarm(tmp_path / "s", workers=2, rounds=9, options=[], faults=[], every_s=1, patience_s=1, seed=0)
    for machine in swarm.machines:
        machine.process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    monkeypatch.setattr(Machine, "start", lambda machine, peers: None)
    one, other = swarm.machines
    one.suffered = "interrupt"
    other.process.kill()
    other.process.wait()
    try:
        for _ in range(2):
            swarm.recover(one)
        swarm.recover(other)
    finally:
        one.process.kill()
        one.process.wait()
    one.down_until = 0.0
    swarm.recover(one)
    kinds = [(event["machine"], event["kind"]) for event in swarm.events]
    crashed = (1, "crashed, started again after exit -9")
    assert kinds == [(0, "outlived interrupt"), crashed, (0, "started again after exit -9")]


WORKER = """
import asyncio
from outerloop.swarm.gather import round_store, runner

async def offer(self, number, blob):
    print(len(blob), blob[7:9].hex(), object.__new__(round_store.RoundStore).get(b"").hex())

round_store.RoundStore.get, runner.GatherRunner.offer = lambda self, sha: b"ab", offer
import outerloop.launcher.worker_process
one = object.__new__(runner.GatherRunner)
one._max_bytes = 20
asyncio.run(one.offer(0, b"12345678" + bytes(4)))
"""


@pytest.mark.parametrize(
    ("how", "offered_and_given"),
    [
        ("", "12 3800 6162"),
        ("corrupt", "12 3800 0000"),
        pytest.param("garbled", "12 38ff 6162", marks=pytest.mark.slow),
        pytest.param("oversized", "21 3800 6162", marks=pytest.mark.slow),
    ],
)
def test_a_worker_misbehaves_as_it_is_told(tmp_path, how, offered_and_given):
    """In a Python that is started as a worker is: what it offers (bytes, two of them), and what it gives."""
    machine = Machine(0, tmp_path / "m0", [])
    machine.misbehave(how)
    done = subprocess.run([sys.executable, "-c", WORKER], env=machine.environment(), capture_output=True, text=True)
    assert done.stdout.strip() == offered_and_given, done.stderr


def test_a_deck_has_each_fault_as_often_as_it_shall_come():
    draws = [Deck(KINDS, random.Random(seed)).draw for seed in (1, 1, 2)]
    first, same, other = ([draw() for _ in range(2 * sum(KINDS.values()))] for draw in draws)
    assert first == same != other
    assert all(first.count(kind) == other.count(kind) == 2 * times for kind, times in KINDS.items())
    assert set(LASTS_S) == set(KINDS) - {"join"}


def test_faults_wait_for_a_majority_and_joins_end(tmp_path, monkeypatch):
    options = {"options": [], "faults": ["join"], "every_s": 0, "patience_s": 1, "seed": 0, "joins": 1}
    swarm = Swarm(tmp_path / "s", workers=4, rounds=9, **options)
    monkeypatch.setattr(Machine, "start", lambda machine, peers: None)
    monkeypatch.setattr(Swarm, "left_s", lambda swarm: 1000)
    monkeypatch.setattr(Swarm, "befall", lambda swarm, victim, kind: swarm.note(kind, victim))
    whole = []
    monkeypatch.setattr(Swarm, "trains", lambda swarm, machine: machine.index in whole)
    swarm.machines[0].rows = [row(1) | {"alive": 4}]
    swarm.next_fault, whole = 0, [0, 1, 2]
    swarm.strike()
    assert not swarm.events, "two of four are no majority"
    swarm.machines[1].rows = [row(2) | {"alive": 3}]
    swarm.strike()
    swarm.machines[1].rows = [row(3) | {"alive": 4}]
    whole = [0, 1, 2, 3]
    swarm.strike()
    assert [event["kind"] for event in swarm.events] == ["join", "kill"] and len(swarm.machines) == 5
    assert swarm.events[1]["machine"] in whole


def row(number, *, peers=3, failed=None, slow_hash="a", fragment=0):
    return {
        **{"event": "round", "round": number, "fragment": fragment, "failed": failed},
        **{"peers": peers, "slow_hash": slow_hash},
    }


def report(*machines, events=(), seconds=(0, 2, 4)):
    return faults_report.report(machines, {n + 1: 100.0 + s for n, s in enumerate(seconds)}, list(events))


def test_a_failed_round_counts_nowhere():
    """It failed for one machine, with no peers, and landed on the other."""
    record = report([row(1), row(2), row(3)], [row(1), row(2, peers=0, failed="no", slow_hash="b"), row(3)])
    assert record["contributed"] == [3, 6, 9] and record["hashes_by_round_differ"] == []


def test_replicas_are_compared_fragment_by_fragment():
    one = [row(n, fragment=f, slow_hash=f"{n}{f}", peers=2 + f) for n in (1, 2, 3) for f in (0, 1)]
    assert report(one, one)["hashes_by_round_differ"] == [] and report(one, one)["contributed"] == [3, 6, 9]
    differs = [*one[:2], row(2, slow_hash="x"), *one[3:]]
    assert report(one, differs)["hashes_by_round_differ"] == [2]


def test_a_fault_costs_all_the_time_until_the_next_one():
    """Rounds of 2 s. A kill late in a round makes the next one last 10; a freeze two rounds longer by 3 and by 1."""
    ends = [0, 2, 4, 14, 16, 18, 23, 26, 28, 30, 32]
    events = [{"s": 3.9, "kind": "kill"}, {"s": 5.0, "kind": "thawed"}, {"s": 18.5, "kind": "freeze"}]
    record = report([row(n + 1) for n in range(len(ends))], events=events, seconds=ends)
    assert record["fault_costs_s"] == {"kill": [8.0], "freeze": [4.0]}
    assert (record["round_s_median"], record["round_s_longest"]) == (2, 10)


def test_a_kill_costs_the_longer_of_its_two_rounds_alone_or_beside_others():
    """Rounds of 2 s. One kill makes its own round last 3, one the next one 6 while another machine is frozen, one comes
    when that one is back, and one too late to be in a round."""
    kinds = {
        4.5: ("kill", 0),
        9.5: ("freeze", 1),
        12.5: ("kill", 2),
        19.5: ("thawed", 1),
        24.0: ("kill", 1),
        30: ("kill", 0),
    }
    events = [{"s": s, "kind": kind, "machine": machine} for s, (kind, machine) in kinds.items()]
    record = {"round_seen_s": [0, 2, 4, 7, 9, 11, 13, 19, 21, 23, 25, 27], "round_s_median": 2, "events": events}
    assert faults_report.kill_costs_s(record) == {"alone": [1, 0], "beside": [4]}


def test_a_loss_is_that_of_its_round_even_if_earlier_rounds_are_missing():
    """Round 3 landed nowhere: the evaluation after round 4 is after 6 payloads."""
    landed = [row(number, peers=2) for number in (1, 2, 4)]
    validation = {"event": "validation", "round": 4, "val_loss": 2.0}
    record = faults_report.report([[*landed, validation]], {1: 0.0, 2: 1.0, 4: 2.0}, [])
    assert record["round_numbers"] == [1, 2, 4] and record["contributed"] == [2, 4, 6]
    assert faults_report.loss_at(record, 6) == 2.0


def test_losses_are_compared_at_equal_payloads():
    """Three payloads a round against two: after 12 of them, between the evaluations after rounds 5 and 10."""
    fire = {"contributed": [2 * n for n in range(1, 11)], "losses": [{0: 9.0, 5: 3.0, 10: 2.0}, {5: 3.0}]}
    calm = {"contributed": [3, 6, 9, 12], "losses": [{"0": 9.0, "4": 2.5}]}
    assert faults_report.compared(fire, calm) == pytest.approx({"loss": 2.8, "calm_loss": 2.5, "compared_at": 12})
