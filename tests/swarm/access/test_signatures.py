"""Signatures: who has not the key, or shows one as something else, is found out; what strangers send is no error."""

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from outerloop.swarm.access.identity import ensure_identity
from outerloop.swarm.access.signatures import SIGNATURE_BYTES, KeySigner, Signatures, peer_id_of, public_key_of
from outerloop.swarm.consensus.statements import accept, ask, promise, wish
from outerloop.swarm.validation import MalformedMessage
from outerloop.types import UserError

ID = "12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN"
"""Of the key with a seed of zeros. That p2pd gives a key the same id every peer asserts when it starts (node.py)."""


def own() -> Signatures:
    return Signatures(Ed25519PrivateKey.from_private_bytes(bytes(32)))


SAID = ("offer", "run/1", 7, "000-a", b"\1\2")


def test_only_signed_content_verifies() -> None:
    one, other = own(), Signatures(Ed25519PrivateKey.from_private_bytes(b"\1" * 32))
    signature = one.sign(*SAID)
    assert len(signature) == SIGNATURE_BYTES and one.sign(*SAID) == signature
    assert other.verify(signature, *SAID, by=one.peer_id), "anybody can check"
    assert not one.verify(signature, *SAID, by=other.peer_id), "a foreign key"
    assert not one.verify(other.sign(*SAID), *SAID, by=one.peer_id)


@pytest.mark.parametrize(
    "said",
    [
        ("manifest", "run/1", 7, "000-a", b"\1\2"),
        ("offer", "run/2", 7, "000-a", b"\1\2"),
        ("offer", "run/1", 8, "000-a", b"\1\2"),
        ("offer", "run/1", 7, "000-a\1", b"\2"),
        ("offer", "run/1", 7, "000-a", b"\1", b"\2"),
        ("offer", "run/1", 7, "000-a"),
        ("offer", "run/1", "7", "000-a", b"\1\2"),
        ("offerrun", "/1", 7, "000-a", b"\1\2"),
    ],
)
def test_shown_as_something_else_it_is_wrong(said: tuple) -> None:
    assert not own().verify(own().sign(*SAID), *said, by=own().peer_id)


def test_every_flipped_bit_makes_it_wrong() -> None:
    signature = own().sign(*SAID)
    for bit in range(8 * SIGNATURE_BYTES):
        flipped = bytearray(signature)
        flipped[bit // 8] ^= 1 << bit % 8
        assert not own().verify(bytes(flipped), *SAID, by=own().peer_id)


@settings(max_examples=50, deadline=None)
@given(
    st.binary() | st.text() | st.none() | st.integers(), st.text() | st.just("1" * 52) | st.just("12D3KooW" + "z" * 44)
)
def test_whatever_strangers_send_is_an_answer(signature: object, by: str) -> None:
    assert not own().verify(signature, *SAID, by=by)
    assert not own().verify(own().sign(*SAID), *SAID, by=by)


def test_a_peer_id_holds_its_key() -> None:
    assert peer_id_of(public_key_of(ID)) == ID == own().peer_id
    for wrong in ("", "Qm" + "a" * 44, ID[:-1], ID + "1", ID.replace("D", "0"), "12D3KooW" + "1" * 44):
        with pytest.raises(MalformedMessage):
            public_key_of(wrong)


def test_the_identity_file_is_the_key(tmp_path: Path) -> None:
    path = ensure_identity(tmp_path / "identity.key")
    assert Signatures.of(path).peer_id == Signatures.of(path).peer_id
    path.write_bytes(b"an RSA key, say")
    with pytest.raises(UserError, match="remove it"):
        Signatures.of(path)


def test_a_statement_counts_for_its_name_kind_round_view_content_and_session_alone() -> None:
    name, digest = f"000-{own().peer_id}", bytes(32)
    keys = KeySigner(own(), session="run/1", own=name)
    signature = keys.sign(accept(3, digest, 1, digest))
    assert keys.verify(name, accept(3, digest, 1, digest), signature)
    for other in (
        accept(4, digest, 1, digest),
        accept(3, digest, 2, digest),
        accept(3, digest, 1, b"\1" * 32),
        accept(3, b"\1" * 32, 1, digest),
        wish(3, digest, 1),
    ):
        assert not keys.verify(name, other, signature)
    assert not keys.verify(f"001-{own().peer_id}", accept(3, digest, 1, digest), signature), "one key, another name"
    assert not KeySigner(own(), session="run/2", own=name).verify(name, accept(3, digest, 1, digest), signature)
    stranger = KeySigner(Signatures(Ed25519PrivateKey.from_private_bytes(b"\1" * 32)), session="run/1", own=name)
    assert not keys.verify(name, accept(3, digest, 1, digest), stranger.sign(accept(3, digest, 1, digest)))
    kinds = [promise(3, digest, 1, None), promise(3, digest, 1, (0, digest)), wish(3, digest, 1), ask(3, digest)]
    signed = [keys.sign(kind) for kind in kinds]
    assert [[keys.verify(name, kind, one) for kind in kinds] for one in signed] == [
        [kind == other for kind in kinds] for other in kinds
    ]
