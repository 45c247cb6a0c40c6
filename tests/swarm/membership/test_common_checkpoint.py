"""Which checkpoint the peers of a resumed run go on from: the newest that all hold, whatever each one's newest is."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import msgpack
import pytest

from outerloop.config import load, run_directory
from outerloop.exchange.swarm_gather import SwarmGather
from outerloop.sinks.jsonl import Jsonl
from outerloop.state import checkpoint
from outerloop.swarm.membership.common_checkpoint import (
    ANY,
    MAX_HELD,
    common,
    objection,
    own_step,
    pack_held,
    unpack_held,
    without,
)
from outerloop.swarm.membership.opening_statements import MAX_STATEMENT_BYTES
from outerloop.types import Round, UserError
from tests.support.swarm.loopback import Make, eventually, together
from tests.support.train_processes import invitation, rounds_done, start

pytestmark = pytest.mark.long


def chosen(*held: Any) -> tuple[int, str] | None:
    """What peers a, b, c ... go on from that hold these."""
    return common(dict(zip("abcdefg", held, strict=False)), members=len(held))


def test_the_newest_that_all_hold_with_one_hash() -> None:
    a, b = {40: "x", 30: "w"}, {30: "w", 20: "v"}
    assert chosen(a, a) == (40, "x") and chosen(a, b) == chosen(a, a, b) == (30, "w")
    assert chosen(a, b, ANY) == (30, "w"), "who can go back to nothing is checked when they meet"
    assert chosen(a, {40: "y", 30: "w"}) == (30, "w"), "two different states of one step"
    assert chosen({}, {}) is None and chosen(ANY, {}) is None and chosen(ANY, ANY, ANY) is None


def test_equal_weights_are_one_generation_whatever_the_step() -> None:
    a, b = {270: "v", 300: "w"}, {540: "v", 600: "w"}
    best = chosen(a, b)
    assert best == (600, "w") and [own_step(own, best) for own in (a, b)] == [300, 600]
    assert objection(a, best) == objection(b, best) == "" and without({"a": a, "b": b}, best) == []
    assert chosen(a, {540: "v"}) == (540, "v") and chosen(a, a, b) == (300, "w")
    assert own_step(b, (300, "w")) == 600 and own_step({7: "u"}, (300, "w")) is None
    assert chosen({10: "w", 20: "w"}, {10: "w"}) == (10, "w"), "a round between the two steps may have failed"
    assert own_step({10: "w", 20: "w"}, (10, "w")) == 10 and own_step({10: "w", 20: "w"}, (9, "w")) == 20
    assert own_step({0: "w"}, (9, "w")) is None, "initial weights that others gave are no generation"
    with pytest.raises(UserError, match="no checkpoint is held by more than half"):
        chosen({10: ""}, {20: ""})


def test_those_that_hold_only_the_initial_weights_of_others_start_from_scratch_like_these() -> None:
    taken = {0: "x"}
    assert chosen({}, taken) is None and chosen({}, taken, taken) is None and chosen({}, taken, {}) is None
    assert objection(taken, None) == "" and without({"a": {}, "b": taken}, None) == []
    assert chosen({10: "w", 0: "x"}, {10: "w"}) == (10, "w")
    assert "this machine holds step 0:" in objection(taken, (10, "w"))
    assert "this machine holds step 0, 10:" in objection({10: "w", 0: "x"}, None)


@pytest.mark.parametrize("lie", [{}, {7: "l"}, {1 << 40: "l"}, {40: "l", 30: "l"}, ANY, None])
def test_a_minority_with_other_checkpoints_does_not_stop_the_majority(lie: Any) -> None:
    honest = {"a": {40: "x", 30: "w"}, "b": {40: "x", 30: "w"}, "c": {40: "x", 30: "w"}}
    told_here = honest | ({} if lie is None else {"d": lie})
    assert common(told_here, members=4) == (40, "x")
    assert [line for line in without(told_here, (40, "x")) if "without d" in line] == without(told_here, (40, "x"))
    assert len(without(told_here, (40, "x"))) == (lie not in (ANY, None))
    assert common({"a": {}, "b": {}, "c": {}, **({} if lie is None else {"d": lie})}, members=4) is None
    assert common({**honest, "d": {30: "w"}}, members=4) == (30, "w"), "it can choose among what all hold"


def test_one_that_cannot_go_on_with_most_is_told_why() -> None:
    assert objection(ANY, (30, "w")) == objection({30: "w"}, (30, "w")) == objection({}, None) == ""
    for own in ({40: "x"}, {30: "v"}, {}):
        assert "restart it once they have trained" in objection(own, (30, "w"))
    assert "most peers hold no checkpoint and start from scratch" in objection({30: "w"}, None)


def test_none_in_common_names_who_holds_what_and_what_to_type() -> None:
    with pytest.raises(UserError) as error:
        chosen({40: "x", 30: "w"}, {30: "w"}, {}, {5: "u"})
    assert str(error.value).startswith(
        "no checkpoint is held by more than half of the 4 peers: a holds step 30, 40; b holds step 30; c holds no "
        "checkpoint; d holds step 5. Step 30 is held by a, b: on these peers, set exchange.reform=true "
        "exchange.peers=2, and start the others once these train"
    )
    with pytest.raises(UserError, match="1 of 2 peers have stated which checkpoints they hold, too few to start"):
        common({"a": {}}, members=2)


@pytest.mark.parametrize(
    "value", [None, "all", {}, 5, [[1]], [["1", "x"]], [[1, b"x"]], [[-1, "x"]], [[True, "x"]], [[1, "x" * 17]],
              [[1, "\x1b"]], [[n, "x"] for n in range(MAX_HELD + 1)]]
)  # fmt: skip
def test_a_malformed_list_of_checkpoints_is_ignored(value: Any) -> None:
    assert unpack_held(msgpack.packb(value)) is None and unpack_held(b"\xc1") is None
    assert (
        unpack_held(pack_held({3: "x", 1: ""})) == {3: "x", 1: ""}
        and unpack_held(pack_held(ANY)) == ANY
        and unpack_held(pack_held({})) == {}
    )
    assert len(pack_held({(1 << 40) - step: "x" * 16 for step in range(MAX_HELD)})) <= MAX_STATEMENT_BYTES


def test_two_of_three_go_on_with_what_they_hold_and_the_third_is_told_so(make: Make) -> None:
    held = [{20: "x", 10: "w"}, {10: "w", 5: "v"}, {7: "u"}]
    said: list[str] = []
    trio = [make(peers=3, on_status=said.append) for _ in range(3)]
    ends = together(trio, lambda one: one.form(held[trio.index(one)]))
    assert ends[:2] == [10, 10] and "most peers resume from step 10" in str(ends[2])
    assert sum("resumes from step 10 without 002-" in line for line in said) == 2


def test_peers_with_rounds_of_different_length_resume_from_their_own_steps(make: Make) -> None:
    held = [{270: "v", 300: "w"}, {540: "v", 600: "w"}]
    pair = [make(peers=2) for _ in range(2)]
    assert together(pair, lambda one: one.form(held[pair.index(one)])) == [300, 600]


def test_peers_killed_before_their_first_checkpoint_start_from_scratch_together(make: Make) -> None:
    held: list[dict[int, str]] = [{}, {0: "x"}, {0: "x"}]
    trio = [make(peers=3) for _ in range(3)]
    assert together(trio, lambda one: one.form(held[trio.index(one)])) == [None, None, None]


def test_a_worker_holds_its_last_two_whole_generations(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        checkpoint.save(tmp_path, step, 0, {"x": step}, slow_hash=f"h{step}")
        checkpoint.seal(tmp_path, step)
    assert checkpoint.resumable_steps(tmp_path, 0, newest=30) == {30: "h30", 20: "h20"}
    assert (
        checkpoint.resumable_steps(tmp_path, 0, newest=20) == {20: "h20"}
        and checkpoint.resumable_steps(tmp_path, 0, newest=None) == {}
    )
    (checkpoint.generation(tmp_path, 30) / "worker-0.pt").write_bytes(b"")
    assert checkpoint.resumable_steps(tmp_path, 0, newest=30) == {20: "h20"}


def test_generations_from_before_the_run_went_back_do_not_push_out_new_ones(tmp_path: Path) -> None:
    for step in (10, 20, 15):
        checkpoint.save(tmp_path, step, 0, {"x": step})
        checkpoint.seal(tmp_path, step)
    assert checkpoint.sealed(tmp_path) == [15, 10]


def test_measurements_go_back_too(tmp_path: Path) -> None:
    rows = Jsonl(tmp_path / "m", earlier=[{"step": 1}])
    rows.write({"step": 2})
    rows.rewrite([{"step": 1}])
    rows.write({"step": 9})
    assert [json.loads(line)["step"] for line in (tmp_path / "m").read_text().splitlines()] == [1, 9]


def test_another_number_of_peers_takes_reform(tmp_path: Path) -> None:
    options = [f"run_dir={tmp_path}/a", "exchange=swarm_gather", "workers=1"]
    run_directory.open_run(load.load([*options, "exchange.peers=3"])).close()
    with pytest.raises(UserError, match=r"peers is 3 there and 2 here: set exchange.peers=3, exchange.reform=true if"):
        run_directory.open_run(load.load([*options, "exchange.peers=2"]))
    with pytest.raises(UserError, match="seed is 0 there and 1 here"):
        run_directory.open_run(load.load([*options, "exchange.peers=2", "exchange.reform=true", "seed=1"]))
    run_directory.open_run(load.load([*options, "exchange.peers=2", "exchange.reform=true"])).close()
    run_directory.open_run(load.load([*options, "exchange.peers=2"])).close()


def test_peers_form_at_the_newest_checkpoint_that_both_hold_and_a_lost_one_comes_back_late(
    make: Make, tmp_path: Path
) -> None:
    """Three begin, one is lost, two form anew as a run of two; the third one's memory is of the old session."""
    trio = [make(peers=3) for _ in range(3)]
    together(trio, SwarmGather.join)
    together(trio, lambda one: one.start(one.peer.encode(), Round(0)).wait(30))
    old = trio[0].members.session
    together(trio, SwarmGather.abort)
    said: list[str] = []
    identity = [str(tmp_path / f"identity{index}") for index in range(3)]
    a = make(peers=2, worker=0, identity_path=identity[0], initial_peers=[], reform=True, on_status=said.append)
    b = make(peers=2, worker=1, identity_path=identity[1], initial_peers=a.address, reform=True)
    steps = together([a, b], lambda one: one.form({20: "x", 10: "w"} if one is a else {10: "w", 5: "v"}))
    assert steps == [10, 10] and "make sure that they have stopped" in said[0]
    together([a, b], lambda one: one.join(Round(1)))
    assert a.members.session == b.members.session != old
    landed = together([a, b], lambda one: one.start(b"", Round(1)).wait(30))
    assert [one.peer for one in landed[0]] == [a.peer, b.peer]
    c = make(peers=2, worker=2, identity_path=identity[2], initial_peers=a.address, reform=True)
    assert c.form({20: "x"}) == 20 and c.late_joiner and c.members.session == a.members.session
    c.join(Round(2))
    assert c.alive == 0, "it remembers another session, so it votes in none before it has the state"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_goes_on_without_a_machine_that_is_lost_and_with_it_when_it_comes_back(tmp_path: Path) -> None:
    """Three machines are killed; one has an older newest checkpoint; two go on with one command, then the third."""
    shared = ["workers=1", "eval.every=0", "checkpoint.every=1", "threads=1", "schedule.sync_every=10"]
    shared += ["exchange.grace_s=0.5"]
    begin = [*shared, "rounds=100", "exchange.peers=3"]
    first = start(tmp_path / "a", *begin)
    joined = invitation(first)
    machines = [first, *(start(tmp_path / run, *begin, joined) for run in "bc")]
    assert eventually(lambda: all(rounds_done(tmp_path / run) >= 4 for run in "abc"), limit_s=240)
    for process in machines:
        process.send_signal(signal.SIGINT)
    for process in machines:
        process.communicate()
    held = {run: checkpoint.sealed(tmp_path / run) for run in "abc"}
    common_step = sorted(set(held["a"]) & set(held["b"]))[0]
    for run in "b":
        for step in [one for one in held[run] if one > common_step]:
            checkpoint.drop(tmp_path / run, step)
    again = [*shared, "rounds=100", "exchange.peers=2", "exchange.reform=true"]
    first = start(tmp_path / "a", *again)
    joined = invitation(first)
    second = start(tmp_path / "b", *again, joined)
    done = common_step // 10
    assert eventually(lambda: rounds_done(tmp_path / "b") >= done + 3, limit_s=240)
    third = start(tmp_path / "c", *again, joined)
    said = [process.communicate()[0] for process in (third, second, first)]
    assert [process.returncode for process in (third, second, first)] == [0, 0, 0], said
    assert "downloading the state of the run" in said[0], said[0]
    assert held["a"][0] == common_step or f"going back to inner step {common_step}" in said[2], said[2]
    hashes = {json.loads((tmp_path / run / "summary.json").read_text())["slow_hash"][0] for run in "abc"}
    assert len(hashes) == 1
