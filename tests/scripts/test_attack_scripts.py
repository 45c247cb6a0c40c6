"""The attacks with real processes lie as they say, and their records count right."""

import asyncio
import subprocess
import sys
from contextlib import contextmanager
from itertools import pairwise
from types import SimpleNamespace

import attack_liar
import attack_stranger
import attack_strangers
import attack_swarm
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from faults_machine import Machine
from faulty import misbehave
from hivemind.p2p import P2PDaemonError, P2PHandlerError, PeerID

from outerloop.exchange.swarm_gather import SwarmGather
from outerloop.swarm.access.identity import ensure_identity
from outerloop.swarm.access.signatures import Signatures
from outerloop.swarm.p2p.daemon import MESSAGE_BYTES
from outerloop.swarm.p2p.node import Node
from tests.support.swarm import corpus_scene


def test_a_stranger_attacks_all_that_a_peer_of_a_listed_run_serves(tmp_path, monkeypatch):
    served, serve = set(), Node.serve

    async def seen(self, protocol, **how):
        served.add(protocol)
        await serve(self, protocol, **how)

    monkeypatch.setattr(Node, "serve", seen)
    identity = ensure_identity(tmp_path / "identity")
    allow = [Signatures.of(identity).peer_id]
    corpus = str(corpus_scene.empty(tmp_path).path)
    options = {"allow": allow, "invites": True, "corpus": corpus, "audit": 0.05}
    SwarmGather(run="default", peers=1, identity_path=str(identity), **options).abort()
    assert set(attack_stranger.PROTOCOLS) == served


def test_the_pace_after_is_that_of_rounds_over_time():
    assert attack_liar.pace([1.0, 1.0], [2.0, 2.0, 2.0]) == 0.5
    assert attack_liar.pace([], [1.0]) is None and attack_liar.pace([1.0], []) is None


def test_ratios_are_of_medians_over_runs_and_memory_is_the_most():
    def record(kind, median, mean, grew):
        times = {"round_s_median": median, "round_s_mean": mean, "cpu_s_per_s": mean / 4}
        return {"kind": kind, **times, "rss_growth_mib": grew}

    records = [
        record("calm", 1.0, 2.0, {"worker": 3}),
        record("calm", 3.0, 2.0, {"worker": 4}),
        record("attacked", 2.5, 3.0, {"worker": 50, "p2pd": 70}),
    ]
    assert attack_strangers.ratios(records) == {
        "attacked round_s_median": 1.25,
        "attacked round_s_mean": 1.5,
        "calm rss_growth_mib": 4,
        "attacked rss_growth_mib": 70,
        "calm cpu_s_per_s": 0.5,
        "attacked cpu_s_per_s": 0.75,
    }


def of_strangers(kind="attacked", **changes):
    record = {"kind": kind, "stopped": "", "rounds_measured": 9, "rounds_whose_hashes_differ": []}
    return (
        record
        | {"round_s_median": 1.0, "round_s_mean": 1.0, "cpu_s_per_s": 0.5, "rss_growth_mib": {"worker": 5}}
        | changes
    )


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, None),
        ({"round_s_median": 1.04, "rss_growth_mib": {"worker": 95, "p2pd": 3}}, None),
        ({"round_s_median": 1.06}, "attacked round_s_median is 1.060"),
        ({"rss_growth_mib": {"worker": 5, "p2pd": 96}}, "attacked rss_growth_mib is 96"),
        ({"stopped": "nothing for 180 s"}, "a run of kind attacked stopped: nothing for 180 s"),
        ({"rounds_measured": 0, "round_s_median": None}, "landed no round"),
        ({"rounds_whose_hashes_differ": [3]}, "rounds [3]"),
    ],
)
def test_the_cost_of_a_stranger_is_compared_with_its_limit(changes, told):
    found = attack_strangers.failures([of_strangers("calm"), of_strangers(**changes)])
    assert (told in found[0] and len(found) == 1) if told else not found


class Run:
    """A swarm that lands rounds, or stops while the attack is on."""

    def __init__(self, stops):
        self.stops, self.followed, self.machines = stops, 0, []

    def follow(self, seconds):
        self.followed += 1
        if self.stops and self.followed > 1:
            raise TimeoutError("nothing for 180 s")

    def look(self):
        pass

    def seconds(self, since=0.0):
        return [1.0, 1.0]

    def report(self, machines):
        return {"rounds_whose_hashes_differ": []}


@pytest.mark.parametrize("stops", [False, True])
def test_a_run_that_the_stranger_stops_is_a_record_and_the_stranger_ends(tmp_path, monkeypatch, stops):
    """The stranger here prints what it did when it is told to end, or when its time is over."""
    swarm, started = Run(stops), []

    @contextmanager
    def running(listed):
        yield swarm

    def popen(command, **options):
        tells = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(print('{\"bytes\": 7}')));"
        tells += f"print('connected', flush=True); time.sleep({60 if stops else 0}); print('{{\"bytes\": 7}}')"
        started.append(subprocess.Popen([sys.executable, "-c", tells], **options))
        return started[0]

    monkeypatch.setattr(attack_strangers, "running", running)
    monkeypatch.setattr(attack_strangers, "Listed", lambda *args, **options: None)
    monkeypatch.setattr(attack_strangers, "subprocess", SimpleNamespace(Popen=popen, PIPE=subprocess.PIPE))
    args = SimpleNamespace(workers=5, options=[], minutes=1.0, mbit=1.0)
    record = attack_strangers.measured("attacked", tmp_path, args)
    assert (record["workers"], record["minutes"], record["mbit"], record["options"]) == (5, 1.0, 1.0, [])
    assert record["stranger"] == {"bytes": 7} and started[0].poll() is not None
    assert (
        bool(attack_strangers.failures([record | {"rss_growth_mib": {"p2pd": 1}}])) == stops == bool(record["stopped"])
    )


def test_the_machines_of_an_open_run_have_no_list(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "")  # Listed extends it
    swarm = attack_strangers.Listed(tmp_path, workers=2, options=["rounds=3"])
    before = [machine.options for machine in swarm.machines]
    attack_strangers.remove_lists(swarm)
    for options, machine in zip(before, swarm.machines, strict=True):
        assert {*options} - {*machine.options} == {f"exchange.allow=[{','.join(swarm.ids)}]"}


def test_a_stranger_that_does_not_connect_is_no_attack(monkeypatch):
    real = subprocess.Popen

    def popen(command, **options):
        return real([sys.executable, "-c", "print('no')"], **options)

    monkeypatch.setattr(attack_strangers, "subprocess", SimpleNamespace(Popen=popen, PIPE=subprocess.PIPE))
    with (
        pytest.raises(RuntimeError, match="nothing was attacked"),
        attack_strangers.attacking(SimpleNamespace(machines=[]), SimpleNamespace(minutes=1.0, mbit=1.0)),
    ):
        pass


def test_requests_of_all_kinds_are_sent_however_they_are_refused_and_p2pd_passes_them_on(monkeypatch):
    for name in ("IDLE", "CLAIMS", "LORIS"):
        monkeypatch.setattr(attack_stranger, name, 0)
    monkeypatch.setattr(attack_stranger, "SOON_S", 0.0)
    sent = []

    class P2P:
        async def call_protobuf_handler(self, victim, name, request, answer):
            sent.append((name, request.ByteSize()))
            raise P2PHandlerError("NotListed('this peer answers only the peers in its exchange.allow')")

    victim = PeerID.from_base58(Signatures(Ed25519PrivateKey.generate()).peer_id)
    stranger = attack_stranger.Stranger(P2P(), [victim], mbit=1e6)
    asyncio.run(stranger.attack(1.0))
    assert {name for name, _ in sent} == {f"DHTProtocol.{rpc}" for rpc in attack_stranger.RPCS}
    assert all(stranger.done[f"{rpc}: refused"] > 1 for rpc in attack_stranger.RPCS)
    assert all(1_200_000 < size < 0.95 * MESSAGE_BYTES for _, size in sent)


def test_a_request_that_is_not_served_is_tried_again_and_its_bytes_are_not_counted(monkeypatch):
    for name in ("IDLE", "CLAIMS", "LORIS"):
        monkeypatch.setattr(attack_stranger, name, 0)
    monkeypatch.setattr(attack_stranger, "SOON_S", 0.0)

    class P2P:
        async def call_protobuf_handler(self, victim, name, request, answer):
            raise P2PDaemonError(f"failed to negotiate protocol: protocols not supported: [{name}]")

    victim = PeerID.from_base58(Signatures(Ed25519PrivateKey.generate()).peer_id)
    stranger = attack_stranger.Stranger(P2P(), [victim], mbit=1e6)
    asyncio.run(stranger.attack(0.5))
    assert all(stranger.done[f"{rpc}: not served"] > 1 for rpc in attack_stranger.RPCS)
    assert stranger.done["bytes"] == 0


def test_a_claim_ends_when_the_peer_takes_nothing_more(monkeypatch):
    monkeypatch.setattr(attack_stranger, "STALLED_S", 0.05)
    closed = []

    class Full:
        """A stream whose buffers take the announcement and two pieces."""

        written = 0

        def write(self, data):
            self.written += len(data)

        async def drain(self):
            if self.written > 2 * len(attack_stranger.PIECE) + 1000:
                await asyncio.Event().wait()

        def close(self):
            closed.append(self.written)

    class P2P:
        async def call_binary_stream_handler(self, victim, protocol):
            return None, asyncio.StreamReader(), Full()

    async def act():
        stranger = attack_stranger.Stranger(P2P(), [], mbit=1e6)
        with pytest.raises(TimeoutError):
            await stranger.claim(None, "outerloop/1/probe")
        return stranger.done

    assert asyncio.run(act())["bytes"] == 2 * len(attack_stranger.PIECE) and len(closed) == 1


def of_liar(**changes):
    record = {"lie": "views", "stopped": "", "rounds_whose_hashes_differ": [], "newcomer_rounds": 3}
    return record | {"honest_ended": [], "honest_expelled": [], "expelled_s": None} | changes


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, None),
        ({"lie": "equivocate", "expelled_s": 2.0}, None),
        ({"lie": "equivocate"}, "not expelled"),
        ({"newcomer_rounds": 0}, "newcomer"),
        ({"stopped": "nothing for 180 s"}, "nothing for 180 s"),
        ({"rounds_whose_hashes_differ": [4]}, "rounds [4]"),
        ({"honest_ended": [{"kind": "crashed, started again after exit 1", "machine": 0}]}, "ended"),
        ({"lie": "all", "expelled_s": 2.0, "pace_after": 0.81}, None),
        ({"lie": "all", "expelled_s": 2.0, "pace_after": 0.79}, "0.79 of the pace before, less than 0.8"),
        ({"lie": "all", "pace_after": 0.9}, "not expelled"),
        ({"honest_expelled": ["12D3K accepted both: it is expelled from the run"]}, "12D3K"),
        ({"expressed": {"views": 2}, "after_expulsion": []}, None),
        ({"expressed": {"views": 0}, "after_expulsion": []}, "the lie views was never expressed"),
        ({"expressed": {"views": 0}, "after_expulsion": ["views"]}, None),
        ({"trust": "nobody", "lie": "equivocate"}, None),
        ({"trust": "nobody", "lie": "digests"}, "not expelled"),
        ({"trust": "nobody", "pace_until_expulsion": 0.5}, None),
        ({"trust": "nobody", "pace_until_expulsion": 0.49}, "0.49 of the pace before, less than 0.5"),
        ({"trust": "members", "pace_until_expulsion": 0.49}, None),
    ],
)
def test_a_property_that_fails_under_a_lie_is_reported(changes, told):
    found = attack_liar.failures(of_liar(**changes))
    assert (told in found[0] and len(found) == 1) if told else not found


class Four(attack_swarm.Listed):
    """A swarm whose time goes by at once, and what is done to it meanwhile. `happens`: at which follow, what."""

    def __init__(self, folder, happens, *, newcomers=1):
        super().__init__(folder, workers=4, options=[], newcomers=newcomers)
        self.happens, self.said = happens, []

    def follow(self, seconds, *, until=lambda: False):
        self.said.append(self.machines[3].misbehaves)
        self.happens.get(len(self.said), lambda swarm: None)(self)
        until()

    def add(self):
        self.machines.append(self.newcomers.pop(0))
        return self.machines[-1]


def log(swarm, index, line):
    path = swarm.machines[index].folder / "workers/0/log.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(line)


def stop(swarm):
    raise TimeoutError("nothing for 180 s")


@pytest.mark.parametrize("stops_at", [1, 2, 3, 4])
def test_a_lie_is_told_after_the_calm_until_the_end_and_a_run_that_stops_is_a_record(tmp_path, monkeypatch, stops_at):
    monkeypatch.setenv("PYTHONPATH", "")
    swarm = Four(tmp_path / "runs", {stops_at: stop})
    record = attack_liar.Attack(swarm, "silence", seconds=1.0).run()
    assert swarm.said == ["", "silence", "silence"][:stops_at] and bool(record["stopped"]) == (stops_at < 4)
    assert (len(swarm.machines) == 5) == (stops_at > 2) and record["lie"] == "silence"
    assert "the newcomer has landed no round" in attack_liar.failures(record)


@pytest.mark.parametrize("trust", ["members", "nobody"])
def test_all_lies_are_told_in_one_run_and_the_one_that_expels_comes_last(tmp_path, monkeypatch, trust):
    monkeypatch.setenv("PYTHONPATH", "")
    swarm, lies = Four(tmp_path / "runs", {}, newcomers=2), attack_liar.all_lies(trust)
    record = attack_liar.Attack(swarm, *lies, seconds=1.0, trust=trust).run()
    assert record["lie"] == "all" and record["trust"] == trust and list(record["paces"]) == list(lies)
    assert swarm.said[0] == "" and list(dict.fromkeys(swarm.said[1:])) == list(lies)
    assert set(lies) == {*attack_liar.names(trust), *attack_liar.HOSTILE}
    assert lies[-1] == attack_liar.EXPELS[trust] and len(swarm.machines) == 6


@pytest.mark.parametrize("trust", ["members", "nobody"])
def test_a_newcomer_joins_while_another_state_is_served(tmp_path, monkeypatch, trust):
    monkeypatch.setenv("PYTHONPATH", "")
    swarm = Four(tmp_path / "runs", {}, newcomers=2)
    attack = attack_liar.Attack(swarm, *attack_liar.all_lies(trust), seconds=1.0, trust=trust)
    shares = [share for share, _ in attack.timetable()]
    begins = {step.args[0]: share for share, step in attack.timetable() if step != attack.join}
    first, second = [share for share, step in attack.timetable() if step == attack.join]
    after = min(share for share in begins.values() if share > begins["states"])
    assert shares == sorted(shares) and begins["states"] == first < after < second
    lasts = sorted(b - a for a, b in pairwise(sorted(begins.values())))
    assert lasts[-1] == pytest.approx(attack_liar.STATES_LASTS * lasts[0])


def test_misbehaviours_are_counted_by_name_in_a_file_next_to_the_machine(tmp_path, monkeypatch):
    machine = Machine(0, tmp_path / "m0", [])
    assert not machine.misbehaved()
    monkeypatch.setenv(misbehave.FILE, machine.environment()[misbehave.FILE])
    for how in ("split", "hide", "split"):
        misbehave.note(how)
    assert machine.misbehaved() == {"split": 2, "hide": 1}


def test_expelled_peers_are_counted_separately(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "")

    def convict(swarm):
        for index in range(3):
            log(swarm, index, f"{swarm.ids[3]} accepted two commits: it is expelled from the run\n")

    def frame(swarm):
        log(swarm, 0, f"{swarm.ids[1]} accepted two commits: it is expelled from the run\n")

    record = attack_liar.Attack(Four(tmp_path / "a", {2: convict}), "equivocate", seconds=1.0).run()
    assert record["expelled_s"] is not None and not record["honest_expelled"] and len(record["said"]) == 1
    record = attack_liar.Attack(Four(tmp_path / "b", {2: frame}), "equivocate", seconds=1.0).run()
    assert record["expelled_s"] is None and len(record["honest_expelled"]) == 1


def test_the_list_has_everybody_and_each_machine_its_key_before_it_starts(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    swarm = attack_swarm.Listed(tmp_path / "runs", workers=2, options=["seed=3"], newcomers=1)
    machines = [*swarm.machines, *swarm.newcomers]
    assert len(set(swarm.ids)) == 3 and [attack_swarm.id_of(machine) for machine in machines] == swarm.ids
    for machine in machines:
        assert f"exchange.allow=[{','.join(swarm.ids)}]" in machine.options and "seed=3" in machine.options
    swarm.first_seen.update({0: 10.0, 1: 12.0, 2: 15.0})
    assert swarm.seconds() == [2.0, 3.0] and swarm.seconds(11.0) == [3.0]
    assert attack_swarm.round_times([2.0, 3.0]) == {
        "round_s_median": 2.5, "round_s_mean": 2.5, "round_s_longest": 3.0,
    }  # fmt: skip


def test_refusals_are_counted_by_kind(tmp_path):
    machine = Machine(0, tmp_path / "m0", [])
    log = tmp_path / "m0/workers/0/log.txt"
    log.parent.mkdir(parents=True)
    log.write_text(
        "refused (ballots) x: y\nsomething\nrefused (outsiders) z: y, and 3 before that\nrefused (ballots) x\n"
    )
    machine.rows = [{"event": "round", "failed": "", "refused_messages": 7.0}]
    assert attack_swarm.refused(machine) == {"messages": 7.0, "lines": {"ballots": 2, "outsiders": 1}}
