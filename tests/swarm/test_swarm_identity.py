"""The identity file is a libp2p Ed25519 key, private, made once; the socket folder of a killed peer is removed."""

import os
import stat
import tempfile
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from outerloop.swarm import folder
from outerloop.swarm.folder import SocketFolder
from outerloop.swarm.identity import ensure_identity


def test_file_holds_seed_and_public_key(tmp_path: Path) -> None:
    content = ensure_identity(tmp_path / "run" / "identity").read_bytes()
    seed, public = content[4:36], content[36:]
    assert content[:4] == b"\x08\x01\x12\x40" and len(content) == 68
    assert Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw() == public


def test_file_is_private_kept_and_alone(tmp_path: Path) -> None:
    path = ensure_identity(tmp_path / "identity")
    content = path.read_bytes()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert ensure_identity(path).read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


def test_folder_of_a_killed_peer_is_removed_and_a_living_ones_is_not() -> None:
    living, killed = SocketFolder(), SocketFolder()
    os.close(killed._lock)
    last = SocketFolder()
    assert living.path.exists() and not killed.path.exists()
    assert str(last.path).startswith(f"/tmp/{folder.PREFIX}") and stat.S_IMODE(last.path.stat().st_mode) == 0o700
    for one in (living, last):
        one.remove()
        assert not one.path.exists()


def test_a_folder_that_has_no_name_yet_is_removed_when_it_is_old() -> None:
    young, old = (Path(tempfile.mkdtemp(prefix=folder.UNNAMED, dir="/tmp")) for _ in range(2))
    os.utime(old, (0, 0))
    folder.remove_orphans()
    assert young.exists() and not old.exists()
    young.rmdir()
