"""Who a peer is: an Ed25519 key in a file of the run directory, so that a restarted worker keeps its peer id.

libp2p reads its identity as the protobuf message PrivateKey{type, data}. For Ed25519 type is 1 and data is the 32-byte
seed followed by the 32-byte public key. hivemind itself would write RSA-2048; Ed25519 signs four times faster and its
public key can be read back from the peer id.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from outerloop.types import UserError

# field 1 (varint) = 1, Ed25519; field 2 (bytes) of 64 bytes follows
PRIVATE_KEY_PREFIX = bytes([0x08, 0x01, 0x12, 64])


def new_identity() -> bytes:
    """A fresh key as the bytes of a libp2p identity file."""
    key = Ed25519PrivateKey.generate()
    return PRIVATE_KEY_PREFIX + key.private_bytes_raw() + key.public_key().public_bytes_raw()


def ensure_identity(path: str | os.PathLike[str]) -> Path:
    """The identity file at `path`, readable by its owner only; written if absent, all of it or none."""
    path = Path(path)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        _write_once(path, new_identity())
    return path


def onlooker_file(identity_path: str | os.PathLike[str]) -> Path:
    """Return the key beside a worker's own that `outerloop status` of this machine looks at a listed run with."""
    return ensure_identity(Path(identity_path).with_name("onlooker.key"))


def read_identity(path: Path) -> Ed25519PrivateKey:
    """The key in an identity file. Raises UserError for a file of another kind."""
    content = path.read_bytes()
    if len(content) != 68 or not content.startswith(PRIVATE_KEY_PREFIX):
        raise UserError(f"{path} holds no Ed25519 identity: remove it, and a new one is made")
    return Ed25519PrivateKey.from_private_bytes(content[4:36])


def _write_once(path: Path, content: bytes) -> None:
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mode 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):  # another worker was faster: its key is the one
            os.link(temporary, path)
    finally:
        Path(temporary).unlink()
