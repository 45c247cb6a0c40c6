"""The page of a swarm: reads of a roster in, page out. Times and rounds are chosen so that ages are whole seconds."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import jsonschema
import pytest

from outerloop.swarm.membership.roster import Record
from outerloop.swarm.membership.status import Status
from outerloop.swarm.p2p.round_trips import Link
from outerloop.watch.model.schema import json_schema
from outerloop.watch.model.swarm_state import MAX_COUNTED, MAX_LEFT, MAX_PEERS, SwarmState

IDS = ["12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp", "12D3KooWQkrbANV9FKkcs48PRwK38ogmdpNNYPjyUK5n1Qy4VK5w"]
SETTINGS = {"recipe": "sparseloco", "rounds": 10, "schedule.sync_every": 5, "exchange.peers": 2}
GOSSIP = {**SETTINGS, "exchange._target_": "outerloop.exchange.swarm_gossip.SwarmGossip"}
START_S = 1_000_000.0


def record(worker: int, round_number: int, **status: Any) -> Record:
    values = {"round": round_number, "peers": 2, "loss": 2.0, "tokens_per_s": 100.0, "bytes_sent": 10} | status
    address = f"/ip4/192.0.2.{worker}/tcp/4/p2p/{IDS[worker]}"
    return Record(f"{worker:03d}-{IDS[worker]}", [address], "f", 1.0, Status(**values))


def state(
    *reads: list[tuple[Record, float]], settings: dict[str, Any] | None = None, every_s: float = 10.0
) -> SwarmState:
    """The state after these reads of the roster, `every_s` apart."""
    swarm = SwarmState("mine", SETTINGS if settings is None else settings)
    for number, seen in enumerate(reads):
        swarm.add(START_S + every_s * number, seen, {})
    return swarm


def test_the_header_adds_up_what_the_peers_report():
    run = state([(record(0, 3), 1.0), (record(1, 3, loss=4.0), 2.0)]).page()["run"]
    assert (run["name"], run["state"], run["recipe"]) == ("mine", "running", "sparseloco")
    assert (run["round"], run["rounds"], run["step"], run["steps"]) == (3, 10, 15, 50)
    assert (run["alive"], run["peers"], run["loss"], run["tokens_per_s"]) == (2, 2, 3.0, 200.0)
    assert (run["bytes_sent"], run["tokens"], run["val_loss"]) == (20, None, None)
    assert run["updated_s"] == START_S - 1


def test_the_bytes_sent_never_fall():
    """The second peer sends 10 bytes, restarts and sends 4 more, and leaves; the first one sends 10 and 5 more."""
    first, second = (record(0, 3), 1.0), (record(1, 3), 1.0)
    restarted, later = (record(1, 4, bytes_sent=4), 1.0), (record(0, 4, bytes_sent=15), 1.0)
    reads = [[first, second], [first, restarted], [first], [later]]
    totals = [state(*reads[: number + 1]).page()["run"]["bytes_sent"] for number in range(len(reads))]
    assert totals == [20, 24, 24, 29]


def test_the_bytes_of_a_peer_that_is_no_longer_shown_are_counted_once():
    """Peer 0 sends 10 bytes and leaves; 101 others send 10 each and leave; peer 0 returns and sends 5 more."""
    others = [[(replace(record(1, 3), name=f"001-{number}"), 1.0)] for number in range(MAX_LEFT + 1)]
    swarm = state([(record(0, 3), 1.0)], *others, [], [(record(0, 4, bytes_sent=15), 1.0)])
    assert swarm.page()["run"]["bytes_sent"] == 10 + 10 * (MAX_LEFT + 1) + 5


def test_the_time_left_follows_from_the_rounds_seen():
    """Round 3 at 0 s and round 4 at 10 s: 6 more rounds take 60 s."""
    reads = [[(record(0, 3), 0.0)], [(record(0, 4), 0.0)]]
    assert state(*reads).page()["run"]["eta_s"] == 60.0


def test_a_peer_is_shown_with_what_it_reports():
    first, second = state([(record(0, 3), 1.0), (record(1, 3), 4.0)]).page()["peers"]
    assert (first["id"], first["state"], first["round"], first["step"]) == (IDS[0], "training", 3, 15)
    assert (first["address"], first["relayed"], first["age_s"]) == ("/ip4/192.0.2.0/tcp/4", False, 1)
    assert (first["late_s"], second["late_s"]) == (3.0, 0.0), "the second wrote its record 3 s earlier"
    assert (first["samples"], first["refused"]) == (None, None), "no record states them"


@pytest.mark.parametrize(
    ("seen", "state_name", "reason"),
    [
        ((record(0, 3), 31.0), "silent", "no record for more than 30 s"),
        ((record(0, 3, peers=0), 1.0), "failed", "round 3 did not complete"),
        ((record(0, 0, loss=None, tokens_per_s=None), 1.0), "starting", ""),
    ],
)
def test_a_peer_in_trouble_has_a_reason(seen, state_name, reason):
    peer = state([seen]).page()["peers"][0]
    assert peer["state"] == state_name and reason in peer["reason"]
    assert bool(peer["cure"]) == (state_name != "starting")


def test_a_round_that_landed_without_a_peers_payload_has_not_failed_there():
    page = state([(record(0, 3), 1.0), (record(1, 3, peers=1, counted=False), 1.0)]).page()
    assert page["peers"][1]["state"] == "training"
    assert page["peers"][1]["reason"] == "round 3 landed without its payload, which came late or was refused"
    assert page["timeline"]["cells"] == [[0.0], ["absent"]]
    assert [entry["kind"] for entry in page["events"]] == ["joined", "joined"]


def test_the_age_of_a_swarm_is_not_known():
    page = state([(record(0, 3), 1.0)], [(record(0, 4), 1.0)]).page()
    assert page["run"]["elapsed_s"] is None


def test_a_round_of_a_swarm_with_fragments_has_h_steps():
    run = state([(record(0, 3), 1.0)], settings=SETTINGS | {"schedule.fragments": 5}).page()["run"]
    assert (run["step"], run["steps"]) == (15, 50)


def test_a_peer_that_is_gone_has_left_and_can_return():
    both = [(record(0, 3), 1.0), (record(1, 3), 1.0)]
    swarm = state(both, both[:1])
    assert [peer["state"] for peer in swarm.page()["peers"]] == ["training", "left"]
    swarm.add(START_S + 20, both, {})
    assert [peer["state"] for peer in swarm.page()["peers"]] == ["training", "training"]
    assert [entry["kind"] for entry in swarm.page()["events"]] == ["joined", "joined", "left", "joined"]


def test_a_peer_that_no_longer_answers_is_shown_at_once_and_can_return():
    seen = [(record(0, 3), 1.0), (record(1, 2), 1.0)]
    swarm = state(seen)
    both, lost = {IDS[0]: Link(0.0123), IDS[1]: Link(0.2)}, {IDS[0]: Link(0.0123), IDS[1]: Link(0.2, 2)}
    for second, links in enumerate([both, {**both, IDS[1]: Link(0.2, 1)}, lost, lost]):
        swarm.add(START_S + second, seen, {}, None, links)
    page = swarm.page()
    jsonschema.validate(page, json_schema())
    assert [peer["state"] for peer in page["peers"]] == ["training", "silent"]
    assert [peer["round_trip_s"] for peer in page["peers"]] == [0.012, 0.2]
    assert page["peers"][1]["reason"].startswith("it no longer answers") and page["run"]["alive"] == 1
    assert page["phase"]["text"] == f"1 of 2 peers report round 3; no answer from: 001-…{IDS[1][-8:]}"
    swarm.add(START_S + 4, seen, {}, None, both)
    assert [peer["state"] for peer in swarm.page()["peers"]] == ["training", "training"]
    assert [(entry["kind"], entry["text"]) for entry in swarm.page()["events"]][2:] == [
        ("killed", "no longer answers"),
        ("joined", "answers again"),
    ]


def test_a_lost_peer_stays_lost_until_it_answers():
    """A link that is not known, or measured anew without an answer, says nothing."""
    seen = [(record(0, 3), 1.0)]
    swarm = state(seen)
    for second, links in enumerate([{IDS[0]: Link(0.1, 2)}, {}, {IDS[0]: Link(None, 1)}, {IDS[0]: Link(None, 9)}]):
        swarm.add(START_S + second, seen, {}, None, links)
        assert swarm.page()["peers"][0]["state"] == "silent"
    swarm.add(START_S + 9, seen, {}, None, {IDS[0]: Link(0.1)})
    assert swarm.page()["peers"][0]["state"] == "training"
    assert [entry["text"] for entry in swarm.page()["events"]][1:] == ["no longer answers", "answers again"]


def test_a_peer_that_downloads_the_state_shows_how_much_it_has_received():
    joiner = record(1, 0, loss=None, tokens_per_s=None, loading=0.426)
    peer = state([(record(0, 3), 1.0), (joiner, 1.0)]).page()["peers"][1]
    assert (peer["state"], peer["reason"]) == ("catching up", "it downloads the state of the run: 43 % received")


def reads_with_one_behind(*, last: int) -> list[list[tuple[Record, float]]]:
    """The first peer lands a round every 10 s; the second stays at round 1 until the last read."""
    reads = [[(record(0, 1 + i), 0.0), (record(1, 1), 0.0)] for i in range(7)]
    return [*reads, [(record(0, 8), 0.0), (record(1, last), 0.0)]]


def test_a_peer_that_lacks_a_round_for_long_is_behind_and_can_catch_up():
    """Round 2 is reached at 10 s; at 60 s that was 50 s ago, and round 7 is the newest."""
    late = state(*reads_with_one_behind(last=1)[:-1]).page()
    assert (late["peers"][1]["state"], late["peers"][1]["reason"]) == (
        "catching up",
        "6 rounds behind the others for more than 45 s",
    )
    assert late["phase"] is not None and "1 of 2 peers report round 7; not yet: 001-…" in late["phase"]["text"]
    caught_up = state(*reads_with_one_behind(last=8)).page()
    assert caught_up["peers"][1]["state"] == "training"
    assert [entry["kind"] for entry in caught_up["events"]] == ["joined", "joined", "caught up"]


def test_gossip_has_no_rounds_in_common():
    page = state(*reads_with_one_behind(last=1), settings=GOSSIP).page()
    assert page["peers"][1]["state"] == "training" and page["phase"] is None


def test_an_expelled_peer_says_why():
    swarm = state([(record(0, 3), 1.0)])
    swarm.add(START_S + 1, [(record(0, 3), 1.0)], {f"000-{IDS[0]}": "signed two commits of round 3"})
    [peer] = swarm.page()["peers"]
    assert (peer["state"], peer["reason"]) == ("expelled", "signed two commits of round 3")
    assert swarm.page()["events"][-1]["text"] == "expelled: signed two commits of round 3"


def test_a_peer_is_expelled_until_it_is_lifted():
    seen, name = [(record(0, 3), 1.0)], f"000-{IDS[0]}"
    swarm = state(seen)
    swarm.add(START_S + 1, seen, {name: "signed two commits of round 3"})
    swarm.add(START_S + 2, seen, None)
    assert swarm.page()["peers"][0]["state"] == "expelled", "the observed peer has not answered"
    swarm.add(START_S + 3, seen, {})
    assert swarm.page()["peers"][0]["state"] == "training"
    assert [entry["text"] for entry in swarm.page()["events"]][-1] == "is no longer expelled"


def test_one_peer_that_claims_a_far_round_changes_nothing_for_the_others():
    names = ("a", "b", "c", "liar")

    def seen(round_number: int, claimed: int) -> list[tuple[Record, float]]:
        rounds = [round_number, round_number, round_number, claimed]
        return [(Record(f"{i:03d}-{names[i]}", [], "f", 1.0, Status(round=rounds[i], peers=4)), 0.0) for i in range(4)]

    swarm = state(*(seen(i + 1, (1 << 40) - 100 + i) for i in range(70)))
    page = swarm.page()
    assert page["run"]["round"] == 70 and page["timeline"]["rounds"] == list(range(21, 71))
    assert [peer["state"] for peer in page["peers"]] == ["training"] * 4
    assert page["phase"] is not None and page["phase"]["text"] == "4 of 4 peers report round 70"


@pytest.mark.parametrize("settings", [SETTINGS, GOSSIP])
@pytest.mark.parametrize("first", [0, 60])
def test_rounds_that_one_peer_claims_do_not_replace_those_of_the_others(settings, first):
    """The liar claims a new far round with each read; the others have landed no round in the first ones of them."""

    def seen(read: int) -> list[tuple[Record, float]]:
        rounds = [max(0, read - first)] * 3 + [(1 << 30) + read]
        return [(Record(f"{i:03d}-{i}", [], "f", 1.0, Status(round=rounds[i], peers=4)), 0.0) for i in range(4)]

    swarm = state(*(seen(read) for read in range(1, first + 71)), settings=settings)
    assert swarm.page()["timeline"]["rounds"] == list(range(21, 71))


def test_a_flood_of_identities_is_bounded():
    def flood(number: int) -> list[tuple[Record, float]]:
        return [(Record(f"{i % 1000:03d}-{number}x{i}", [], "f", 1.0, Status()), 0.0) for i in range(2 * MAX_PEERS)]

    swarm = state(*(flood(number) for number in range(4)))
    assert len(swarm.peers) == MAX_PEERS + MAX_LEFT and len(swarm.page()["events"]) == 300


def test_the_number_of_remembered_byte_counts_is_bounded():
    swarm = state()
    for number in range(MAX_COUNTED + 5):
        swarm.count_bytes(f"peer-{number}", 2)
    swarm.count_bytes(f"peer-{MAX_COUNTED}", 3)
    assert len(swarm.counted) == MAX_COUNTED and swarm.bytes_sent == 2 * (MAX_COUNTED + 5) + 1


def test_a_swarm_without_a_manifest_and_with_odd_numbers_fits_the_schema():
    odd = record(0, 1 << 40, loss=math.nan, tokens_per_s=math.inf, bytes_sent=1 << 62)
    page = state([(odd, 0.0), (Record("001-x", ["/p2p-circuit" * 20], "f", 1.0), 0.0)], settings={}).page()
    jsonschema.validate(page, json_schema())
    assert page["peers"][0]["loss"] == "nan" and page["peers"][1]["relayed"] is True
    assert page["run"]["eta_s"] is None and page["run"]["rounds"] is None


def test_an_empty_swarm_says_so():
    page = state([], []).page()
    jsonschema.validate(page, json_schema())
    assert (page["run"]["state"], page["run"]["reason"]) == ("silent", "no peer of the run is present")
