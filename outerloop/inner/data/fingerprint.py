"""Notice, when a run resumes, that its text is no longer the text with which its checkpoint was saved.

The fingerprint of a corpus covers names and sizes of its files, not their content, which may be too large to be hashed
at each start. A corpus has it in its optional attribute `fingerprint`; "" if it is unknown.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

from outerloop.inner.data.corpus import Corpus, Stream, notes_of

CHANGED = (
    "the files of the text have changed since the checkpoint was saved (names or sizes differ): text may have moved"
    " between training and validation, so losses before and after cannot be compared"
)


def fingerprint_of(files: Iterable[tuple[str, int]], *more: str | int) -> str:
    """Return the sha256 of the names and sizes of files, in order, and of other values that determine the text."""
    return hashlib.sha256(json.dumps([list(files), more]).encode()).hexdigest()


def with_fingerprint(stream: Stream, corpus: Corpus) -> Stream:
    """Return the stream, with the fingerprint of its corpus in its saved position if the corpus has one."""
    fingerprint = getattr(corpus, "fingerprint", "")
    return FingerprintedStream(stream, fingerprint) if fingerprint else stream


class FingerprintedStream:
    """A stream whose position contains a fingerprint of the text.

    The attribute `notes` contains what the user should know about the position that was loaded last.
    """

    def __init__(self, stream: Stream, fingerprint: str) -> None:
        self.stream, self.fingerprint = stream, fingerprint
        self.notes: Sequence[str] = ()

    def next(self) -> Tensor:
        return self.stream.next()

    def state_dict(self) -> dict[str, Any]:
        return self.stream.state_dict() | {"fingerprint": self.fingerprint}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume at a position returned by `state_dict`. One without a fingerprint is not checked."""
        self.stream.load_state_dict(state)
        is_same = state.get("fingerprint", self.fingerprint) == self.fingerprint
        self.notes = [*([] if is_same else [CHANGED]), *notes_of(self.stream)]
