"""Identity of a peer: an Ed25519 key in a file in the run directory, so that a restarted worker keeps its peer id.

libp2p reads its identity as the protobuf message PrivateKey{type, data}. For an Ed25519 key, the type is 1 and the data
is the 32-byte seed followed by the 32-byte public key. hivemind itself would write an RSA-2048 key. An Ed25519 key
signs four times faster, and its public key can be recovered from the peer id. The file ends with an extra field, which
libp2p skips because it does not know it. The field holds two numbers:

    starts   number of starts of this peer, or a higher count that a copy of the key has used (incarnations.py)
    voted    number of the last start whose process synced its hard state (its votes); 0 if the peer has never voted

Both numbers are stored with the key, so that every copy of the key includes them. A peer whose hard state is missing or
older than `voted` might vote twice in a round (hard_state_file.py). Files from earlier versions lack the extra field;
it is added at the first start.
"""

from __future__ import annotations

import os
import secrets
import stat
import struct
import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from outerloop.state.durable import make_folder, sync_folder
from outerloop.swarm.resource_exhaustion import REMEDIES
from outerloop.types import UserError

# protobuf: field 1 (varint) = 1 for Ed25519, then the header of field 2 (64 bytes)
PRIVATE_KEY_PREFIX = bytes([0x08, 0x01, 0x12, 64])
KEY_BYTES = len(PRIVATE_KEY_PREFIX) + 64
COUNTS = struct.Struct(">QQ")
# protobuf: header of field 15 (16 bytes)
COUNTS_PREFIX = bytes([0x7A, COUNTS.size])
NONCE_BYTES = 16
OTHERS = stat.S_IRWXG | stat.S_IRWXO
"""Permission bits that a key file must not have: any user who can read the key can vote as this peer."""
COUNTING = threading.Lock()
"""Held while the counts in an identity file are read and replaced, which several threads of a process may do."""


@dataclass(frozen=True)
class Identity:
    """The content of an identity file. `starts` is None if an earlier version wrote the file without counts."""

    private: bytes
    starts: int | None = 0
    voted: int = 0

    @property
    def key(self) -> Ed25519PrivateKey:
        """The signing key."""
        return Ed25519PrivateKey.from_private_bytes(self.private[len(PRIVATE_KEY_PREFIX) :][:32])

    def to_bytes(self) -> bytes:
        """Return the file content in the format that both libp2p and `read` accept."""
        return self.private + COUNTS_PREFIX + COUNTS.pack(self.starts or 0, self.voted)

    @staticmethod
    def read(path: Path) -> Identity:
        """Read an identity file. Raises UserError if its format is invalid or other users can access it."""
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & OTHERS:
            raise UserError(f"{path} is a private key and has permissions {mode:04o}: run chmod 600 {path}")
        content = path.read_bytes()
        private, rest = content[:KEY_BYTES], content[KEY_BYTES:]
        counted = rest.startswith(COUNTS_PREFIX) and len(rest) == len(COUNTS_PREFIX) + COUNTS.size
        if len(private) != KEY_BYTES or not private.startswith(PRIVATE_KEY_PREFIX) or (rest and not counted):
            raise UserError(f"{path} does not contain an Ed25519 identity: remove it, and a new one will be created")
        if not rest:
            return Identity(private, None)
        starts, voted = COUNTS.unpack(rest[len(COUNTS_PREFIX) :])
        return Identity(private, starts, voted)


@dataclass(frozen=True)
class Life:
    """One process (incarnation) of the peer whose identity file is `path`.

    `count`: number of starts, including this one. `nonce`: random bytes that identify the process.
    """

    path: Path
    count: int
    nonce: bytes

    @staticmethod
    def begin(path: Path) -> Life:
        """Record a new start in the identity file, and return its Life.

        Raises UserError if the disk is full or Identity.read fails.
        """
        identity = Identity.read(path)
        count = (identity.starts or 0) + 1
        try:
            _replace(path, replace(identity, starts=count))
        except OSError as error:
            if error.errno not in REMEDIES:
                raise
            remedy = REMEDIES[error.errno]
            raise UserError(f"cannot update the start count in {path} ({error.strerror}): {remedy}") from error
        return Life(path, count, secrets.token_bytes(NONCE_BYTES))

    def raise_start_count(self, count: int) -> None:
        """Raise the start count in the identity file to `count`, which a process with a copy of the key has used.

        Later starts then get higher counts.
        """
        with COUNTING:
            identity = Identity.read(self.path)
            if count > (identity.starts or 0):
                _replace(self.path, replace(identity, starts=count))

    def record_vote_storage(self) -> None:
        """Record in the identity file that this process has synced its hard state. Called before its first vote."""
        with COUNTING:
            identity = Identity.read(self.path)
            _replace(self.path, replace(identity, voted=max(identity.voted, self.count)))


def new_identity() -> bytes:
    """Generate a new key, and return it as the content of a libp2p identity file."""
    key = Ed25519PrivateKey.generate()
    private = PRIVATE_KEY_PREFIX + key.private_bytes_raw() + key.public_key().public_bytes_raw()
    return Identity(private).to_bytes()


def ensure_identity(path: str | os.PathLike[str]) -> Path:
    """Create an identity file at `path` if none exists, and return `path`.

    The file is created atomically, synced to disk, and readable only by its owner.
    """
    path = Path(path)
    if not path.exists():
        make_folder(path.parent)
        temporary = _write_temporary(path, new_identity())
        try:
            with suppress(FileExistsError):  # another worker created the file first, and its key is used
                os.link(temporary, path)
        finally:
            temporary.unlink()
        sync_folder(path.parent)
    return path


def onlooker_file(identity_path: str | os.PathLike[str]) -> Path:
    """Return the path of the key file that `outerloop status` on this machine uses to read a run with an allow-list.

    The file is stored next to the worker's identity file, and is created if it does not exist.
    """
    return ensure_identity(Path(identity_path).with_name("onlooker.key"))


def read_identity(path: Path) -> Ed25519PrivateKey:
    """Return the key in an identity file. Raises UserError if Identity.read fails."""
    return Identity.read(path).key


def set_aside(path: Path, *, peer_id: str) -> Path:
    """Rename a peer's identity file to make room for a new one, and return the path of the renamed file."""
    renamed = path.with_name(f"{path.name}.of-{peer_id}")
    path.replace(renamed)
    sync_folder(path.parent)
    return renamed


def _replace(path: Path, identity: Identity) -> None:
    _write_temporary(path, identity.to_bytes()).replace(path)
    sync_folder(path.parent)


def _write_temporary(path: Path, content: bytes) -> Path:
    """Write `content` to a temporary file in the folder of `path`, sync it, and return its path."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mode 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        Path(temporary).unlink()
        raise
    return Path(temporary)
