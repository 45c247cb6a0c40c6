"""Whole runs over the swarm: `outerloop train` with worker processes, and what they leave when they end, however."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import msgpack
import pytest

from outerloop.inner.data.assignment import window_starts
from outerloop.state import checkpoint
from outerloop.swarm.consensus.state import HardState
from outerloop.swarm.validation import SIGNATURE_BYTES
from tests.support.swarm.loopback import eventually
from tests.support.train_processes import family, gone, invitation, rounds_done, rows, start

FAST = "recipe=sparseloco"  # AdamW inside: Muon takes half a second a step on most CPUs


def training(process: subprocess.Popen[str], run_dir: Path) -> set[int]:
    """Wait until the run has a checkpoint; its processes."""
    assert eventually(lambda: process.poll() is not None or rounds_done(run_dir) >= 2, limit_s=90)
    assert process.poll() is None, process.communicate()[0]
    assert eventually(lambda: checkpoint.newest_valid(run_dir, 2)[0] is not None, limit_s=30)
    pids = family(process.pid)
    assert len(pids) >= 5, "the parent, two workers, two daemons"
    return pids


@pytest.mark.slow  # in the default suite: that a killed worker does not stop the others, and tests/exchange
def test_three_workers_train_and_agree(tmp_path: Path) -> None:
    process = start(tmp_path / "run", "workers=3", "rounds=3")
    said, _ = process.communicate()
    assert process.returncode == 0, said
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["workers"] == 3 and summary["rounds_failed"] == 0
    assert len(summary["slow_hash"]) == 3 and len(set(summary["slow_hash"])) == 1
    by_round: dict[int, set[str]] = {}
    for row in rows(tmp_path / "run"):
        if row["event"] == "round":
            by_round.setdefault(row["round"], set()).add(row["slow_hash"])
            assert row["peers"] == 3 and row["refused_messages"] == 0
    assert sorted(by_round) == [1, 2, 3] and all(len(hashes) == 1 for hashes in by_round.values())
    copies = 2 * (summary["payload_bytes_per_worker"] + 3 * SIGNATURE_BYTES)
    assert summary["bytes_sent_per_worker"] == copies, "two copies of every payload, with its signature"
    assert (tmp_path / "run/hf/model.safetensors").exists()


@pytest.mark.slow  # in the default suite in one process: tests/inner/test_assignment.py and tests/scores
def test_windows_by_round_follow_from_the_chain_of_commits(tmp_path: Path) -> None:
    """Two workers train on windows without an overlap, and the rows of their run say which. They score each other."""
    options = [FAST, "workers=2", "rounds=3", "eval.every=0", "assignment=by_round", "threads=1", "checkpoint.every=1"]
    options += ["scores.payloads=1", "scores.windows=4", "exclude_accused=true"]
    process = start(tmp_path / "run", *options, "checkpoint.keep=9", "exchange.grace_s=30")
    said, _ = process.communicate()
    assert process.returncode == 0, said
    told = rows(tmp_path / "run")
    peers = {row["worker"]: row["peer"].partition("-")[2] for row in told if row["event"] == "ready"}
    chains = [
        [row["commit"] for row in told if row["event"] in ("ready", "round") and row["worker"] == worker]
        for worker in (0, 1)
    ]
    assert chains[0] == chains[1] and len(set(chains[0])) == 4 and len(set(peers.values())) == 2
    scores = [row for row in told if row["event"] == "score"]
    assert len(scores) == 2 * 3 and all(row["assigned"] is not None for row in scores)
    for number, commit in enumerate(chains[0]):
        for worker in (0, 1) if number else ():
            position = checkpoint.load(tmp_path / "run", 2 * number, worker)["trainer"]["stream"]
            assert position.keys() == {"commit", "drawn", "fingerprint"}
            assert (position["commit"], position["drawn"]) == (commit, 0), (
                "saved after a landing, which has begun other windows"
            )
    drawn = {
        (commit, peer): window_starts(bytes.fromhex(commit), peer, range(8), positions=1 << 62)
        for commit in chains[0]
        for peer in peers.values()
    }
    assert len({start for starts in drawn.values() for start in starts}) == 8 * len(drawn) == 64


@pytest.mark.slow  # in the default suite with workers as threads: test_train.py
@pytest.mark.timeout(600)
def test_ctrl_c_leaves_no_process_and_the_run_goes_on_later(tmp_path: Path) -> None:
    many = [FAST, "workers=2", "rounds=12", "checkpoint.every=1", "eval.every=0"]
    process = start(tmp_path / "run", *many)
    pids = training(process, tmp_path / "run")
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate()
    assert process.returncode == 130 and "Traceback" not in said, said
    assert gone(pids)
    again = start(tmp_path / "run", *many)
    said, _ = again.communicate()
    assert again.returncode == 0 and "resuming after inner step" in said, said
    assert len(set(json.loads((tmp_path / "run/summary.json").read_text())["slow_hash"])) == 1


@pytest.mark.slow  # in the default suite without processes: test_interrupt.py
@pytest.mark.timeout(600)
def test_ctrl_c_ends_a_machine_that_waits_for_another_one_without_its_answer(tmp_path: Path) -> None:
    shared = [FAST, "workers=1", "exchange.peers=2", "rounds=100000", "eval.every=0", "checkpoint.every=1", "threads=1"]
    first = start(tmp_path / "a", *shared)
    other = start(tmp_path / "b", *shared, invitation(first))
    assert eventually(lambda: rounds_done(tmp_path / "a") >= 2, limit_s=240)
    for pid in sorted(family(other.pid)):
        os.kill(pid, signal.SIGKILL)
    other.communicate()
    assert eventually(lambda: "1 of 2 peers are reachable" in str(rows(tmp_path / "a")[-1].get("text")), limit_s=120)
    pids = family(first.pid)
    first.send_signal(signal.SIGINT)
    said, _ = first.communicate()
    assert first.returncode == 130 and "Traceback" not in said, said
    assert "stopping without saving: 1 of 2 peers are reachable, but a majority is 2" in said, said
    assert "resumes from the last checkpoint" in said and gone(pids)


def test_kill_9_of_the_parent_leaves_no_process(tmp_path: Path) -> None:
    process = start(tmp_path / "run", FAST, "workers=2", "rounds=500", "checkpoint.every=1")
    pids = training(process, tmp_path / "run")
    process.kill()
    process.communicate()
    assert gone(pids)


def workers_of(pids: set[int]) -> list[int]:
    """Process ids by worker index."""
    found = {}
    for pid in pids:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if b"worker" in words:
            found[int(words[words.index(b"worker") + 2])] = pid
    return [found[index] for index in sorted(found)]


def folders_of_sockets(pids: set[int]) -> set[Path]:
    """Where their daemons listen to them."""
    arguments = b"\0".join(Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids).decode()
    return set(map(Path, re.findall(r"-listen=/unix(/\S+?)/p2pd\.sock", arguments)))


@pytest.mark.slow  # in the default suite without processes: tests/exchange/test_swarm_gather.py
def test_one_of_two_cannot_go_on_alone_and_it_is_told_loudly(tmp_path: Path) -> None:
    process = start(tmp_path / "run", FAST, "workers=2", "rounds=500", "checkpoint.every=1")
    pids = training(process, tmp_path / "run")
    sockets = folders_of_sockets(pids)
    assert len(sockets) == 2 and all(map(Path.exists, sockets))
    os.kill(workers_of(pids)[1], signal.SIGKILL)
    said, _ = process.communicate()
    assert not any(map(Path.exists, sockets))
    assert process.returncode == 1 and re.search(r"worker 1 ended with code -9, see .*log\.txt", said), said
    assert "1 of 2 peers are left, but the run needs at least 2" in said
    assert gone(pids)


FOUR = ["workers=4", "rounds=12", FAST, "eval.every=4", "checkpoint.every=2", "exchange.grace_s=0.5", "threads=1"]


def leading(run_dir: Path) -> int:
    """The worker that leads the round at hand, as worker 0 remembers."""
    content = (run_dir / "workers/0/identity.rounds/agreement").read_bytes()
    told = msgpack.unpackb(content)
    return int(HardState.from_bytes(content, session=told["run"], peer=told["peer"]).leader(0)[:3])


def three_of_four_finish(run_dir: Path, options: list[str], victim: Callable[[], int]) -> None:
    """One of four workers is killed after some rounds; the others train to the end and hand the model in."""
    rounds = int(next(one for one in options if one.startswith("rounds=")).partition("=")[2])
    process = start(run_dir, *options)
    assert eventually(lambda: process.poll() is not None or rounds_done(run_dir) >= rounds // 4, limit_s=240)
    pids, killed = family(process.pid), victim()
    os.kill(workers_of(pids)[killed], signal.SIGKILL)
    said, _ = process.communicate()
    assert process.returncode == 0 and f"worker {killed} ended with code -9, see" in said, said
    summary = json.loads((run_dir / "summary.json").read_text())
    assert summary["workers_died"] == [killed] and len(summary["slow_hash"]) == 3 == 2 + len(set(summary["slow_hash"]))
    last = [row for row in rows(run_dir) if row["event"] == "round" and row["round"] == rounds]
    assert [(row["peers"], row["alive"], row["expected"]) for row in last] == [(3, 3, 4)] * 3
    assert (run_dir / "hf/model.safetensors").exists() and gone(pids)
    assert max(row["round"] for row in rows(run_dir) if row["event"] == "validation") == rounds


@pytest.mark.slow  # in the default suite without processes: tests/swarm/gather/test_runner.py
@pytest.mark.timeout(600)
def test_a_killed_worker_of_four_does_not_stop_the_others(tmp_path: Path) -> None:
    short = ["workers=4", "rounds=8", FAST, "eval.every=0", "checkpoint.every=0", "exchange.grace_s=0.5", "threads=1"]
    three_of_four_finish(tmp_path / "run", short, lambda: 1)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("who", ["first", "leader"])
def test_three_of_four_finish_when_one_is_killed(tmp_path: Path, who: str) -> None:
    run_dir = tmp_path / "run"
    three_of_four_finish(run_dir, FOUR, lambda: 0 if who == "first" else leading(run_dir))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_stopped_worker_is_left_out_and_catches_up(tmp_path: Path) -> None:
    process = start(tmp_path / "run", *FOUR[:1], "rounds=40", *FOUR[2:])
    assert eventually(lambda: rounds_done(tmp_path / "run") >= 2, limit_s=90)
    victim = workers_of(family(process.pid))[2]
    os.kill(victim, signal.SIGSTOP)
    seen = rounds_done(tmp_path / "run")
    assert eventually(lambda: rounds_done(tmp_path / "run") >= seen + 4, limit_s=60), "the others go on"
    os.kill(victim, signal.SIGCONT)
    said, _ = process.communicate()
    assert process.returncode == 0, said
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["workers_died"] == [] and len(summary["slow_hash"]) == 4 and len(set(summary["slow_hash"])) == 1
    own = [row for row in rows(tmp_path / "run") if row["event"] == "round" and row["worker"] == 2]
    assert [row["round"] for row in own] == list(range(1, 41)) and not all(row["took_part"] for row in own)
    assert own[-1]["took_part"] and own[-1]["peers"] == 4


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_machine_that_was_killed_comes_back_to_a_run_that_went_on(tmp_path: Path) -> None:
    """Three machines of one worker. One is killed with all its processes; a second one is stopped, so that the third
    waits until the first is back."""
    shared = [FAST, "workers=1", "exchange.peers=3", "rounds=20", "eval.every=0", "checkpoint.every=1", "threads=1"]
    shared += ["exchange.grace_s=0.5", "schedule.sync_every=10"]
    first = start(tmp_path / "a", *shared)
    join = [*shared, invitation(first)]
    second, third = start(tmp_path / "b", *join), start(tmp_path / "c", *join)
    assert eventually(lambda: rounds_done(tmp_path / "c") >= 2, limit_s=240)
    assert eventually(lambda: checkpoint.newest_valid(tmp_path / "c", 1)[0] is not None, limit_s=30)
    for pid in sorted(family(third.pid)):
        os.kill(pid, signal.SIGKILL)
    third.communicate()
    [stopped] = workers_of(family(second.pid))
    os.kill(stopped, signal.SIGSTOP)
    third = start(tmp_path / "c", *join)
    at = rounds_done(tmp_path / "a")
    assert eventually(lambda: rounds_done(tmp_path / "a") >= at + 2, limit_s=240), "two of three go on"
    os.kill(stopped, signal.SIGCONT)
    said = [process.communicate()[0] for process in (third, second, first)]
    assert [process.returncode for process in (third, second, first)] == [0, 0, 0], said
    assert "resuming after inner step" in said[0] and "waiting: round" in said[2]
    hashes = {json.loads((tmp_path / run / "summary.json").read_text())["slow_hash"][0] for run in "abc"}
    assert len(hashes) == 1


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_newcomer_takes_part_in_a_run_that_is_under_way(tmp_path: Path) -> None:
    """Two machines train; a third one, which the run knows nothing of, comes later and ends with the same weights."""
    shared = [FAST, "workers=1", "exchange.peers=2", "rounds=150", "eval.every=0", "checkpoint.every=0", "threads=1"]
    shared += ["exchange.grace_s=0.5", "schedule.sync_every=10"]
    first = start(tmp_path / "a", *shared)
    join = [*shared, invitation(first)]
    second = start(tmp_path / "b", *join)
    assert eventually(lambda: rounds_done(tmp_path / "a") >= 2, limit_s=240)
    third = start(tmp_path / "c", *join)
    said = [process.communicate()[0] for process in (third, second, first)]
    assert [process.returncode for process in (third, second, first)] == [0, 0, 0], said
    assert "downloading the state of the run" in said[0], said[0]
    own = [row for row in rows(tmp_path / "c") if row["event"] == "round"]
    assert own[0]["round"] > 1 and own[-1]["round"] == 150 and own[-1]["took_part"] and own[-1]["peers"] == 3
    hashes = {json.loads((tmp_path / run / "summary.json").read_text())["slow_hash"][0] for run in "abc"}
    assert len(hashes) == 1


@pytest.mark.slow  # in the default suite with loops of their own: test_mixed_machines.py, test_from_recipe.py
def test_two_machines_meet_through_one_address(tmp_path: Path) -> None:
    """Two separate runs of one worker each, as on two machines, train one model on different shards."""
    shared = [FAST, "workers=1", "exchange.peers=2", "rounds=2", "log_every=1"]
    first = start(tmp_path / "a", *shared)
    second = start(tmp_path / "b", *shared, invitation(first))
    said = second.communicate()[0]
    assert second.returncode == 0, said
    assert first.wait() == 0
    a, b = (json.loads((tmp_path / run / "summary.json").read_text()) for run in "ab")
    assert a["slow_hash"] == b["slow_hash"] and a["workers"] == b["workers"] == 2
    first_loss = [next(row["loss"] for row in rows(tmp_path / run) if "loss" in row) for run in "ab"]
    assert first_loss[0] != first_loss[1]


@pytest.mark.slow  # in the default suite without the command line: test_swarm_gather.py
def test_an_unreachable_initial_peer_is_a_mistake(tmp_path: Path) -> None:
    nobody = "/ip4/127.0.0.1/tcp/9/p2p/12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp"
    process = start(tmp_path / "run", "workers=1", "exchange.peers=2", f"exchange.initial_peers=[{nobody}]")
    said, _ = process.communicate()
    assert process.returncode == 2 and "127.0.0.1/tcp/9" in said and "Traceback" not in said, said


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_machine_that_sends_the_largest_values_is_named_by_the_others_and_they_finish(tmp_path: Path) -> None:
    """The default recipe; it follows the rule as the others do, so its replica stays equal to theirs."""
    faulty = Path(__file__).parents[2] / "scripts" / "faulty"
    (tmp_path / "how").write_text("huge")
    env = {"PYTHONPATH": os.pathsep.join([str(faulty), os.environ.get("PYTHONPATH", "")])}
    env |= {"OUTERLOOP_BENCH_MISBEHAVE": str(tmp_path / "how")}
    options = ["exchange.peers=3", "rounds=4", "exchange.quorum=all", "exchange.join_timeout_s=600", "threads=1"]
    first = start(tmp_path / "honest", "workers=2", *options)
    second = start(tmp_path / "hostile", "workers=1", *options, invitation(first), env=env)
    said, there = first.communicate()[0], second.communicate()[0]
    assert first.returncode == second.returncode == 0, said + there
    honest, hostile = (json.loads((tmp_path / name / "summary.json").read_text()) for name in ("honest", "hostile"))
    assert set(honest["slow_hash"]) == set(hostile["slow_hash"]) and len(set(honest["slow_hash"])) == 1
    landed = [row for row in rows(tmp_path / "honest") if row["event"] == "round"]
    assert len(landed) == 8 and all(row["refused"] == 1 and row["peers"] == 2 for row in landed)
    assert landed[-1]["refused_messages"] >= 3, "each of them is a strike"
    [own] = {row["peer"] for row in rows(tmp_path / "hostile") if row["event"] == "done"}
    assert f"left out, {own}: its norm is" in said
    assert not [row for row in rows(tmp_path / "hostile") if row["event"] == "round" and row["took_part"]]
