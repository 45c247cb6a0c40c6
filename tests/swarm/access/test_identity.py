"""The identity file is a libp2p Ed25519 key, private, made once, counted; a killed peer's socket folder is removed."""

import os
import signal
import stat
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from outerloop.swarm.access import identity
from outerloop.swarm.access.identity import Identity, Life, ensure_identity, read_identity
from outerloop.swarm.p2p import socket_dir
from outerloop.swarm.p2p.socket_dir import SocketFolder
from outerloop.types import UserError


def test_file_holds_seed_and_public_key(tmp_path: Path) -> None:
    content = ensure_identity(tmp_path / "run" / "identity").read_bytes()
    seed, public = content[4:36], content[36:68]
    assert content[:4] == b"\x08\x01\x12\x40" and content[68:] == b"\x7a\x10" + bytes(16), "libp2p skips field 15"
    assert Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw() == public


def test_file_is_private_kept_and_alone(tmp_path: Path) -> None:
    path = ensure_identity(tmp_path / "identity")
    content = path.read_bytes()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert ensure_identity(path).read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


def test_every_process_is_counted_and_the_key_stays(tmp_path: Path) -> None:
    path = ensure_identity(tmp_path / "identity")
    key = read_identity(path).private_bytes_raw()
    first, second = Life.begin(path), Life.begin(path)
    assert (first.count, second.count) == (1, 2) and first.nonce != second.nonce and len(first.nonce) == 16
    second.record_vote_storage()
    first.record_vote_storage()
    assert Identity.read(path).starts == 2 and Identity.read(path).voted == 2, "it never goes back"
    assert read_identity(path).private_bytes_raw() == key and stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_vote_that_is_recorded_while_a_copy_of_the_key_is_counted_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = ensure_identity(tmp_path / "identity")
    life, replace_file = Life.begin(path), identity._replace

    def replace_late(at: Path, counts: Identity) -> None:
        monkeypatch.setattr(identity, "_replace", replace_file)
        voting.start()
        voting.join(0.2)  # it has to wait for this change of the file
        replace_file(at, counts)

    voting = threading.Thread(target=life.record_vote_storage)
    monkeypatch.setattr(identity, "_replace", replace_late)
    life.raise_start_count(9)
    voting.join()
    assert (Identity.read(path).starts, Identity.read(path).voted) == (9, 1)


def test_a_file_of_an_earlier_version_is_taken_over_at_the_first_start(tmp_path: Path) -> None:
    path = ensure_identity(tmp_path / "identity")
    path.write_bytes(path.read_bytes()[:68])
    key = read_identity(path).private_bytes_raw()
    assert Identity.read(path).starts is None and Life.begin(path).count == 1
    assert Identity.read(path).starts == 1 and read_identity(path).private_bytes_raw() == key


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o755])
def test_a_key_that_others_may_read_is_refused_and_it_is_said_what_to_type(tmp_path: Path, mode: int) -> None:
    path = ensure_identity(tmp_path / "identity")
    path.chmod(mode)
    for use in (read_identity, Life.begin):
        with pytest.raises(UserError, match=rf"private key and has permissions {mode:04o}: run chmod 600 {path}$"):
            use(path)
    path.chmod(0o400)
    read_identity(path)


@pytest.mark.parametrize("damage", [lambda key: key[:67], lambda key: key + b"\0", lambda key: b"x" + key[1:], bytes])
def test_a_damaged_identity_file_is_refused(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    path = ensure_identity(tmp_path / "identity")
    path.write_bytes(damage(path.read_bytes()) if damage is not bytes else b"")
    with pytest.raises(UserError, match="does not contain an Ed25519 identity: remove it"):
        read_identity(path)


def killed_with_its_folder() -> Path:
    """Return the socket folder of a process that was killed."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, bytes(SocketFolder().path))
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        return Path(os.fsdecode(pipe.read()))


def test_folder_of_a_killed_peer_is_removed_and_a_living_ones_is_not() -> None:
    living, killed = SocketFolder(), killed_with_its_folder()
    last = SocketFolder()
    assert living.path.exists() and not killed.exists()
    assert str(last.path).startswith(f"/tmp/{socket_dir.PREFIX}") and stat.S_IMODE(last.path.stat().st_mode) == 0o700
    for one in (living, last):
        one.remove()
        assert not one.path.exists()


def test_a_folder_that_has_no_name_yet_is_removed_when_it_is_old() -> None:
    young, old = (Path(tempfile.mkdtemp(prefix=socket_dir.UNNAMED, dir="/tmp")) for _ in range(2))
    os.utime(old, (0, 0))
    socket_dir.remove_orphans()
    assert young.exists() and not old.exists()
    young.rmdir()
