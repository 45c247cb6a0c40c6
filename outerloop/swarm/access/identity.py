"""Who a peer is: an Ed25519 key in a file of the run directory, so that a restarted worker keeps its peer id.

libp2p reads its identity as the protobuf message PrivateKey{type, data}. For Ed25519 type is 1 and data is the 32-byte
seed followed by the 32-byte public key. hivemind itself would write RSA-2048; Ed25519 signs four times faster and its
public key can be read back from the peer id. A field that libp2p does not know, and passes over, follows:

    starts   how many times a process has begun as this peer, copies that it objected to counted (incarnations.py)
    voted    number of the last start whose process synced its agreement memory; 0: never voted

Both are in the key's own file, so that no copy of the key is without them: a peer that has voted, and finds no memory
as new as `voted`, might vote twice in a round (hard_state_file.py). Files of earlier versions are without; such a one
is taken over at the first start.
"""

from __future__ import annotations

import os
import secrets
import stat
import struct
import tempfile
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from outerloop.state.durable import make_folder, sync_folder
from outerloop.swarm.resource_exhaustion import REMEDIES
from outerloop.types import UserError

# field 1 (varint) = 1, Ed25519; field 2 (bytes) of 64 bytes follows
PRIVATE_KEY_PREFIX = bytes([0x08, 0x01, 0x12, 64])
KEY_BYTES = len(PRIVATE_KEY_PREFIX) + 64
COUNTS = struct.Struct(">QQ")
# field 15 (bytes) of 16 bytes follows
COUNTS_PREFIX = bytes([0x7A, COUNTS.size])
NONCE_BYTES = 16
OTHERS = stat.S_IRWXG | stat.S_IRWXO
"""Permissions that a key's file has not, as ssh has it: who reads the key can vote in this peer's name."""


@dataclass(frozen=True)
class Identity:
    """Content of an identity file. `starts` None: of an earlier version, which did not count."""

    private: bytes
    starts: int | None = 0
    voted: int = 0

    @property
    def key(self) -> Ed25519PrivateKey:
        """What it signs with."""
        return Ed25519PrivateKey.from_private_bytes(self.private[len(PRIVATE_KEY_PREFIX) :][:32])

    def to_bytes(self) -> bytes:
        """Return it as libp2p reads it, and `read`."""
        return self.private + COUNTS_PREFIX + COUNTS.pack(self.starts or 0, self.voted)

    @staticmethod
    def read(path: Path) -> Identity:
        """Return the content of a file. Raises UserError for one of another kind, or that others may read."""
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & OTHERS:
            raise UserError(f"{path} is a private key and has permissions {mode:04o}: type chmod 600 {path}")
        content = path.read_bytes()
        private, rest = content[:KEY_BYTES], content[KEY_BYTES:]
        counted = rest.startswith(COUNTS_PREFIX) and len(rest) == len(COUNTS_PREFIX) + COUNTS.size
        if len(private) != KEY_BYTES or not private.startswith(PRIVATE_KEY_PREFIX) or (rest and not counted):
            raise UserError(f"{path} holds no Ed25519 identity: remove it, and a new one is made")
        if not rest:
            return Identity(private, None)
        starts, voted = COUNTS.unpack(rest[len(COUNTS_PREFIX) :])
        return Identity(private, starts, voted)


@dataclass(frozen=True)
class Life:
    """One process of the peer whose identity is at `path`: the so many-th, `count`, with a number drawn, `nonce`."""

    path: Path
    count: int
    nonce: bytes

    @staticmethod
    def begin(path: Path) -> Life:
        """Return the next one, counted on disk. Raises UserError for a full disk, and as Identity.read does."""
        identity = Identity.read(path)
        count = (identity.starts or 0) + 1
        try:
            _replace(path, replace(identity, starts=count))
        except OSError as error:
            if error.errno not in REMEDIES:
                raise
            remedy = REMEDIES[error.errno]
            raise UserError(f"this start cannot be counted in {path} ({error.strerror}): {remedy}") from error
        return Life(path, count, secrets.token_bytes(NONCE_BYTES))

    def leave_out(self, count: int) -> None:
        """Let later processes have higher counts than this one, which a copy of the key has taken."""
        identity = Identity.read(self.path)
        if count > (identity.starts or 0):
            _replace(self.path, replace(identity, starts=count))

    def has_memory(self) -> None:
        """Note on disk that this process has made sure of its memory, before it votes for the first time."""
        identity = Identity.read(self.path)
        _replace(self.path, replace(identity, voted=max(identity.voted, self.count)))


def new_identity() -> bytes:
    """A fresh key as the bytes of a libp2p identity file."""
    key = Ed25519PrivateKey.generate()
    private = PRIVATE_KEY_PREFIX + key.private_bytes_raw() + key.public_key().public_bytes_raw()
    return Identity(private).to_bytes()


def ensure_identity(path: str | os.PathLike[str]) -> Path:
    """The identity file at `path`, readable by its owner only; written if absent, all of it or none, and synced."""
    path = Path(path)
    if not path.exists():
        make_folder(path.parent)
        temporary = _written_beside(path, new_identity())
        try:
            with suppress(FileExistsError):  # another worker was faster: its key is the one
                os.link(temporary, path)
        finally:
            temporary.unlink()
        sync_folder(path.parent)
    return path


def onlooker_file(identity_path: str | os.PathLike[str]) -> Path:
    """Return the key beside a worker's own that `outerloop status` of this machine looks at a listed run with."""
    return ensure_identity(Path(identity_path).with_name("onlooker.key"))


def read_identity(path: Path) -> Ed25519PrivateKey:
    """The key in an identity file. Raises UserError as Identity.read does."""
    return Identity.read(path).key


def set_aside(path: Path, *, peer_id: str) -> Path:
    """Return where the identity file of a peer lies from now on; another one can be made in its place."""
    aside = path.with_name(f"{path.name}.of-{peer_id}")
    path.replace(aside)
    sync_folder(path.parent)
    return aside


def _replace(path: Path, identity: Identity) -> None:
    _written_beside(path, identity.to_bytes()).replace(path)
    sync_folder(path.parent)


def _written_beside(path: Path, content: bytes) -> Path:
    """A file in the same folder, synced."""
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
