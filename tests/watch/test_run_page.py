"""The page of one run: rows in, page out. The numbers follow from those in tests/support/watch_rows.py."""

from __future__ import annotations

from typing import Any

import pytest

from outerloop.watch.model.run_state import Surroundings
from tests.support.watch_rows import (
    PAYLOAD,
    SETTINGS,
    TOKENS,
    H,
    landed,
    page_of,
    ready,
    run_rows,
    said,
    state_of,
    status,
    steps,
)


def test_the_header_states_progress_cost_and_time_left():
    """3 of 10 rounds of 10 s and 4 steps; 125 bytes for 1000 parameters are 1 bit; 6 of 8 s in inner steps."""
    run = page_of(run_rows(3))["run"]
    assert (run["state"], run["reason"], run["cure"]) == ("running", "", "")
    assert (run["round"], run["rounds"], run["step"], run["steps"]) == (3, 10, 3 * H, 10 * H)
    assert (run["tokens"], run["tokens_total"]) == (2 * 3 * H * TOKENS, 2 * 10 * H * TOKENS)
    assert run["eta_s"] == 7 * 10.0 and run["elapsed_s"] == 30.1
    assert (run["bits_per_param_per_round"], run["bits_per_param_per_step"]) == (1.0, 0.25)
    assert (run["utilization"], run["bytes_sent"], run["params"]) == (0.75, 2 * 2 * PAYLOAD * 3, 1000)
    assert (run["loss"], run["val_loss"], run["tokens_per_s"]) == (2.5, 2.0, 200.0)
    assert (run["recipe"], run["model"]) == ("sparseloco", "llama, 4 layers")


def test_a_worker_that_joined_late_costs_and_trains_as_much_per_round_as_the_others():
    """It joins after round 6 and has landed rounds 7 and 8 of 10; it has trained on no tokens of the rounds before."""
    rows = [{"event": "state", "worker": 0, "step": 6 * H}, ready(0, "000-a") | {"step": 6 * H}]
    for number in (7, 8):
        rows += [row | {"tokens": row["tokens"] - 6 * H * TOKENS} for row in steps(0, number, loss=2.0)]
        rows.append(landed(0, number))
    run = page_of(rows)["run"]
    assert (run["bits_per_param_per_round"], run["bits_per_param_per_step"], run["steps"]) == (1.0, 0.25, 10 * H)
    assert (run["tokens"], run["tokens_total"]) == (2 * H * TOKENS, 4 * H * TOKENS)


def test_rounds_without_a_payload_and_steps_without_training_change_no_prediction():
    """The worker is away in rounds 3 to 6: it lands 3 without sending, then loads the state of round 6."""
    rows = [*run_rows(2), landed(0, 3, payload_bytes=0, took_part=False)]
    rows.append({"event": "state", "worker": 0, "step": 6 * H})
    for number in (7, 8):
        rows += [row | {"tokens": row["tokens"] - 4 * H * TOKENS} for row in steps(0, number, loss=2.0)]
        rows.append(landed(0, number))
    run = page_of(rows)["run"]
    assert (run["bits_per_param_per_round"], run["steps"]) == (1.0, 10 * H)
    assert run["tokens_total"] == (6 + 10) * H * TOKENS, "6 rounds of the first worker, 10 of the second"


def test_fragments_of_one_round_are_one_round():
    """2 fragments of 125 bytes: 2 bits per parameter and round, also while the second has not landed."""
    state = state_of([ready(0, "000-a")], SETTINGS | {"schedule.fragments": 2, "schedule.delay": 1})
    for number, fragment in ((1, 0), (1, 1), (2, 0)):
        step = H * number - (H // 2 if not fragment else 0)
        state.add({**steps(0, number, loss=2.0)[0], "step": step, "tokens": step * TOKENS})
        state.add(landed(0, number, fragment=fragment, step=step + 1))
        run = state.page(Surroundings(name="mine", now_s=100.0, updated_s=99.0))["run"]
        assert (run["bits_per_param_per_round"], run["bits_per_param_per_step"]) == (2.0, 0.5)
        assert (run["steps"], run["tokens_total"]) == (10 * H + 1, (10 * H + 1) * TOKENS)


def test_a_schedule_that_adapts_predicts_the_steps_from_the_landed_rounds():
    state = state_of([ready(0, "000-a")], SETTINGS | {"schedule.sync_max": 9})
    around = Surroundings(name="mine", now_s=100.0, updated_s=99.0)
    assert state.page(around)["run"]["steps"] is None
    state.add(landed(0, 2, step=10))
    assert state.page(around)["run"]["steps"] == 50 and state.page(around)["run"]["bits_per_param_per_step"] == 0.2


def test_a_run_without_rows_is_starting():
    page = page_of([], updated_s=None)
    assert page["run"]["state"] == "starting" and page["peers"] == [] and page["phase"] is None
    assert page["run"]["eta_s"] is None and page["run"]["updated_s"] is None


@pytest.mark.parametrize(
    ("more", "around", "state", "reason"),
    [
        ([], {"results": {"val_loss": 2.0}}, "finished", ""),
        ([], {"updated_s": -100.0}, "silent", "no new record for more than two minutes"),
        (
            [{"event": "error", "worker": 0, "step": 1, "text": "Traceback\nOSError: full\n"}],
            {},
            "died",
            "OSError: full",
        ),
        ([{"event": "left", "worker": w, "step": 12} for w in range(2)], {}, "stopped", "no summary.json"),
        ([], {"died": "no GPU"}, "died", "no GPU"),
    ],
)
def test_the_state_of_a_run_has_a_reason_and_a_cure(more, around, state, reason):
    run = page_of([*run_rows(3), *more], **around)["run"]
    assert run["state"] == state and reason in run["reason"]
    assert bool(run["cure"]) == (state != "finished")


def test_an_error_before_a_resumed_session_is_forgotten():
    error = {"event": "error", "worker": 0, "step": 1, "text": "OSError: disk full"}
    assert page_of([error, *run_rows(1)])["run"]["state"] == "running"


def test_a_peer_has_its_own_numbers():
    first, second = page_of(run_rows(3))["peers"]
    assert (first["name"], first["id"], first["state"]) == ("000-a", "a", "training")
    assert (first["round"], first["step"], first["loss"]) == (3, 3 * H, 2.0)
    assert (first["samples"], first["bytes_sent"], first["bytes_received"]) == (3 * H * TOKENS // 32, 750, None)
    assert (first["late_s"], second["late_s"]) == (0.0, 1.5)
    assert first["relayed"] is None, "it has stated no address"


@pytest.mark.parametrize(
    ("address", "relayed"),
    [("/ip4/192.0.2.1/tcp/4/p2p/x", False), ("/ip4/192.0.2.1/tcp/4/p2p/r/p2p-circuit/p2p/x", True)],
)
def test_an_address_says_whether_a_peer_is_relayed(address, relayed):
    row = {"event": "address", "worker": 0, "step": 0, "addresses": [address]}
    peer = page_of([*run_rows(1), row])["peers"][0]
    assert peer["relayed"] is relayed and peer["address"].startswith("/ip4/192.0.2.1/tcp/4")


@pytest.mark.parametrize(
    ("row", "state", "reason"),
    [
        (
            said(0, "waiting: round 4, view 0: 1 of 2 payloads have arrived, none from 001-b"),
            "waiting",
            "001-b",
        ),
        (
            said(0, "out of step with the other peers: downloading the state of the run"),
            "catching up",
            "out of step",
        ),
        (landed(0, 4, failed="too late", took_part=False), "failed", "too late"),
        ({"event": "died", "worker": 0, "step": 12, "text": "killed by signal 9"}, "died", "signal 9"),
        ({"event": "left", "worker": 0, "step": 12}, "left", "ended before the end"),
    ],
)
def test_a_peer_in_trouble_has_a_reason_and_a_cure(row, state, reason):
    peer = page_of([*run_rows(3), row])["peers"][0]
    assert peer["state"] == state and reason in peer["reason"] and peer["cure"]


def test_a_peer_that_waited_trains_again_after_the_round():
    rows = [*run_rows(3), said(0, "waiting: round 4, view 0: ..."), landed(0, 4)]
    assert page_of(rows)["peers"][0]["state"] == "training"
    rows = [
        *run_rows(3),
        said(0, "out of step"),
        {"event": "state", "worker": 0, "step": 12, "commit": "ab"},
    ]
    assert page_of(rows)["peers"][0]["state"] == "training"


def test_a_peer_that_returned_has_no_reason_of_its_last_session():
    rows = [*run_rows(3), {"event": "left", "worker": 0, "step": 12}, ready(0, "000-a")]
    assert (page_of(rows)["peers"][0]["state"], page_of(rows)["peers"][0]["reason"]) == ("training", "")


def test_a_peer_that_downloads_the_state_waits_for_no_round():
    rows = [
        *run_rows(3),
        said(0, "waiting: round 4, view 0: ..."),
        said(0, "out of step: downloading the state"),
    ]
    assert stage_of(rows) == ("", "out of step: downloading the state")


def stage_of(rows) -> tuple[str, str]:
    phase = page_of(rows)["phase"]
    return next((stage["name"] for stage in phase["stages"] if stage["active"]), ""), phase["text"]


def test_the_stage_follows_the_steps_of_the_worker_that_is_furthest_behind():
    rows = run_rows(3)
    assert stage_of(rows) == ("inner steps", "inner step 0 of 4")
    both = [*steps(0, 4, loss=1.0), *steps(1, 4, loss=1.0)]
    assert stage_of([*rows, *both[:4], *both[4:6]]) == ("inner steps", "inner step 2 of 4"), "the second is at step 2"
    assert stage_of([*rows, *both]) == ("gather", "waits for the payloads of round 4")


def test_the_strip_says_how_many_wait_for_the_last_worker():
    rows = [
        *run_rows(3),
        *steps(0, 4, loss=1.0),
        said(0, "waiting: round 4, view 0: ..."),
        steps(1, 4, loss=1.0)[0],
    ]
    assert stage_of(rows) == ("inner steps", "1 peer waits for 001-b: inner step 1 of 4")


@pytest.mark.parametrize(("event", "words"), [("died", "has died"), ("left", "has left")])
def test_the_strip_names_a_worker_for_which_the_round_may_still_wait(event, words):
    """exchange.absent_rounds is 2, so two rounds may wait for a worker that was killed in round 4."""
    settings = {**SETTINGS, "exchange.absent_rounds": 2}
    gone = {"event": event, "worker": 1, "step": 12, "text": "worker 1 ended with code -9"}
    rows = [*run_rows(3), *steps(0, 4, loss=1.0), gone]
    for number, expected in ((3, f"waits for the payloads of round 4; 001-b {words}"), (6, "inner step 0 of 4")):
        rows += [landed(0, later) for later in range(4, number + 1)]
        phase = state_of(rows, settings).page(Surroundings(name="mine", now_s=100.0, updated_s=99.0))["phase"]
        assert phase is not None and phase["text"] == expected


@pytest.mark.parametrize(
    ("line", "stage"),
    [
        ("round 4, view 0: 1 of 2 payloads have arrived, none from 001-b", "gather"),
        ("round 4, view 0: 001-b has proposed a commit; payloads of 001-b have not arrived yet", "commit"),
        ("round 4, view 1: this peer has accepted the proposal; 001-b needs a majority of 2 peers", "commit"),
    ],
)
def test_the_stage_of_a_waiting_worker_is_in_its_line(line, stage):
    assert stage_of([*run_rows(3), said(0, f"waiting: {line}"), landed(1, 4)]) == (stage, f"waits: {line}")


def test_the_strip_has_the_seconds_of_the_last_round():
    stages = page_of(run_rows(3))["phase"]["stages"]
    assert {stage["name"]: stage["seconds"] for stage in stages} == {
        "inner steps": 6.0,
        "launch": 0.25,
        "gather": 2.0,
        "commit": None,
        "land": 0.5,
    }


def test_the_timeline_shows_who_was_late_failed_or_left_out():
    """Ready at 30 - 2.5 and 30 - 1 s; in round 4 the second was left out, in round 5 it failed."""
    rows = [*run_rows(3), landed(0, 4), landed(1, 4, took_part=False), landed(0, 5), landed(1, 5, failed="gone")]
    page, timeline = page_of(rows), page_of(rows)["timeline"]
    assert timeline["rounds"] == [1, 2, 3, 4, 5] and [peer["name"] for peer in page["peers"]] == ["000-a", "001-b"]
    assert timeline["cells"] == [[0.0] * 5, [1.5, 1.5, 1.5, "absent", "failed"]]


def test_the_timeline_keeps_fifty_rounds():
    timeline = page_of(run_rows(60))["timeline"]
    assert timeline["rounds"] == list(range(11, 61)) and len(timeline["cells"][0]) == 50


def curve(page, name) -> dict[str, Any]:
    return next(curve for curve in page["curves"] if curve["name"] == name)


def test_curves_have_every_axis():
    page = page_of(run_rows(3))
    loss = curve(page, "validation loss")
    assert (loss["step"], loss["y"]) == ([4, 8, 12], [4.0, 3.0, 2.0])
    assert (loss["tokens"], loss["bytes"], loss["time_s"]) == ([512, 1024, 1536], [250, 500, 750], [10.1, 20.1, 30.1])
    training = curve(page, "training loss")
    assert training["step"][:4] == [1, 2, 3, 4] and curve(page, "utilization")["y"] == [0.75] * 3


def test_the_training_loss_is_the_mean_of_the_workers_at_a_step():
    """4 and 5 in round 1, if both log a step before either logs the next."""
    rows = [row for pair in zip(steps(0, 1, loss=4.0), steps(1, 1, loss=5.0), strict=True) for row in pair]
    done = {"event": "done", "worker": 0, "step": 4, "peer": "000-a"}
    assert curve(page_of([*rows, done]), "training loss")["y"] == [4.5] * 4


def test_values_that_adapt_become_curves():
    """The lines of schedule/adaptive.py and compress/bandwidth_topk.py."""
    rows = [
        *run_rows(1),
        status(
            0, "schedule: H 15 -> 18 inner steps, because the agreement of the payloads is 0.613, above 0.5", step=4
        ),
        status(0, "compress: k 16 -> 32 per chunk: sending 1 MB took 2 s", step=4),
    ]
    page = page_of(rows)
    assert [curve(page, name)["y"] for name in ("H", "k", "agreement")] == [[15, 18], [16, 32], [0.613]]


def test_the_spread_of_replicas_is_a_curve():
    row = {"event": "validation", "step": 4, "round": 1, "tokens": 9, "val_loss": 3.0, "spread": 0.25, "wall_s": 1.0}
    assert curve(page_of([*run_rows(1), row]), "spread of replicas")["y"] == [0.25]


def test_a_long_curve_keeps_its_ends_in_bounded_memory():
    rows = [row for number in range(1, 1001) for row in steps(0, number, loss=float(number))]
    loss = curve(page_of([*rows, {"event": "done", "worker": 0, "step": 4000}]), "training loss")
    assert len(loss["y"]) <= 402 and (loss["step"][0], loss["step"][-1], loss["y"][-1]) == (1, 4000, 1000.0)
    assert loss["step"] == sorted(loss["step"])


def kinds(rows) -> list[str]:
    return [entry["kind"] for entry in page_of(rows)["events"]]


def test_the_log_names_what_happened():
    rows = [
        ready(0, "000-a"),
        status(0, "left out, 001-b sent a payload of 9 bytes"),
        status(0, "001-b has weights that differ from those of most peers, and must load theirs"),
        said(0, "waiting: round 1, view 0: ..."),
        status(0, "anything else"),
        landed(0, 1, failed="too late"),
        {"event": "state", "worker": 0, "step": 4},
        {"event": "saved", "worker": 0, "step": 4},
        {"event": "saved", "worker": 1, "step": 4},
        {"event": "died", "worker": 1, "step": 4, "text": "killed"},
        {"event": "left", "worker": 1, "step": 4},
        {"event": "done", "worker": 0, "step": 8},
        {"event": "left", "worker": 0, "step": 8},
    ]
    assert kinds(rows) == [
        *("joined", "refused", "diverged", "waiting", "note", "failed", "caught up", "saved", "killed", "finished")
    ]


def test_the_log_keeps_the_last_events_with_their_numbers():
    events = page_of([status(0, f"line {i}") for i in range(1000)])["events"]
    assert len(events) == 300 and (events[0]["number"], events[-1]["text"]) == (701, "line 999")


def test_a_schedule_without_a_fixed_h_has_no_countdown():
    settings = SETTINGS | {"schedule.sync_max": 9}
    state = state_of([*run_rows(1), *steps(0, 2, loss=1.0)], settings)
    strip = state.strip([state.workers[0]])
    assert strip is not None and strip["text"] == "4 inner steps since the last landing"
