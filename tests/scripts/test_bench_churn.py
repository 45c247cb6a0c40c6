"""The benchmark of processes that come and go: its plan keeps its promises, and its checks find what they look for."""

import argparse
import json
import math
import os
import signal
import subprocess
import sys
from itertools import accumulate, islice

import bench_churn
import churn_report
import pytest
from benchmark_records import write_records
from churn_plan import ARRIVE_S, AWAY_S, Stay, calm_stays, is_killed, stays
from churn_swarm import OWN, ChurnSwarm, Visitor


def row(number, *, peers=3, took_part=True, failed="", commit=None, slow_hash="a"):
    return {
        **{"event": "round", "round": number, "failed": failed, "peers": peers, "took_part": took_part},
        **{"commit": commit or f"commit {number}", "slow_hash": slow_hash, "fragment": 0, "wall_s": float(number)},
    }


def test_stays_and_absences_are_between_their_limits():
    first, *later = drawn = list(islice(stays(3, alive_s=(300, 1200), seed=0), 100))
    assert first.away_s == 3 * ARRIVE_S
    assert all(AWAY_S[0] <= stay.away_s <= AWAY_S[1] for stay in later)
    assert all(300 <= stay.alive_s <= 1200 for stay in drawn)
    assert 600 < sum(stay.alive_s for stay in drawn) / 100 < 900, "the mean of a uniform distribution is 750"


def test_stays_depend_on_the_seed_and_the_process_alone():
    one, same, other_seed, other_process = (
        [stay.alive_s for stay in islice(stays(process, alive_s=(1, 2), seed=seed), 5)]
        for process, seed in ((1, 0), (1, 0), (1, 1), (2, 0))
    )
    assert one == same and one != other_seed and one != other_process


def test_calm_processes_arrive_at_the_same_times_and_stay():
    assert list(calm_stays(2)) == [Stay(2 * ARRIVE_S, math.inf)]


def test_every_fifth_departure_is_a_kill():
    assert [number for number in range(1, 16) if is_killed(number, kill_every=5)] == [5, 10, 15]
    assert not any(is_killed(number, kill_every=0) for number in range(1, 16))


def test_a_stop_is_the_gap_beyond_the_median_round():
    """Rounds of 2 s; one gap of 9 s and one of 11 s, whose process was killed just before or in them."""
    seen = [0, 2, 4, 13, 15, 17, 28, 30, 32]
    events = [{"s": 3.0, "kind": "kill"}, {"s": 16.0, "kind": "interrupt"}, {"s": 29.0, "kind": "join"}]
    found = churn_report.gaps(seen, events, limit_s=8.0)
    assert (found["percentile_50_s"], found["longest_s"], found["longest_stop_s"]) == (2, 11, 9)
    assert (found["percentile_90_s"], found["percentile_99_s"]) == (9, 9), "of eight gaps: the seventh"
    assert found["too_long"] == [{"at_s": 17, "gap_s": 11, "stop_s": 9, "events": [events[1]]}]
    assert len(churn_report.gaps(seen, events, limit_s=6.0)["too_long"]) == 2
    assert churn_report.gaps(seen, events, limit_s=9.0)["too_long"] == []


def test_the_usual_round_is_that_of_the_time_of_the_gap():
    """100 rounds of 1 s, then 100 rounds of 5 s, one of which takes 14 s: 9 s more than those around it."""
    seen = list(accumulate([0.0, *[1.0] * 100, *[5.0] * 50, 14.0, *[5.0] * 49]))
    found = churn_report.gaps(seen, [], limit_s=9.5)
    assert (found["longest_stop_s"], found["too_long"]) == (9.0, [])


def landed(*rows):
    return churn_report.landed_rounds(rows)


def test_payloads_add_up_when_all_processes_land_all_rounds():
    one = landed(row(1, peers=2), row(2, peers=2), row(3, peers=2))
    found = churn_report.totals([one, one], survivors=[0, 1])
    assert (found["rounds"], found["payloads"], found["own_payloads"], found["not_landed_by_owner"]) == (3, 6, 6, 0)
    assert found["survivor_payloads"] == {0: 6, 1: 6} and found["rounds_of_all_survivors"] == 3
    assert found["missing"] == found["disagreeing"] == found["unaccounted"] == []


def test_a_payload_whose_owner_left_before_landing_is_accounted_for():
    """Process 1 left in round 2, which counted it; process 2 arrived with the state after round 2."""
    leaver, newcomer = landed(row(1, peers=2)), landed(row(3, peers=2))
    stays = landed(row(1, peers=2), row(2, peers=2), row(3, peers=2))
    found = churn_report.totals([stays, leaver, newcomer], survivors=[0, 2])
    assert (found["payloads"], found["own_payloads"], found["not_landed_by_owner"]) == (6, 5, 1)
    assert found["survivor_payloads"] == {0: 2, 2: 2} and found["rounds_of_all_survivors"] == 1
    assert found["unaccounted"] == []


@pytest.mark.parametrize("part", [{"peers": 2}, {"commit": "another"}, {"slow_hash": "b"}])
def test_processes_that_record_a_round_differently_are_found(part):
    one, other = landed(row(1), row(2)), landed(row(1), row(2, **part))
    assert churn_report.totals([one, other, one], survivors=[0])["disagreeing"] == [2]


def test_rounds_with_too_few_or_too_many_payloads_are_found():
    """All three processes landed both rounds: one counted four payloads, one only two of the three that took part."""
    one = landed(row(1, peers=4), row(2, peers=2))
    assert churn_report.totals([one, one, one], survivors=[0])["unaccounted"] == [1, 2]


def test_a_round_that_every_process_lost_is_missing():
    one = landed(row(1), row(2, failed="no majority"), row(3))
    assert churn_report.totals([one], survivors=[0])["missing"] == [2]


def test_rows_that_a_returning_process_writes_again_count_once():
    again = [row(1), {"event": "error", "wall_s": 1.5, "text": "x"}, row(2, failed="late")]
    assert churn_report.totals([landed(*again, *again)], survivors=[0])["payloads"] == 3
    assert churn_report.errors([[], again + again]) == [{"process": 1, "event": "error", "text": "x"}]
    assert churn_report.failed_rounds([again + again, again]) == {"late": 2}


GOOD = {
    "gaps": {"too_long": []},
    "totals": {"disagreeing": [], "missing": [], "unaccounted": [], "survivor_payloads": {0: 5, 3: 5}},
    "errors": [],
    "stays": [{"unplanned": [], "stuck": False, "left": 0}],
    "left_behind": {"processes": 0, "socket_folders": 0},
    "aborted": "",
    "loss": 1.02,
    "calm_loss": 1.0,
}


@pytest.mark.parametrize(
    ("worse", "failed"),
    [
        ({}, []),
        ({"gaps": {"too_long": [{}]}}, ["rounds never stop for longer than the grace period and one view"]),
        ({"totals": GOOD["totals"] | {"disagreeing": [3]}}, ["records of all processes agree"]),
        ({"totals": GOOD["totals"] | {"survivor_payloads": {0: 5, 3: 6}}}, ["all survivors counted the same payloads"]),
        ({"totals": GOOD["totals"] | {"unaccounted": [3]}}, ["payloads add up"]),
        ({"errors": [{}]}, ["error rows were not written"]),
        ({"stays": [GOOD["stays"][0] | {"unplanned": ["x"]}]}, ["all processes ended as planned"]),
        ({"stays": [GOOD["stays"][0] | {"stuck": True}]}, ["all processes that stayed made progress"]),
        ({"stays": [GOOD["stays"][0] | {"left": 1}]}, ["processes were not left behind"]),
        ({"left_behind": {"processes": 1, "socket_folders": 0}}, ["processes were not left behind"]),
        ({"left_behind": {"processes": 0, "socket_folders": 1}}, ["socket folders were not left behind"]),
        ({"aborted": "no round landed"}, ["rounds landed to the end"]),
        ({"loss": 1.021}, ["loss within 2 % of the calm run"]),
    ],
)
def test_each_check_fails_alone(worse, failed):
    assert [name for name, holds in churn_report.checks(GOOD | worse).items() if not holds] == failed


def test_processes_start_with_the_commands_of_a_user(tmp_path):
    host, guest = (Visitor(i, tmp_path / f"m{i}", ["inner.lr=0.01"], port=4242) for i in (0, 1))
    assert host.command([])[1:6] == ["-m", "outerloop", "host", "--name", "churn"]
    assert "inner.lr=0.01" in host.command([]) and f"run_dir={tmp_path}/m0" in host.command([])
    own = [*OWN, f"run_dir={tmp_path}/m1", "--host", "127.0.0.1"]
    assert guest.command(["/ip4/x"])[3:] == ["join", "/ip4/x", "--yes", *own]


class Sleeper(Visitor):
    """A process that waits until it is told to leave, and then exits with `code`."""

    code = 130

    def command(self, initial_peers):
        program = (
            "import signal, sys, time\n"
            f"signal.signal(signal.SIGINT, lambda *_: sys.exit({self.code}))\n"
            "print('ready', flush=True)\ntime.sleep(600)"
        )
        return [sys.executable, "-c", program, f"run_dir={self.folder}"]


def sleeping(tmp_path, *, killed, code=130):
    """A swarm of one process that has just been told to leave."""
    swarm = ChurnSwarm(tmp_path / "s", plan=[calm_stays(0)], options=[], patience_s=1, seed=0)
    visitor = Sleeper(0, tmp_path / "s/m0", [])
    visitor.code, swarm.visitors = code, [visitor]
    swarm.admit(visitor)
    text = visitor.folder.with_suffix(".txt")
    while "ready" not in text.read_text():
        assert visitor.process.poll() is None
    swarm.dismiss(visitor, killed=killed)
    visitor.process.wait()
    swarm.manage(visitor)
    return swarm


@pytest.mark.parametrize(("killed", "name", "code"), [(False, "interrupt", 130), (True, "kill", -signal.SIGKILL)])
def test_a_departure_is_recorded(tmp_path, killed, name, code):
    [stay] = sleeping(tmp_path, killed=killed).stays
    assert (stay["signal"], stay["exit"], stay["unplanned"], stay["left"]) == (name, code, [], 0)


def test_a_departure_with_another_exit_code_keeps_the_last_lines(tmp_path):
    swarm = sleeping(tmp_path, killed=False, code=1)
    assert swarm.stays[0]["unplanned"] == ["ready"] and swarm.events[-1]["kind"] == "ended with exit 1"


def test_a_departure_waits_for_a_majority_of_the_last_roster(tmp_path):
    swarm = ChurnSwarm(tmp_path / "s", plan=map(calm_stays, range(4)), options=[], patience_s=1, seed=0)
    swarm.first_seen = {7: 0.0}
    for visitor in swarm.visitors:
        visitor.record, visitor.rows = {"process": visitor.index}, [row(7) | {"alive": 4}]
        visitor.newest, visitor.joined = 7, 2
    assert swarm.can_spare(swarm.visitors[0]), "three of four are a majority"
    swarm.visitors[1].joined = 3
    assert not swarm.can_spare(swarm.visitors[0]), "one of three may not have a vote yet"
    swarm.visitors[1].joined, swarm.visitors[1].leaves_s = 2, 0.0
    assert not swarm.can_spare(swarm.visitors[0]), "two of four are not a majority"
    swarm.visitors[1].record = None
    swarm.visitors[2].rows.append(row(8) | {"alive": 3})
    assert swarm.can_spare(swarm.visitors[0]), "two of three are a majority"


def test_rows_from_before_a_stay_are_not_progress(tmp_path):
    swarm = ChurnSwarm(tmp_path / "s", plan=[calm_stays(0)], options=[], patience_s=1, seed=0)
    [visitor] = swarm.visitors
    visitor.newest, visitor.record = 5, {"start_s": 0.0, "joined_after_s": None}
    for number in (3, 5):
        swarm.record_progress(visitor, row(number))
    assert visitor.progress_s == 0.0 and visitor.record["joined_after_s"] is None
    swarm.record_progress(visitor, row(6, took_part=False))
    assert visitor.newest == 6 and visitor.record["joined_after_s"] is None
    swarm.record_progress(visitor, row(7))
    assert visitor.record["joined_after_s"] is not None


def test_a_stay_counts_from_the_first_counted_payload(tmp_path):
    swarm = ChurnSwarm(tmp_path / "s", plan=[iter([Stay(0.0, 5.0)])], options=[], patience_s=1, seed=0)
    [visitor] = swarm.visitors
    visitor.plan_next(0.0)
    swarm.began_s -= 100.0
    visitor.record = {"start_s": 20.0, "joined_after_s": None}
    assert not swarm.is_over(visitor)
    visitor.record["joined_after_s"] = 76.0
    assert not swarm.is_over(visitor), "it joined 4 s ago"
    visitor.record["joined_after_s"] = 74.0
    assert swarm.is_over(visitor)


def test_limits_of_a_stay_are_parsed():
    assert bench_churn.pair("5,20") == (5.0, 20.0)
    for text in ("5", "5,x", "20,5", "0,5"):
        with pytest.raises(argparse.ArgumentTypeError):
            bench_churn.pair(text)


@pytest.mark.long
def test_sigint_ends_the_benchmark_and_all_processes_that_it_started(tmp_path):
    program = (
        "import sys, bench_churn, churn_swarm\n"
        "churn_swarm.Visitor.command = lambda self, peers: [sys.executable, '-c',"
        " 'import time; time.sleep(600)', f'run_dir={self.folder}']\n"
        f"sys.argv = ['bench_churn.py', '--runs', {str(tmp_path)!r}, '--json', {str(tmp_path / 'x.json')!r}]\n"
        "bench_churn.main()"
    )
    bench = subprocess.Popen(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert json.loads(bench.stdout.readline())["kind"] == "join"
        host = Visitor(0, tmp_path / "churn/m0", [])
        while not host.processes():
            assert bench.poll() is None
        bench.send_signal(signal.SIGINT)
        assert "KeyboardInterrupt" in bench.communicate()[1]
        assert host.processes() == set()
    finally:
        bench.kill()
        bench.wait()


def test_only_the_calm_run_is_repeated_if_the_benchmark_was_interrupted_during_it(tmp_path):
    file = tmp_path / "records.json"
    assert bench_churn.finished(file, {"minutes": 1.0}) is None
    write_records(file, {"churn": {"rounds": 3}})
    assert bench_churn.finished(file, {"minutes": 1.0}) == {"rounds": 3}
    write_records(file, {"churn": {"rounds": 3}, "calm": {"rounds": 4}})
    assert bench_churn.finished(file, {"minutes": 1.0}) is None
