"""The protocol specifications agree with the code: constants, services, messages, and the bytes that are signed."""

import asyncio
import hashlib
import importlib
import pkgutil
import re
from pathlib import Path

import msgpack
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hivemind.dht.validation import DHTRecord

import outerloop.swarm
from outerloop.swarm.access import public_names
from outerloop.swarm.access.access_control import AccessControl, AllowList, RejectionLog
from outerloop.swarm.access.identity import Life
from outerloop.swarm.access.signatures import KeySigner, Signatures
from outerloop.swarm.accountability import signed_statement
from outerloop.swarm.consensus import statements
from outerloop.swarm.consensus.commit import Commit, Participant, genesis, leader, next_demoted
from outerloop.swarm.consensus.messages import FIELDS, Accept, Promise, Propose, ViewChange, to_map
from outerloop.swarm.consensus.votes import Accepted, ChainLink, CommitCertificate
from outerloop.swarm.dht import records
from outerloop.swarm.gossip import signed_shares
from outerloop.swarm.manifest import run_manifest
from outerloop.swarm.membership import incarnation_record, opening_statements
from outerloop.swarm.membership.member_list import session_of
from outerloop.swarm.p2p.framing import Stream
from outerloop.swarm.p2p.transport import RpcService, protocol_name
from outerloop.swarm.state_transfer import manifest
from outerloop.swarm.transfer import signed_payload

PAGES = Path(__file__).parents[2] / "docs/reference/protocols"
TEXT = "".join(page.read_text() for page in sorted(PAGES.glob("*.md")))
CONSTANTS = re.findall(r"^\| `([a-z_.0-9]+)\.([A-Z_]+)` \| ([0-9., ]+) \|", TEXT, re.MULTILINE)
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PREFIX, COMMIT = b"outerloop/1/signature\n", b"outerloop/1/commit\n"
NAMES = [f"00{i}-peer{i}" for i in range(4)]
HEAD, SHA = bytes(range(32)), bytes(range(32, 64))


@pytest.mark.parametrize(("module", "name", "value"), CONSTANTS)
def test_constants_have_the_values_of_the_code(module, name, value):
    found = getattr(importlib.import_module(f"outerloop.swarm.{module}"), name)
    listed = found if isinstance(found, tuple) else (found,)
    assert [float(number) for number in value.split(",")] == list(map(float, listed))


def test_there_are_constants_on_every_page_of_a_protocol():
    assert len(CONSTANTS) > 50


def test_every_service_is_specified():
    for module in pkgutil.walk_packages(outerloop.swarm.__path__, "outerloop.swarm."):
        importlib.import_module(module.name)
    services = {
        service.service for service in RpcService.__subclasses__() if service.__module__.startswith("outerloop")
    }
    assert {"bulk", "ballot", "members"} <= services
    assert [service for service in services | {"pair"} if f"`{service}`" not in TEXT] == []


def test_every_context_of_a_signature_is_specified():
    votes = statements.accept(0, b"", 0, b""), statements.promise(0, b"", 0, None), statements.wish(0, b"", 0)
    used = {str(statement[0]) for statement in (*votes, statements.ask(0, b""))} | {
        signed_payload.PURPOSE,
        signed_shares.PURPOSE,
        manifest.CONTEXT,
        records.CONTEXT,
        opening_statements.OPENING,
        incarnation_record.INCARNATION,
        incarnation_record.OBJECTION,
        public_names.CONTEXT,
        run_manifest.CONTEXT,
        run_manifest.FORWARDED_CONTEXT,
        signed_statement.VERDICT,
    }
    table = (PAGES / "transport.md").read_text()
    assert set(re.findall(r"^\| `(\w+)` \| (?:session|run|the DHT key)", table, re.MULTILINE)) == used


def test_every_kind_of_ballot_and_its_keys_are_specified():
    page = (PAGES / "gather.md").read_text()
    for kind, keys in FIELDS.items():
        (row,) = re.findall(rf"^\| `{kind}` \| ([^|]*)", page, re.MULTILINE)
        assert [key for key in keys if not re.search(rf"\b{key}\b", row)] == [], kind


@pytest.mark.parametrize(
    ("statement", "fields"),
    [
        (statements.accept(5, HEAD, 2, SHA), ["accept", "run/s", NAMES[0], 5, HEAD, 2, SHA]),
        (statements.promise(5, HEAD, 2, (1, SHA)), ["promise", "run/s", NAMES[0], 5, HEAD, 2, 1, SHA]),
        (statements.promise(5, HEAD, 2, None), ["promise", "run/s", NAMES[0], 5, HEAD, 2, -1, b""]),
        (statements.wish(5, HEAD, 2), ["view", "run/s", NAMES[0], 5, HEAD, 2]),
        (statements.ask(5, HEAD), ["ask", "run/s", NAMES[0], 5, HEAD]),
    ],
)
def test_votes_are_signed_over_the_bytes_of_the_page(statement, fields):
    signature = KeySigner(Signatures(KEY), session="run/s", own=NAMES[0]).sign(statement)
    KEY.public_key().verify(signature, PREFIX + msgpack.packb(fields))


def test_payloads_are_signed_over_the_bytes_of_the_page():
    content = signed_payload.sign_payload(
        b"payload", Signatures(KEY), session="run/s", number=3, peer=NAMES[1], state=(2, SHA)
    )
    signed = ["payload", "run/s", 3, NAMES[1], hashlib.sha256(b"payload").digest(), 2, SHA]
    KEY.public_key().verify(content[:64], PREFIX + msgpack.packb(signed))
    assert content[64:] == b"payload"


def test_peer_ids_are_encoded_as_the_page_says():
    alphabet = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
    number, text = int.from_bytes(bytes.fromhex("002408011220") + KEY.public_key().public_bytes_raw(), "big"), ""
    while number:
        number, digit = divmod(number, 58)
        text = alphabet[digit] + text
    assert Signatures(KEY).peer_id == "1" + text and len("1" + text) == 52


def test_a_commit_is_hashed_as_the_page_says():
    state = Participant(NAMES[1], SHA, 9, (4, HEAD))
    commit = Commit(7, HEAD, 1, (Participant(NAMES[0], SHA, 8), state), tuple(NAMES), ((NAMES[1], bytes(64)),))
    value = {
        "number": 7,
        "parent": HEAD,
        "view": 1,
        "participants": [[NAMES[0], SHA, 8], [NAMES[1], SHA, 9, 4, HEAD]],
        "roster": NAMES,
        "asks": [[NAMES[1], bytes(64)]],
        "demoted": [],
    }
    assert commit.digest == hashlib.sha256(COMMIT + msgpack.packb(value)).digest()
    first = genesis("run/s", NAMES, first=4)
    assert (first.number, first.parent) == (3, hashlib.sha256(COMMIT + b"run/s").digest())


def test_peers_lead_in_the_order_of_the_page():
    head = Commit(7, HEAD, 0, (), tuple(NAMES), demoted=(NAMES[2], NAMES[0]))

    def turn(name):
        return hashlib.sha256(msgpack.packb(["run/s", 8, name])).digest()

    order = [*sorted((NAMES[1], NAMES[3]), key=turn), NAMES[2], NAMES[0]]
    assert [leader("run/s", head, view) for view in range(6)] == [*order, *order[:2]]
    assert next_demoted("run/s", head, 1, tuple(NAMES)) == (order[0],)  # (4 - 1) // 2 = 1 is kept, the latest


def test_messages_are_the_maps_of_the_page():
    commit = Commit(5, HEAD, 2, (), (NAMES[0],))
    accepted = Accepted(commit, (ChainLink(2, (), bytes(64)),))
    shown = {"commit": commit.to_map(), "links": ((2, (), bytes(64)),)}
    expected = {
        ViewChange(5, HEAD, 2, bytes(64)): {
            "kind": "here", "number": 5, "head": HEAD, "view": 2, "signature": bytes(64),
        },
        Propose(accepted): {"kind": "propose", "accepted": shown},
        Promise(5, HEAD, 3, accepted, bytes(64)): {
            "kind": "promise", "number": 5, "head": HEAD, "view": 3, "accepted": shown, "signature": bytes(64),
        },
        Accept(5, HEAD, 2, SHA, bytes(64)): {
            "kind": "accept", "number": 5, "head": HEAD, "view": 2, "digest": SHA, "signature": bytes(64),
        },
        CommitCertificate(commit, 0, ((NAMES[0], bytes(64)),)): {
            "kind": "decided",
            "decided": {"commit": commit.to_map(), "view": 0, "accepts": ((NAMES[0], bytes(64)),), "links": ()},
        },
    }  # fmt: skip
    assert {message: to_map(message) for message in expected} == expected


def test_sessions_manifests_and_incarnations_are_those_of_the_pages():
    members = [[NAMES[0], 1.5], [NAMES[1], 2.0]]
    assert session_of("run", members) == f"run/{hashlib.sha256(msgpack.packb(['run', members])).hexdigest()}"
    content = bytes(9 << 20)
    chunks = [hashlib.sha256(content[start : start + (8 << 20)]).digest() for start in (0, 8 << 20)]
    packed = manifest.Manifest.of(content, number=4, head=HEAD).to_bytes()
    assert packed == msgpack.packb([4, HEAD, 9 << 20, b"".join(chunks)])
    assert incarnation_record.PACKED_BYTES == 88 and protocol_name("RUN", "ballot") == "outerloop/1/RUN/ballot"


def test_records_and_incarnations_are_signed_over_the_bytes_of_the_pages(tmp_path):
    access = AccessControl(Signatures(KEY), AllowList(), RejectionLog())
    record = DHTRecord(bytes(20), msgpack.packb(Signatures(KEY).peer_id), msgpack.packb({"name": "x"}), 2.5)
    value = records.SignedRecords(access).sign_value(record)
    assert value.startswith(record.value)
    signed = PREFIX + msgpack.packb(["record", bytes(20), record.subkey, record.value, 2.5])
    KEY.public_key().verify(value[-64:], signed)
    statement = incarnation_record.IncarnationStatements(Signatures(KEY), run="run")
    packed = statement.incarnation(Life(tmp_path, 3, bytes(16))).packed
    assert packed[:24] == (3).to_bytes(8, "big") + bytes(16)
    KEY.public_key().verify(packed[24:], PREFIX + msgpack.packb(["incarnation", "run", packed[:24]]))


def test_a_run_manifest_is_signed_over_the_bytes_of_the_page():
    answer = run_manifest.signed(Signatures(KEY), run="run", content=b"{}")
    assert answer["peer"] == Signatures(KEY).peer_id and run_manifest.PROTOCOL == "outerloop/1/manifest"
    KEY.public_key().verify(answer["signature"], PREFIX + msgpack.packb(["run_manifest", "run", b"{}"]))


class Pipe:
    """A writer that keeps what is written."""

    def __init__(self) -> None:
        self.content = b""

    def write(self, piece: bytes) -> None:
        self.content += bytes(piece)

    async def drain(self) -> None:
        pass


@pytest.mark.parametrize("size", [0, 3, 600_000])
def test_frames_are_the_bytes_of_the_page(size):
    pipe, content = Pipe(), bytes(size)
    asyncio.run(Stream(None, pipe).send(content))
    assert pipe.content == size.to_bytes(8, "big") + hashlib.sha256(content).digest() + content + b"end\n"
