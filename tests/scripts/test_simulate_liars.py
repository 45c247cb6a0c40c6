"""A simulated run with liars lands the rounds of honest peers, counts them right, and would report a fork."""

import json
from dataclasses import replace

import pytest
import simulate_liars
from lying_peers import Applied, Simulation, watch
from simulate_liars import failures, pace

from outerloop.swarm.consensus.commit import genesis
from tests.support.swarm.gather_scene import Swarm
from tests.support.swarm.virtual_clock import run

SECONDS = 120.0
COMMIT = genesis("r", ["000-a", "001-b"])


def simulated(lie):
    """Return the record of a short run of four peers, one of which has this lie."""
    return Simulation(lie, peers=4, liars=1, seed=0).run(SECONDS)


@pytest.mark.long
def test_calm_and_two_lies_land_rounds_without_a_fork():
    calm, hide, withhold = (simulated(lie) for lie in ("", "hide", "withhold"))
    assert calm["lie"] == "calm" and calm["liars"] == calm["failed_views"] == 0 and not calm["expressed"]
    assert calm["rounds"] > 9, "a round takes 10 s and its messages"
    for record, lie in ((hide, "hide"), (withhold, "withhold")):
        assert set(record["expressed"]) == {lie} and not record["forks"] and not failures(record, calm)
    assert hide["failed_views"] > 0 and hide["rounds"] < calm["rounds"] == withhold["rounds"]
    assert pace(hide, calm) == round(hide["rounds"] / calm["rounds"], 3)


@pytest.mark.long
def test_a_liar_that_votes_for_what_was_not_proposed_is_expelled():
    record = simulated("digests")
    assert record["expelled"] == ["d"] and not failures(record, simulated(""))


@pytest.mark.long
def test_liars_of_a_mixed_case_change_their_lies_and_the_same_seed_gives_the_same_record():
    first, again = (simulated("mixed") for _ in range(2))
    assert first == again and len(first["expressed"]) > 1 and not first["forks"]


def test_a_fork_is_found():
    applied = Applied()
    for number, view in ((0, 0), (1, 2), (1, 0)):
        applied.add(replace(COMMIT, number=number), view)
    assert not applied.forks and applied.views == {0: 0, 1: 2}
    applied.add(replace(COMMIT, number=1, parent=b"x" * 32), 0)
    assert applied.forks == [1]


def test_a_peer_that_applies_another_commit_than_the_others_is_a_fork():
    """Peer a applies a commit of round 0 in which only it takes part."""

    async def scene():
        swarm, applied = await Swarm("abcd", trust="nobody").start(), Applied()
        for node in swarm.nodes.values():
            watch(node, applied)
        await swarm.until("abcd", 1)
        assert not applied.forks
        (commit,) = [decided.commit for decided in swarm["a"].rounds.context.chain.hard_state.log[1:]]
        swarm["a"].rounds.outcomes.add(replace(commit, participants=commit.participants[:1]))
        return applied

    assert run(scene()).forks == [0]


def of(lie="views", **changes):
    record = {"lie": lie, "rounds": 60, "forks": [], "errors": {}, "liars": 1, "expressed": {lie: 1}, "expelled": []}
    return record | changes


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, None),
        ({"rounds": 50}, None),
        ({"rounds": 49}, "rounds landed at 0.49 of the calm pace"),
        ({"forks": [3]}, "different commits in rounds [3]"),
        ({"errors": {"000-a": "LogTruncated()"}}, "000-a stopped: LogTruncated()"),
        ({"expressed": {}}, "the lie views was never expressed"),
        ({"lie": "digests", "expressed": {"digests": 1}}, "only 0 of 1 liars were expelled"),
        ({"lie": "digests", "expressed": {"digests": 1}, "expelled": ["d"]}, None),
        ({"lie": "calm", "expressed": {}}, None),
    ],
)
def test_a_guarantee_that_a_case_violates_is_reported(changes, found):
    lines = failures(of(**changes), of("calm", rounds=100))
    assert (len(lines) == 1 and found in lines[0]) if found else not lines


def test_a_mixed_case_must_have_a_lie():
    assert not failures(of("mixed", expressed={"hide": 1}), None)
    assert failures(of("mixed", expressed={}), None) == ["the lie mixed was never expressed"]


def test_recorded_cases_are_not_simulated_again(tmp_path, monkeypatch, capsys):
    out, made = tmp_path / "cases.json", []

    def made_up(case, args):
        made.append((case, args.minutes))
        return of(case, rounds=10, failed_views=0, streams=1, liars=args.liars if case != "calm" else 0)

    monkeypatch.setattr(simulate_liars, "simulated", made_up)
    arguments = ["simulate_liars.py", "--out", str(out), "--minutes", "2", "--lies"]
    monkeypatch.setattr("sys.argv", [*arguments, "calm,views"])
    assert simulate_liars.main() == 0
    monkeypatch.setattr("sys.argv", [*arguments, "calm,views,hide"])
    assert simulate_liars.main() == 0
    assert made == [("calm", 2.0), ("views", 2.0), ("hide", 2.0)] and list(json.loads(out.read_text())) == [
        "calm", "views", "hide",
    ]  # fmt: skip
    assert "pace 1.0" in capsys.readouterr().out
